import { useState } from "react";
import { errorsFor } from "./field";

/**
 * The state of a form that changes texts of an object. Fields that the user has not touched follow
 * the object, and only changed fields are sent. So a change by another user is not undone.
 */
export function useEdits<Fields extends Record<string, string>>(current: Fields) {
  const [edits, setEdits] = useState<Partial<Fields>>({});
  const changes = Object.fromEntries(Object.entries(edits).filter(([name, value]) => value !== current[name])) as Partial<Fields>;
  return {
    changes,
    isChanged: Object.keys(changes).length > 0,
    clear: () => setEdits({}),
    /** The properties of the input of a field. `error` is the refusal of the last request. */
    field: (name: keyof Fields & string, error: unknown) => ({
      value: edits[name] ?? current[name],
      errors: errorsFor(error, name),
      onChange: (event: { target: { value: string } }) => setEdits((before) => ({ ...before, [name]: event.target.value })),
    }),
  };
}
