// A filter by one server: its name is typed or chosen, its id is the value.
import { useQuery } from "@tanstack/react-query";
import { useId, useState } from "react";
import { server as serverQuery, servers } from "../api/queries";
import { useSettled } from "../live/use-settled";
import { Button } from "./button";

interface ServerPickerProps {
  /** The id of the server, or an empty text. */
  value: string;
  onChange: (id: string) => void;
  className?: string;
}

const SUGGESTIONS = 20;

export function ServerPicker({ value, onChange, className }: ServerPickerProps) {
  const list = useId();
  const [text, setText] = useState("");
  const search = useSettled(text.trim(), 150);
  const chosen = useQuery({ ...serverQuery(value), enabled: value !== "" });
  const found = useQuery({ ...servers({ search, page_size: SUGGESTIONS, ordering: "name" }), enabled: value === "" });
  const suggestions = found.data?.results ?? [];
  const choose = (name: string) => {
    const server = suggestions.find((one) => one.name === name);
    if (!server) return setText(name);
    setText("");
    onChange(server.id);
  };
  if (value !== "") {
    const name = chosen.data?.name ?? (chosen.error ? "unknown server" : "…");
    return (
      <span className={`picked ${className ?? ""}`}>
        <span className="ellipsis">on {name}</span>
        <Button look="quiet" aria-label={`Not only ${name}`} onClick={() => onChange("")}>
          ×
        </Button>
      </span>
    );
  }
  return (
    <span className={className}>
      <input type="text" aria-label="Server" placeholder="Server" list={list} autoComplete="off" autoCapitalize="none" spellCheck={false} value={text} onChange={(event) => choose(event.target.value)} />
      <datalist id={list}>
        {suggestions.map(({ id, name }) => (
          <option key={id} value={name} />
        ))}
      </datalist>
    </span>
  );
}
