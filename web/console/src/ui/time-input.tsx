// An input for a time in a filter or a form. The address and the service use UTC. The input shows
// the viewer's zone.
import { useEffect, useState } from "react";

/** A time in the format of the browser's input, in the viewer's zone. */
export function localOf(iso: string): string {
  const time = Date.parse(iso);
  if (Number.isNaN(time)) return "";
  const date = new Date(time);
  return new Date(time - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** A time of the browser's input in UTC, for the service. Empty if the input is not a time. */
export function isoOf(local: string): string {
  const time = Date.parse(local);
  return local === "" || Number.isNaN(time) ? "" : new Date(time).toISOString();
}

interface TimeInputProps {
  label: string;
  value: string;
  onChange: (iso: string) => void;
}

export function TimeInput({ label, value, onChange }: TimeInputProps) {
  const [text, setText] = useState(() => localOf(value));
  useEffect(() => {
    // The input shows no seconds. The address keeps its seconds until the user changes the input.
    setText((before) => (isoOf(before).slice(0, 16) === value.slice(0, 16) ? before : localOf(value)));
  }, [value]);
  return (
    <label className="time-input">
      <span>{label}</span>
      <input
        type="datetime-local"
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          onChange(isoOf(event.target.value));
        }}
      />
    </label>
  );
}
