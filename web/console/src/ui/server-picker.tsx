// A filter by one server: its name is typed or chosen, its id is the value.
import { useQuery } from "@tanstack/react-query";
import { useEffect, useEffectEvent, useId, useState, type ChangeEvent, type KeyboardEvent } from "react";
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
  /** Whether the name is complete, so that the server is chosen as soon as it is found. */
  const [isComplete, setIsComplete] = useState(false);
  const isUnknown = text !== "" && search === text.trim() && found.isSuccess && suggestions.length === 0;
  const match = isComplete ? suggestions.find(({ name }) => name === text.trim())?.id : undefined;
  const choose = useEffectEvent((id: string) => {
    setText("");
    setIsComplete(false);
    onChange(id);
  });
  useEffect(() => {
    if (match !== undefined) choose(match);
  }, [match]);
  const change = ({ target, nativeEvent }: ChangeEvent<HTMLInputElement>) => {
    setText(target.value);
    // A name that is being typed may be the start of a longer one. A choice of the list is complete.
    setIsComplete(!(nativeEvent instanceof InputEvent) || nativeEvent.inputType === "insertReplacementText");
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key !== "Enter") return;
    // In a form, Enter chooses a server and does not submit the form.
    event.preventDefault();
    setIsComplete(true);
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
      <input
        type="text"
        aria-label="Server"
        placeholder="Server"
        list={list}
        autoComplete="off"
        autoCapitalize="none"
        spellCheck={false}
        value={text}
        aria-invalid={isUnknown || undefined}
        title={isUnknown ? "No server has this name" : undefined}
        onChange={change}
        onKeyDown={onKey}
        onBlur={() => setIsComplete(true)}
      />
      <datalist id={list}>
        {suggestions.map(({ id, name }) => (
          <option key={id} value={name} />
        ))}
      </datalist>
    </span>
  );
}
