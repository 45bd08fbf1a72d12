import { errorsFor, Field } from "../../ui/field";
import { HiddenNote } from "../../ui/hidden-note";
import type { Draft } from "./request";

interface LineFieldProps {
  draft: Draft;
  /** The line came with the address of the page, so Enter does not send it. */
  isForeign: boolean;
  onChange: (changes: Partial<Draft>) => void;
  error: unknown;
}

const MOST_ROWS = 16;

/** The command line. Enter sends the form, Shift and Enter add a line. */
export function LineField({ draft, isForeign, onChange, error }: LineFieldProps) {
  const rows = Math.min(Math.max(draft.line.split("\n").length, 1), MOST_ROWS);
  return (
    <Field label="Command" errors={errorsFor(error, "line")} hint={<Hint line={draft.line} isForeign={isForeign} />}>
      {(ids) => (
        <textarea
          {...ids}
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
            if (!isForeign) event.currentTarget.form?.requestSubmit();
          }}
        />
      )}
    </Field>
  );
}

function Hint({ line, isForeign }: { line: string; isForeign: boolean }) {
  const count = line.split("\n").length;
  const all = count > 1 ? `all ${count} lines of it` : "it";
  return (
    <>
      <HiddenNote text={line} />
      {isForeign && `This command came with the address of the page. Read ${all}, then choose Run.`}
    </>
  );
}
