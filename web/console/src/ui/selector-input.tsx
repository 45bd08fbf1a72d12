// An input for a selector of labels (contract 12.2), with completion from the labels of servers.
import { useQuery } from "@tanstack/react-query";
import { useId } from "react";
import { servers } from "../api/queries";
import { complete } from "./selector";

interface SelectorInputProps {
  value: string;
  onChange: (value: string) => void;
  errors?: readonly string[];
  className?: string;
  label?: string;
}

/** The number of servers whose labels are offered as completions. */
const SAMPLE = 200;

export function SelectorInput({ value, onChange, errors = [], className, label = "Selector of labels" }: SelectorInputProps) {
  const id = useId();
  const sample = useQuery({ ...servers({ page_size: SAMPLE, ordering: "name" }), staleTime: 60_000 });
  const labels = (sample.data?.results ?? []).flatMap((server) => Object.entries(server.labels));
  return (
    <div className={className}>
      <input
        type="text"
        className="mono"
        aria-label={label}
        placeholder="env=prod,role in (web,db)"
        list={`${id}-list`}
        autoComplete="off"
        spellCheck={false}
        value={value}
        aria-invalid={errors.length > 0 || undefined}
        aria-describedby={`${id}-errors`}
        onChange={(event) => onChange(event.target.value)}
      />
      <datalist id={`${id}-list`}>
        {complete(value, labels).map((option) => (
          <option key={option} value={option} />
        ))}
      </datalist>
      <div id={`${id}-errors`} className="error">
        {errors.map((error) => (
          <p key={error}>{error}</p>
        ))}
      </div>
    </div>
  );
}
