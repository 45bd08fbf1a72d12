import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useNavigate, useParams } from "react-router";
import { api, read, type Schema } from "../../api/client";
import { live, schedule as scheduleQuery, script as scriptQuery, type Schedule as ScheduleObject } from "../../api/queries";
import { useAddress } from "../../live/use-address";
import { useGroupNames } from "../../live/use-all";
import { usePages } from "../../live/use-pages";
import { visible } from "../../output/visible";
import { ActionError, Empty, Failure, Loading } from "../../ui/answers";
import { Button, LinkButton } from "../../ui/button";
import { Calendar } from "../../ui/calendar";
import { useCronWords } from "../../ui/cron";
import { Confirm } from "../../ui/dialog";
import { Page, PageAnswer } from "../../ui/page";
import { quoted, Same } from "../../ui/same";
import { State } from "../../ui/state";
import { Table, type Column } from "../../ui/table";
import { Time, WithTimes } from "../../ui/time";
import { toast } from "../../ui/toasts";
import { draftOf } from "./draft";
import { ScheduleForm } from "./form";
import { Outcome } from "./outcome";
import "../server/page.css";

type Run = Schema<"ScheduleRun">;
const PAGE_SIZE = 50;
const DEFAULTS = { edit: "" };

export default function Schedule() {
  const { id = "" } = useParams();
  const query = useQuery({ ...scheduleQuery(id), ...live, placeholderData: undefined });
  return (
    <PageAnswer query={query} what="schedule">
      {(schedule) => <Shown schedule={schedule} />}
    </PageAnswer>
  );
}

function Shown({ schedule }: { schedule: ScheduleObject }) {
  const { id, name, enabled, next_runs } = schedule;
  const [view, setView] = useAddress(DEFAULTS);
  const isEditing = view.edit !== "";
  return (
    <Page
      title={visible(name)}
      heading={
        <span className="server-heading">
          {visible(name)}
          <State state={enabled ? "connected" : "queued"}>{enabled ? "active" : "paused"}</State>
        </span>
      }
      actions={!isEditing && <Actions schedule={schedule} onEdit={() => setView({ edit: "true" })} />}
    >
      {isEditing ? (
        <ScheduleForm initial={draftOf(schedule)} schedule={schedule} onDone={() => setView({ edit: "" })} onBack={() => setView({ edit: "" })} />
      ) : (
        <div className="server-columns">
          <div className="stack">
            <What schedule={schedule} />
            <section className="panel" aria-label="Next runs">
              {next_runs.length > 0 ? (
                <Calendar label="Next runs" entries={next_runs.map((at) => ({ at: Date.parse(at), name: visible(name), to: `/schedules/${id}` }))} />
              ) : (
                <p className="panel-body muted">{enabled ? "It has ended: no due time is left." : "It is paused, so it has no next run."}</p>
              )}
            </section>
            <Runs id={id} />
          </div>
          <Facts schedule={schedule} />
        </div>
      )}
      <Same method="GET" path={`/api/events/schedules/${id}/`} farhand={`farhand schedules show ${quoted(name)}`} />
    </Page>
  );
}

function Actions({ schedule, onEdit }: { schedule: ScheduleObject; onEdit: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [isAsking, setIsAsking] = useState(false);
  const { id, name, enabled } = schedule;
  const params = { path: { id } };
  const toggle = useMutation({
    mutationFn: () => read(api.PATCH("/api/events/schedules/{id}/", { params, body: { enabled: !enabled } })),
    onSuccess: (changed) => {
      client.setQueryData(scheduleQuery(id).queryKey, changed);
      void client.invalidateQueries({ queryKey: ["schedules"] });
    },
  });
  const run = useMutation({
    mutationFn: () => read(api.POST("/api/events/schedules/{id}/run/", { params })),
    onSuccess: (batch) => void navigate(`/batches/${batch.id}`),
  });
  const remove = async () => {
    await read(api.DELETE("/api/events/schedules/{id}/", { params }));
    void navigate("/schedules");
    client.removeQueries({ queryKey: ["schedule", id] });
    void client.invalidateQueries({ queryKey: ["schedules"] });
    toast(`${name} is deleted.`);
  };
  return (
    <>
      <ActionError error={toggle.error ?? run.error} />
      <Button look="primary" isBusy={run.isPending} onClick={() => run.mutate()}>
        Run now
      </Button>
      <Button isBusy={toggle.isPending} onClick={() => toggle.mutate()}>
        {enabled ? "Pause" : "Resume"}
      </Button>
      <Button onClick={onEdit}>Change</Button>
      <Button look="danger" onClick={() => setIsAsking(true)}>
        Delete
      </Button>
      <Confirm title={`Delete ${name}?`} isOpen={isAsking} onClose={() => setIsAsking(false)} verb={`Delete ${name}`} action={remove}>
        <p>It does not run again, and its run history is deleted. Runs that have started go on.</p>
      </Confirm>
    </>
  );
}

function What({ schedule: { line, argv, script, script_version } }: { schedule: ScheduleObject }) {
  const name = useQuery({ ...scriptQuery(script ?? ""), enabled: script !== null }).data?.name;
  if (script !== null) {
    return (
      <p>
        Runs the script <Link to={`/scripts/${script}`}>{name === undefined ? "…" : visible(name)}</Link>,{" "}
        {script_version === null ? "the latest version at each run" : `version ${script_version}`}.
      </p>
    );
  }
  return (
    <pre className="snippet">
      <code>{visible(line ?? (argv ?? []).map(quoted).join(" "))}</code>
    </pre>
  );
}

const OFFLINE = { skip: "are skipped", queue: "are waited for", reject: "refuse the run" } as const;
const OVERLAP = { skip: "skip the new run", allow: "start both", queue: "start it afterwards" } as const;

function Facts({ schedule }: { schedule: ScheduleObject }) {
  const { cron, timezone, targets, username, timeout, max_concurrency, max_errors, on_offline, misfire, overlap, starts_at, ends_at, owner, updated_at } =
    schedule;
  const words = useCronWords(cron);
  const groupNames = useGroupNames();
  const selected = [
    targets.all && "all servers",
    ...(targets.servers ?? []),
    ...(targets.groups ?? []).map((id) => `group ${groupNames.get(id) ?? id}`),
    targets.selector,
  ].filter(Boolean);
  const facts: readonly (readonly [string, React.ReactNode])[] = [
    ["When", words ?? cron],
    ["Cron", <span className="mono">{cron}</span>],
    ["Time zone", timezone],
    ["On", selected.join(", ") || "–"],
    ["Account", username ?? "each server's default"],
    ["Time limit", `${timeout} s`],
    ["At once", max_concurrency],
    ["Stops after", max_errors === null ? "no limit" : `${max_errors} failures`],
    ["Offline", `servers ${OFFLINE[on_offline]}`],
    ["Overlap", OVERLAP[overlap]],
    ["Missed", misfire === "run_once" ? "runs once" : "does not run"],
    ...(starts_at ? [["Not before", <Time at={starts_at} form="short" />] as const] : []),
    ...(ends_at ? [["Not after", <Time at={ends_at} form="short" />] as const] : []),
    ["Owner", owner?.username ?? "–"],
    ["Changed", <Time at={updated_at} />],
  ];
  return (
    <aside className="panel" aria-label="Facts">
      <h2>Facts</h2>
      <dl className="facts panel-body">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </aside>
  );
}

const columns: readonly Column<Run>[] = [
  { name: "due", title: "Due", width: "120px", card: "title", cell: ({ due_at }) => <Time at={due_at} form="short" /> },
  { name: "outcome", title: "Outcome", width: "104px", cell: (run) => <Outcome run={run} /> },
  {
    name: "lag",
    title: "Lag",
    width: "64px",
    card: "labelled",
    cell: ({ due_at, started_at }) =>
      started_at === null ? "" : <span className="number">{((Date.parse(started_at) - Date.parse(due_at)) / 1_000).toFixed(2)} s</span>,
  },
  {
    name: "what",
    title: "Result",
    width: "minmax(0, 1fr)",
    cell: ({ batch, reason }) =>
      batch ? <Link to={`/batches/${batch}`}>Batch</Link> : <span title={visible(reason ?? "")}>{reason && <WithTimes text={visible(reason)} />}</span>,
  },
];

function Runs({ id }: { id: string }) {
  const list = usePages<Run>(PAGE_SIZE, (page) => ({
    queryKey: ["schedule", id, "runs", page],
    queryFn: ({ signal }: { signal: AbortSignal }) =>
      read(api.GET("/api/events/schedules/{id}/runs/", { params: { path: { id }, query: { page, page_size: PAGE_SIZE } }, signal })),
  }));
  return (
    <section>
      <header className="row-of runs-head">
        <h2>Runs</h2>
        <LinkButton look="quiet" to={`/batches?schedule=${id}`}>
          As batches
        </LinkButton>
        <LinkButton look="quiet" to={`/history?schedule=${id}`}>
          All commands
        </LinkButton>
      </header>
      {list.problem ? (
        <Failure problem={list.problem} retry={list.retry} />
      ) : list.count === undefined ? (
        <Loading />
      ) : list.count === 0 ? (
        <Empty title="It has not run">Its first run appears here.</Empty>
      ) : (
        <Table label="Runs" columns={columns} count={list.count} at={list.at} keyOf={(run) => run.id} onRange={list.show} />
      )}
    </section>
  );
}
