import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useId, useState, type FormEvent } from "react";
import { api, read } from "../../api/client";
import { allScripts, schedule as scheduleQuery, script as scriptQuery, type Schedule } from "../../api/queries";
import { useAll } from "../../live/use-all";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { useCronWords } from "../../ui/cron";
import { errorsFor, Field, SelectField, TextField } from "../../ui/field";
import { leftOutOf } from "../../ui/left-out";
import { ParamFields } from "../../ui/script-params";
import { Time } from "../../ui/time";
import { TargetFields } from "../run/target-fields";
import { requestOf, type Draft } from "./draft";
import "../run/page.css";
import "./form.css";

interface FormProps {
  initial: Draft;
  /** The schedule that is changed, or nothing for a new one. */
  schedule?: Schedule;
  onDone: (schedule: Schedule) => void;
  onBack: () => void;
}

const PRESETS = ["@hourly", "@daily", "@weekly", "@monthly", "*/15 * * * *", "30 2 * * *", "30 2 * * mon-fri", "0 4 * * sun", "0 4 L * *"];
const OFFLINE = [
  ["skip", "Skip it"],
  ["queue", "Wait for its agent"],
  ["reject", "Run on no server"],
] as const;
const MISFIRE = [
  ["run_once", "Run once"],
  ["skip", "Do not run"],
] as const;
const OVERLAP = [
  ["skip", "Skip the new run"],
  ["allow", "Start it too"],
  ["queue", "Start it afterwards"],
] as const;

export function ScheduleForm({ initial, schedule, onDone, onBack }: FormProps) {
  const client = useQueryClient();
  const [draft, setDraft] = useState(initial);
  const [opened] = useState(schedule?.updated_at);
  const change = (changes: Partial<Draft>) => setDraft((before) => ({ ...before, ...changes }));
  const script = useQuery({ ...scriptQuery(draft.script), enabled: draft.kind === "script" && draft.script !== "" }).data;
  const save = useMutation({
    mutationFn: async () => {
      const body = requestOf(draft, script?.params ?? []);
      if (!schedule) return read(api.POST("/api/events/schedules/", { body }));
      // The service has no condition on a change, so the newest state is read directly before it.
      const newest = await client.fetchQuery({ ...scheduleQuery(schedule.id), staleTime: 0 });
      if (newest.updated_at !== schedule.updated_at) throw new Error("Another user changed it at this moment. Nothing is changed yet.");
      return read(api.PATCH("/api/events/schedules/{id}/", { params: { path: { id: schedule.id } }, body }));
    },
    onSuccess: (saved) => {
      client.setQueryData(scheduleQuery(saved.id).queryKey, saved);
      void client.invalidateQueries({ queryKey: ["schedules"] });
      onDone(saved);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!save.isPending) save.mutate();
  };
  const field = (name: "name" | "username" | "timeout" | "concurrency" | "errors" | "startsAt" | "endsAt", of: string) => ({
    value: draft[name],
    errors: errorsFor(save.error, of),
    onChange: (event: { target: { value: string } }) => change({ [name]: event.target.value }),
  });
  return (
    <section className="panel" aria-label={schedule ? "Change the schedule" : "Create a schedule"}>
      <h2>{schedule ? `Change ${schedule.name}` : "Create a schedule"}</h2>
      <form className="panel-body schedule-form" onSubmit={submit}>
        <div className="schedule-when">
          <TextField label="Name" required autoFocus placeholder="nightly backup" {...field("name", "name")} />
          <Cron draft={draft} onChange={change} error={save.error} />
          <Zone value={draft.timezone} onChange={(timezone) => change({ timezone })} errors={errorsFor(save.error, "timezone")} />
        </div>
        <What draft={draft} onChange={change} error={save.error} keepsParams={schedule !== undefined} />
        <TargetFields targets={draft.targets} onChange={(targets) => change({ targets })} error={save.error} />
        <details className="unfold">
          <summary>Account, limits, missed and overlapping runs</summary>
          <div className="options">
            <TextField label="Account" placeholder="each server's default account" {...field("username", "username")} />
            <TextField label="Time limit in seconds" type="number" min={1} max={86_400} placeholder="1800" {...field("timeout", "timeout")} />
            <TextField label="At once" placeholder="50" hint="A number, or a percentage of the servers." {...field("concurrency", "max_concurrency")} />
            <TextField label="Stop after failures" placeholder="no limit" hint="A number, or a percentage of the servers." {...field("errors", "max_errors")} />
            <SelectField
              label="If a server is offline"
              options={OFFLINE}
              value={draft.offline}
              onChange={(event) => change({ offline: event.target.value as Draft["offline"] })}
            />
            <SelectField
              label="If the previous run still runs"
              options={OVERLAP}
              value={draft.overlap}
              onChange={(event) => change({ overlap: event.target.value as Draft["overlap"] })}
            />
            <SelectField
              label="If the service was down"
              options={MISFIRE}
              value={draft.misfire}
              onChange={(event) => change({ misfire: event.target.value as Draft["misfire"] })}
            />
            <TextField label="Not before" type="datetime-local" hint="In your time zone." {...field("startsAt", "starts_at")} />
            <TextField label="Not after" type="datetime-local" hint="In your time zone." {...field("endsAt", "ends_at")} />
            <label className="check">
              <input type="checkbox" checked={draft.ramp} onChange={(event) => change({ ramp: event.target.checked })} />
              Start with one server, then double
            </label>
          </div>
        </details>
        <p className="muted">It runs with your permissions{schedule && ", from this change on"}, and the servers are selected again for each run.</p>
        {schedule && schedule.updated_at !== opened && (
          <p className="tone-wait" role="alert">
            {schedule.name} was changed <Time at={schedule.updated_at} />, while this form was open.{" "}
            <a href={`/schedules/${schedule.id}`} target="_blank" rel="noreferrer">
              Look at it
            </a>{" "}
            before you replace that change.
          </p>
        )}
        <ActionError error={save.error} />
        <div className="row-of">
          <Button look="primary" type="submit" isBusy={save.isPending}>
            {schedule ? "Save" : "Create the schedule"}
          </Button>
          <Button onClick={onBack}>Back</Button>
        </div>
      </form>
    </section>
  );
}

interface PartProps {
  draft: Draft;
  onChange: (changes: Partial<Draft>) => void;
  error: unknown;
}

function Cron({ draft, onChange, error }: PartProps) {
  const list = useId();
  const words = useCronWords(draft.cron);
  return (
    <>
      <TextField
        label="When"
        required
        className="mono"
        placeholder="30 2 * * mon-fri"
        list={list}
        value={draft.cron}
        errors={errorsFor(error, "cron")}
        hint={<span role="status">{words ?? "Minute, hour, day of month, month, day of week."}</span>}
        onChange={(event) => onChange({ cron: event.target.value })}
      />
      <datalist id={list}>
        {PRESETS.map((preset) => (
          <option key={preset} value={preset} />
        ))}
      </datalist>
    </>
  );
}

function Zone({ value, onChange, errors }: { value: string; onChange: (zone: string) => void; errors: readonly string[] }) {
  const list = useId();
  return (
    <>
      <TextField label="Time zone" required list={list} value={value} errors={errors} onChange={(event) => onChange(event.target.value)} />
      <datalist id={list}>
        {["UTC", ...Intl.supportedValuesOf("timeZone")].map((zone) => (
          <option key={zone} value={zone} />
        ))}
      </datalist>
    </>
  );
}

/** A line, or a script with its parameters. */
function What({ draft, onChange, error, keepsParams }: PartProps & { keepsParams: boolean }) {
  const scripts = useAll(allScripts());
  const script = useQuery({ ...scriptQuery(draft.script), enabled: draft.kind === "script" && draft.script !== "" }).data;
  if (draft.kind === "argv") return <p className="muted">What it runs was set as separate words, which this form leaves as they are.</p>;
  return (
    <div className="schedule-what">
      {scripts.results.length > 0 && (
        <div className="row-of" role="radiogroup" aria-label="What to run">
          {(["line", "script"] as const).map((kind) => (
            <label key={kind} className="check">
              <input type="radio" name="kind" checked={draft.kind === kind} onChange={() => onChange({ kind })} />
              {kind === "line" ? "A line" : "A script"}
            </label>
          ))}
        </div>
      )}
      {draft.kind === "line" ? (
        <Field label="Command" errors={errorsFor(error, "line")}>
          {(ids) => (
            <textarea
              {...ids}
              className="mono"
              rows={2}
              required
              spellCheck={false}
              autoCapitalize="none"
              placeholder="backup.sh --all"
              value={draft.line}
              onChange={(event) => onChange({ line: event.target.value })}
            />
          )}
        </Field>
      ) : (
        <div className="options">
          <SelectField
            label="Script"
            required
            hint={leftOutOf(scripts, "script")}
            options={[["", "Choose a script"], ...scripts.results.map(({ id, name }) => [id, name] as const)]}
            value={draft.script}
            errors={errorsFor(error, "script")}
            onChange={(event) => onChange({ script: event.target.value, params: {}, version: "" })}
          />
          {script && (
            <>
              <SelectField
                label="Version"
                options={[
                  ["", "The latest at each run"],
                  ...Array.from({ length: script.version }, (_, index) => [String(script.version - index), `Version ${script.version - index}`] as const),
                ]}
                value={draft.version}
                errors={errorsFor(error, "script_version")}
                onChange={(event) => onChange({ version: event.target.value })}
              />
              <ParamFields
                parameters={keepsParams ? script.params.map((one) => ({ ...one, required: false })) : script.params}
                texts={draft.params}
                onChange={(params) => onChange({ params })}
                errors={errorsFor(error, "params")}
              />
              {keepsParams && script.params.length > 0 && <p className="hint">Values are not shown. If you type one, all are replaced.</p>}
            </>
          )}
        </div>
      )}
    </div>
  );
}
