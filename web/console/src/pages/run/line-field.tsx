import type { RefObject } from "react";
import { errorsFor, Field } from "../../ui/field";
import type { Draft } from "./request";

interface LineFieldProps {
  reference: RefObject<HTMLTextAreaElement | null>;
  draft: Draft;
  onChange: (changes: Partial<Draft>) => void;
  error: unknown;
}

const MOST_ROWS = 16;

/** The command line. Enter sends the form, Shift and Enter add a line. */
export function LineField({ reference, draft, onChange, error }: LineFieldProps) {
  const rows = Math.min(Math.max(draft.line.split("\n").length, 1), MOST_ROWS);
  return (
    <Field label="Command" errors={errorsFor(error, "line")}>
      {(ids) => (
        <textarea
          {...ids}
          ref={reference}
          className="mono"
          rows={rows}
          required
          autoFocus
          autoComplete="off"
          autoCapitalize="none"
          spellCheck={false}
          placeholder="uptime"
          value={draft.line}
          onChange={(event) => onChange({ line: event.target.value })}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
            event.preventDefault();
            event.currentTarget.form?.requestSubmit();
          }}
        />
      )}
    </Field>
  );
}
