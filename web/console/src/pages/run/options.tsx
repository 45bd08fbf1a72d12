import { errorsFor, SelectField, TextField } from "../../ui/field";
import type { Draft } from "./request";
import { onlyServer } from "./targets";

interface OptionsProps {
  draft: Draft;
  onChange: (changes: Partial<Draft>) => void;
  error: unknown;
}

const OF_COMMAND = [
  ["", "Refuse (default)"],
  ["queue", "Wait for its agent"],
] as const;
const OF_BATCH = [
  ["", "Skip it (default)"],
  ["queue", "Wait for its agent"],
  ["reject", "Run on no server"],
] as const;

/** Everything besides the line and the targets. Each has a good default. */
export function Options({ draft, onChange, error }: OptionsProps) {
  const isBatch = onlyServer(draft.targets) === undefined;
  const text = (name: "username" | "timeout" | "cwd" | "concurrency" | "errors" | "name") => ({
    value: draft[name],
    onChange: (event: { target: { value: string } }) => onChange({ [name]: event.target.value }),
  });
  return (
    <details className="unfold">
      <summary>Account, limits, time</summary>
      <div className="options">
        <TextField label="Account" placeholder="the server's default account" {...text("username")} errors={errorsFor(error, "username")} />
        <TextField label="Folder" placeholder="/" {...text("cwd")} errors={errorsFor(error, "cwd")} />
        <TextField
          label="Time limit in seconds"
          type="number"
          min={1}
          max={86_400}
          placeholder="1800"
          {...text("timeout")}
          errors={errorsFor(error, "timeout")}
        />
        <TextField
          label="Start at"
          type="datetime-local"
          value={draft.at}
          onChange={(event) => onChange({ at: event.target.value })}
          hint="In your time zone. Empty is now."
          errors={errorsFor(error, "scheduled_at")}
        />
        <SelectField
          label="If a server is offline"
          options={isBatch ? OF_BATCH : OF_COMMAND}
          value={draft.offline}
          onChange={(event) => onChange({ offline: event.target.value as Draft["offline"] })}
        />
        {isBatch && (
          <>
            <TextField
              label="At once"
              placeholder="50"
              {...text("concurrency")}
              hint="A number, or a percentage of the servers."
              errors={errorsFor(error, "max_concurrency")}
            />
            <TextField
              label="Stop after failures"
              placeholder="no limit"
              {...text("errors")}
              hint="A number, or a percentage of the servers."
              errors={errorsFor(error, "max_errors")}
            />
            <TextField label="Name" {...text("name")} hint="To find it again." errors={errorsFor(error, "name")} />
            <label className="check">
              <input type="checkbox" checked={draft.ramp} onChange={(event) => onChange({ ramp: event.target.checked })} />
              Start with one server, then double
            </label>
          </>
        )}
      </div>
    </details>
  );
}
