import { useMutation, useQuery } from "@tanstack/react-query";
import { useRef, useState, type FormEvent } from "react";
import { useLocation, useNavigate, useSearchParams } from "react-router";
import { queryClient } from "../../api/queries";
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
import { requestOf, send, type Draft } from "./request";
import { TargetFields } from "./target-fields";
import { isEmpty, type RunState } from "./targets";
import { plan } from "./plan";
import "./page.css";

/** For more targets than this, their number must be typed. */
const TYPED_ABOVE = 20;

/** The draft in an address such as `/run?servers=web-1,web-2&line=uptime`. */
function draftOf(parameters: URLSearchParams, state: RunState | null): Draft {
  const list = (name: string) => (parameters.get(name) ?? "").split(",").filter((item) => item !== "");
  return {
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
  const line = useRef<HTMLTextAreaElement>(null);
  const change = (changes: Partial<Draft>) => setDraft((before) => ({ ...before, ...changes }));

  const settled = useSettled(draft, 350);
  const hasTargets = !isEmpty(settled.targets);
  const preview = useQuery({ ...plan(settled), enabled: hasTargets });
  const isCurrent = draft === settled && !preview.isPlaceholderData && !preview.isFetching;
  const total = hasTargets ? preview.data?.total : undefined;
  const mustType = total !== undefined && total > TYPED_ABOVE;
  const isReady = draft.line.trim() !== "" && isCurrent && total !== undefined && !preview.error && (!mustType || typed === String(total));

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
  const request = requestOf(draft);
  return (
    <Page title="Run">
      <form className="run" onSubmit={submit}>
        <LineField reference={line} draft={draft} onChange={change} error={run.error} />
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
          <span className="muted">Enter runs, Shift Enter adds a line.</span>
        </div>
      </form>
      <Same method="POST" path={request.path} body={request.body} farhand={asFarhand(draft)} />
    </Page>
  );
}
