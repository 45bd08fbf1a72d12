import { useQuery, type UseQueryResult } from "@tanstack/react-query";
import { Link } from "react-router";
import { allSchedules, commands, connectedServers, isStaff, live, liveAll, me, offlineServers, runningCommands, type Page as Listed } from "../../api/queries";
import { useNow } from "../../live/clock";
import { Answer, Empty } from "../../ui/answers";
import { LinkButton } from "../../ui/button";
import { CommandList } from "../../ui/command-list";
import { CronWords } from "../../ui/cron";
import { LeftOut } from "../../ui/left-out";
import { Page } from "../../ui/page";
import { Same } from "../../ui/same";
import { State } from "../../ui/state";
import { Time } from "../../ui/time";
import { number } from "../../ui/words";
import { AddServer } from "../servers/add-server";
import "./page.css";

const DAY_MS = 86_400_000;
const MINUTE_MS = 60_000;
const RUNNING = "/history?state=sent,acked";
/** The number of schedules that run next, on the overview. */
const NEXT = 5;

export default function Overview() {
  const connected = useQuery({ ...connectedServers(), ...live });
  const offline = useQuery({ ...offlineServers(), ...live });
  const isEmpty = connected.data?.count === 0 && offline.data?.count === 0;
  return (
    <Page
      title="Overview"
      actions={
        !isEmpty && (
          <LinkButton look="primary" to="/run">
            Run
          </LinkButton>
        )
      }
    >
      {isEmpty ? (
        <FirstSteps />
      ) : (
        <div className="stack">
          <dl className="numbers">
            <Number name="Connected" state="connected" value={connected.data?.count} to="/servers?state=connected" />
            <Number name="Offline" state="offline" value={offline.data?.count} to="/servers?state=offline" />
            <Running />
            <Failed />
          </dl>
          <RunningNow />
          <FailedLately />
          <NextSchedules />
        </div>
      )}
      <Same method="GET" path="/api/events/commands/?state=sent,acked" farhand="farhand history --state sent,acked" />
    </Page>
  );
}

function Number({ name, state, value, to }: { name: string; state: string; value: number | undefined; to: string }) {
  return (
    <div>
      <dt>
        <State state={state}>{name}</State>
      </dt>
      <dd>
        <Link to={to}>{value === undefined ? "–" : number(value)}</Link>
      </dd>
    </div>
  );
}

function Running() {
  const query = useQuery({ ...runningCommands(), ...live });
  return <Number name="Running now" state="running" value={query.data?.count} to={RUNNING} />;
}

/** Commands that ended without success, of the last 24 hours. */
function useFailed() {
  const since = new Date(useNow(10 * MINUTE_MS) - DAY_MS).toISOString();
  return {
    to: `/history?state=failed,expired,stuck&since=${encodeURIComponent(since)}`,
    query: useQuery({ ...commands({ state: "failed,expired,stuck", added_at__gte: since, page_size: 8 }), ...live }),
  };
}

function Failed() {
  const { to, query } = useFailed();
  return <Number name="Failed in 24 hours" state="failed" value={query.data?.count} to={to} />;
}

/** Leads to the whole list, if only its beginning is shown. */
function All({ to, of: { data } }: { to: string; of: UseQueryResult<Listed<unknown>> }) {
  if (!data || data.count <= data.results.length) return null;
  return (
    <LinkButton look="quiet" to={to}>
      All {number(data.count)}
    </LinkButton>
  );
}

function RunningNow() {
  const query = useQuery({ ...runningCommands(), ...live });
  return (
    <section className="panel">
      <header>
        <h2>Running now</h2>
        <All to={RUNNING} of={query} />
      </header>
      <Answer query={query}>
        {({ results }) => (results.length > 0 ? <CommandList commands={results} /> : <p className="panel-body muted">Nothing is running.</p>)}
      </Answer>
    </section>
  );
}

function FailedLately() {
  const { to, query } = useFailed();
  return (
    <section className="panel">
      <header>
        <h2>Failed in the last 24 hours</h2>
        <All to={to} of={query} />
      </header>
      <Answer query={query}>
        {({ results }) => (results.length > 0 ? <CommandList commands={results} /> : <p className="panel-body muted">Nothing failed.</p>)}
      </Answer>
    </section>
  );
}

function NextSchedules() {
  const query = useQuery({ ...allSchedules(), ...liveAll });
  return (
    <section className="panel">
      <h2>Next schedules</h2>
      <Answer query={query}>
        {(all) => {
          const next = all.results
            .filter(({ next_runs }) => next_runs.length > 0)
            .sort((one, other) => Date.parse(one.next_runs[0]!) - Date.parse(other.next_runs[0]!));
          if (next.length === 0) return <p className="panel-body muted">No schedule has a next run.</p>;
          return (
            <>
              <ul className="next">
                {next.slice(0, NEXT).map((schedule) => (
                  <li key={schedule.id}>
                    <Link to={`/schedules/${schedule.id}`}>{schedule.name}</Link>
                    <span className="ellipsis muted">
                      <CronWords cron={schedule.cron} timezone={schedule.timezone} />
                    </span>
                    <Time at={schedule.next_runs[0]} />
                  </li>
                ))}
              </ul>
              <LeftOut of={all} what="schedule" />
            </>
          );
        }}
      </Answer>
    </section>
  );
}

/** An empty workspace: how to connect the first server. */
function FirstSteps() {
  const staff = isStaff(useQuery(me()).data);
  if (!staff) return <Empty title="You have no servers">Ask the staff of this workspace to add you to a group with servers.</Empty>;
  return (
    <Empty title="Connect your first server">
      <p>An agent on the server dials out to this service. It needs no open port.</p>
      <AddServer />
    </Empty>
  );
}
