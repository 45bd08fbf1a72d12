import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "react-router";
import { batch as batchQuery, isStaff, me, POLL_MS, type Batch as BatchObject } from "../../api/queries";
import { useAddress } from "../../live/use-address";
import { visible } from "../../output/visible";
import { Answer } from "../../ui/answers";
import { Page, PageAnswer } from "../../ui/page";
import { Same } from "../../ui/same";
import { Time } from "../../ui/time";
import { plural } from "../../ui/words";
import { Actions } from "./actions";
import { Grid } from "./grid";
import { Groups } from "./groups";
import { Progress } from "./progress";
import { BatchState } from "./state";
import { TargetOutput } from "./target-output";
import { countStates, hasEnded, useTargets } from "./targets";
import "../command/page.css";
import "./page.css";

const DEFAULTS = { only: "", server: "", compare: "" };

export default function Batch() {
  const { id = "" } = useParams();
  const query = useQuery({ ...batchQuery(id), refetchInterval: ({ state }) => (state.data && hasEnded(state.data) ? false : POLL_MS) });
  return (
    <PageAnswer query={query} what="batch">
      {(batch) => <Shown key={batch.id} batch={batch} />}
    </PageAnswer>
  );
}

function Shown({ batch }: { batch: BatchObject }) {
  const [view, setView] = useAddress(DEFAULTS);
  const user = useQuery(me()).data;
  const mayChange = isStaff(user) || (batch.requested_by !== null && batch.requested_by.id === user?.id);
  const { query, targets, stream } = useTargets(batch);
  const isComplete = targets?.length === batch.counts.total;
  const counts = isComplete ? countStates(targets) : batch.counts;
  const shown = targets?.filter(({ state }) => view.only === "" || state === view.only) ?? [];
  const selected = targets?.find(({ server }) => server === view.server);
  const select = (server: string) => setView({ server });
  return (
    <Page
      title={visible(batch.name || batch.line)}
      heading={
        <span className="command-heading">
          {visible(batch.name) || `Batch on ${plural(batch.counts.total, "server")}`}
          <span className="command-state">
            <BatchState batch={batch} />
          </span>
        </span>
      }
      actions={mayChange && <Actions batch={{ ...batch, counts: { ...counts, total: batch.counts.total } }} />}
    >
      <pre className="command-line">
        <code>{visible(batch.line)}</code>
      </pre>
      <Facts batch={batch} />
      {stream === "cut" && (
        <p className="tone-wait" role="status">
          Connection lost. It continues when the service answers.
        </p>
      )}
      <div className="stack">
        <Progress counts={counts} only={view.only} onOnly={(only) => setView({ only })} />
        <div className={`batch-columns ${selected ? "split" : ""}`}>
          <div>
            <Answer query={query}>
              {(all) =>
                shown.length > 0 ? (
                  <Grid targets={shown} selected={view.server} onSelect={select} />
                ) : (
                  <p className="muted">{all.length === 0 ? "You can access none of its servers." : "No server is in this state."}</p>
                )
              }
            </Answer>
            {targets && !isComplete && <p className="muted">You cannot access {plural(batch.counts.total - targets.length, "further server")} of it.</p>}
          </div>
          {selected && <TargetOutput target={selected} mayStop={mayChange} onClose={() => setView({ server: "" })} />}
        </div>
        <Groups batch={batch} initial={view.compare.split(",").filter(Boolean)} onCompare={(keys) => setView({ compare: keys.join(",") })} onSelect={select} />
      </div>
      <Same method="GET" path={`/api/events/batches/${batch.id}/outputs/`} farhand={`farhand batch outputs ${batch.id}`} />
    </Page>
  );
}

/** Who, when and how, in one line. */
function Facts({ batch }: { batch: BatchObject }) {
  const { id, username, requested_by, counts, max_concurrency, max_errors, ramp, schedule, retry_of, scheduled_at, finished_at, stopped_by, state } = batch;
  const parts = [
    plural(counts.total, "server"),
    username === null ? "as the default account" : `as ${username}`,
    requested_by && `requested by ${requested_by.username}`,
    `${max_concurrency.toLocaleString("en")} at once`,
    ramp && "starting with one",
    max_errors !== null && `stops when more than ${max_errors} failed`,
  ];
  return (
    <p className="muted command-facts">
      {parts.filter(Boolean).join(", ")}, {state === "scheduled" ? "starts" : "started"} <Time at={scheduled_at} />
      {finished_at && (
        <>
          , ended <Time at={finished_at} />
        </>
      )}
      {stopped_by === "errors" && ", stopped because too many failed"}
      {stopped_by === "cancel" && ", stopped by a user"}
      {schedule && (
        <>
          , by a <Link to={`/schedules/${schedule}`}>schedule</Link>
        </>
      )}
      {retry_of && (
        <>
          , a retry of <Link to={`/batches/${retry_of}`}>an earlier batch</Link>
        </>
      )}
      , <Link to={`/history?batch=${id}`}>all its commands</Link>
    </p>
  );
}
