import { useMutation, useQuery } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { useLocation, useNavigate, useSearchParams } from "react-router";
import { queryClient, script as scriptQuery } from "../../api/queries";
import { useSettled } from "../../live/use-settled";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { Page } from "../../ui/page";
import { Same } from "../../ui/same";
import { plural } from "../../ui/words";
import { asFarhand } from "./as-farhand";
import { LineField } from "./line-field";
import { Options } from "./options";
import { Preview } from "./preview";
import { hasWhat, requestOf, send, type Draft } from "./request";
import { isScriptId, ScriptField } from "./script-field";
import { TargetFields } from "./target-fields";
import { isEmpty, type RunState } from "./targets";
import { plan } from "./plan";
import "./page.css";

/** For more targets than this, their number must be typed. */
const TYPED_ABOVE = 20;

const WHATS = [
  ["line", "A command line"],
  ["script", "A script"],
] as const;

/** The draft in an address such as `/run?servers=web-1,web-2&line=uptime`. */
function draftOf(parameters: URLSearchParams, state: RunState | null): Draft {
  const list = (name: string) => (parameters.get(name) ?? "").split(",").filter((item) => item !== "");
  const script = parameters.get("script") ?? "";
  return {
    what: script === "" ? "line" : "script",
    script,
    params: {},
    line: parameters.get("line") ?? "",
    username: parameters.get("username") ?? "",
    targets: {
      servers: state?.servers ?? list("servers"),
      groups: list("groups").map(Number).filter(Number.isInteger),
      selector: parameters.get("selector") ?? "",
      all: parameters.get("all") === "true",
    },
    timeout: "",
    cwd: "",
    concurrency: "",
    errors: "",
    ramp: false,
    offline: "",
    at: "",
    name: "",
  };
}

export default function Run() {
  const [parameters] = useSearchParams();
  const { state } = useLocation() as { state: RunState | null };
  const navigate = useNavigate();
  const [draft, setDraft] = useState(() => draftOf(parameters, state));
  const [typed, setTyped] = useState("");
  const change = (changes: Partial<Draft>) => setDraft((before) => ({ ...before, ...changes }));

  const settled = useSettled(draft, 350);
  const hasTargets = !isEmpty(settled.targets);
  const preview = useQuery({ ...plan(settled), enabled: hasTargets });
  const isCurrent = draft === settled && !preview.isPlaceholderData && !preview.isFetching;
  const total = hasTargets ? preview.data?.total : undefined;
  const mustType = total !== undefined && total > TYPED_ABOVE;
  const isReady = hasWhat(draft) && isCurrent && total !== undefined && !preview.error && (!mustType || typed === String(total));

  // A link may contain any line, so Enter does not run it before the user has changed it.
  const given = parameters.get("line") ?? "";
  const isForeign = given !== "" && draft.line === given && state?.isOwnLine !== true;

  const run = useMutation({
    mutationFn: () => send(draft),
    onSuccess: (path) => {
      void queryClient.invalidateQueries({ queryKey: ["commands"] });
      void navigate(path);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (isReady && !run.isPending) run.mutate();
  };
  const script = useQuery({ ...scriptQuery(draft.script), enabled: isScriptId(draft.script) }).data;
  const request = requestOf(draft);
  // Parameters that were not typed yet are not an error.
  const hasParams = Object.keys(draft.params).length > 0;
  return (
    <Page title="Run">
      <form className="run" onSubmit={submit}>
        <div>
          <fieldset className="what">
            <legend className="visually-hidden">What to run</legend>
            {WHATS.map(([value, name]) => (
              <label key={value} className="check">
                <input type="radio" name="what" checked={draft.what === value} onChange={() => change({ what: value })} />
                {name}
              </label>
            ))}
          </fieldset>
          {draft.what === "line" ? (
            <LineField draft={draft} isForeign={isForeign} onChange={change} error={run.error} />
          ) : (
            <ScriptField draft={draft} onChange={change} error={run.error ?? (hasParams ? preview.error : null)} />
          )}
        </div>
        <TargetFields targets={draft.targets} error={preview.error ?? run.error} onChange={(targets) => change({ targets })} />
        <Options draft={draft} onChange={change} error={run.error ?? preview.error} />
        <Preview draft={settled} hasTargets={hasTargets} query={preview} />
        {mustType && (
          <label className="field typed">
            This runs on {plural(total, "server")}. Type {total} to confirm.
            <input inputMode="numeric" autoComplete="off" value={typed} onChange={(event) => setTyped(event.target.value.trim())} />
          </label>
        )}
        <ActionError error={run.error} />
        <div className="run-send">
          <Button look="primary" type="submit" disabled={!isReady} isBusy={run.isPending}>
            {draft.at ? "Schedule" : "Run"} {total === undefined ? "" : `on ${plural(total, "server")}`}
          </Button>
          {draft.what === "line" && !isForeign && <span className="muted">Enter runs, Shift Enter adds a line.</span>}
        </div>
      </form>
      <Same method="POST" path={request.path} body={request.body} farhand={asFarhand(draft, script?.name)} />
    </Page>
  );
}
