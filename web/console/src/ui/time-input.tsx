// A point in time of a filter or a form. The address and the service have it in UTC, the user sees
// the viewer's zone.
import { useEffect, useState } from "react";

/** A time as an input of the browser has it, in the viewer's zone. */
export function localOf(iso: string): string {
  const time = Date.parse(iso);
  if (Number.isNaN(time)) return "";
  const date = new Date(time);
  return new Date(time - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** A local time of an input as the service takes it, or an empty text. */
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
    // Seconds of an address are not in the input, and stay while it is untouched.
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
