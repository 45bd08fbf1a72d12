import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { useNavigate } from "react-router";
import { api, read, type Schema } from "../../api/client";
import { useSettled } from "../../live/use-settled";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { errorsFor, TextField } from "../../ui/field";
import { ParamFields, valuesOf, type Texts } from "../../ui/script-params";
import { plural } from "../../ui/words";
import { TargetFields } from "../run/target-fields";
import { isEmpty, onlyServer, selection, type Targets } from "../run/targets";
import "../run/page.css";

const NO_TARGETS: Targets = { servers: [], groups: [], selector: "", all: false };
/** For more targets than this, their number must be typed. */
const TYPED_ABOVE = 20;

/** Runs one version of a script: as a command on one named server, as a batch on others. */
export function RunScript({ script, version, parameters }: { script: Schema<"Script">; version: number; parameters: Schema<"ScriptParameter">[] }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [targets, setTargets] = useState(NO_TARGETS);
  const [texts, setTexts] = useState<Texts>({});
  const [username, setUsername] = useState("");
  const [typed, setTyped] = useState("");
  const settled = useSettled(targets);
  const params = valuesOf(parameters, texts);
  const fields = {
    script: script.id,
    script_version: version,
    ...(Object.keys(params).length > 0 && { params }),
    ...(username.trim() && { username: username.trim() }),
  };
  // The line of a dry run is not used: it only resolves the servers.
  const plan = useQuery({
    queryKey: ["plan", "script", settled],
    queryFn: async ({ signal }) =>
      (await read(api.POST("/api/events/batches/", { body: { line: "true", targets: selection(settled), dry_run: true }, signal }))) as Schema<"BatchDryRun">,
    enabled: !isEmpty(settled),
  });
  const total = isEmpty(targets) || targets !== settled ? undefined : plan.data?.total;
  const mustType = total !== undefined && total > TYPED_ABOVE;
  const run = useMutation({
    mutationFn: async () => {
      const server = onlyServer(targets);
      if (server !== undefined) return `/commands/${(await read(api.POST("/api/events/commands/", { body: { ...fields, server } }))).id}`;
      return `/batches/${((await read(api.POST("/api/events/batches/", { body: { ...fields, targets: selection(targets) } }))) as Schema<"Batch">).id}`;
    },
    onSuccess: (path) => {
      void client.invalidateQueries({ queryKey: ["commands"] });
      void navigate(path);
    },
  });
  const isReady = total !== undefined && (!mustType || typed === String(total));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (isReady && !run.isPending) run.mutate();
  };
  return (
    <section className="panel" aria-label="Run the script">
      <h2>Run version {version}</h2>
      <form className="panel-body script-form" onSubmit={submit}>
        <TargetFields targets={targets} onChange={setTargets} error={plan.error ?? run.error} />
        <div className="options">
          <ParamFields parameters={parameters} texts={texts} onChange={setTexts} errors={errorsFor(run.error, "params")} />
          <TextField
            label="Account"
            placeholder="the server's default account"
            value={username}
            errors={errorsFor(run.error, "username")}
            onChange={(event) => setUsername(event.target.value)}
          />
        </div>
        {mustType && (
          <label className="field typed">
            This runs on {plural(total, "server")}. Type {total} to confirm.
            <input inputMode="numeric" autoComplete="off" value={typed} onChange={(event) => setTyped(event.target.value.trim())} />
          </label>
        )}
        <ActionError error={run.error ?? plan.error} />
        <div>
          <Button look="primary" type="submit" disabled={!isReady} isBusy={run.isPending}>
            Run {total === undefined ? "" : `on ${plural(total, "server")}`}
          </Button>
        </div>
      </form>
    </section>
  );
}
