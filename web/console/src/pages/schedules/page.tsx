import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearchParams } from "react-router";
import { isRefused } from "../../api/problem";
import { live, schedules, type Schedule } from "../../api/queries";
import { useAddress } from "../../live/use-address";
import { useTyped } from "../../live/use-typed";
import { Answer, Empty } from "../../ui/answers";
import { Button } from "../../ui/button";
import { visible } from "../../output/visible";
import { Calendar } from "../../ui/calendar";
import { CronWords } from "../../ui/cron";
import { Page } from "../../ui/page";
import { quoted, Same } from "../../ui/same";
import { State } from "../../ui/state";
import { Table, type Column } from "../../ui/table";
import { Time } from "../../ui/time";
import { number } from "../../ui/words";
import { emptyDraft } from "../schedule/draft";
import { ScheduleForm } from "../schedule/form";
import { Outcome } from "../schedule/outcome";

const DEFAULTS = { name: "", enabled: "", new: "" };
/** Maximum number of schedules on the page: the newest ones. Filters find the others. */
const PAGE_SIZE = 100;

const columns: readonly Column<Schedule>[] = [
  { name: "name", title: "Name", width: "minmax(0, 1.2fr)", card: "title", cell: ({ id, name }) => <Link to={`/schedules/${id}`}>{visible(name)}</Link> },
  { name: "when", title: "When", width: "minmax(0, 2fr)", cell: ({ cron, timezone }) => <CronWords cron={cron} timezone={timezone} /> },
  {
    name: "what",
    title: "Command",
    width: "minmax(0, 1.4fr)",
    card: "none",
    cell: ({ line, argv, script }) => <span className="mono">{visible(line ?? (argv ? argv.join(" ") : script ? "a script" : ""))}</span>,
  },
  {
    name: "enabled",
    title: "State",
    width: "96px",
    cell: ({ enabled, next_runs }) => (
      <State state={enabled ? (next_runs.length > 0 ? "connected" : "finished") : "queued"}>
        {enabled ? (next_runs.length > 0 ? "active" : "ended") : "paused"}
      </State>
    ),
  },
  { name: "next", title: "Next run", width: "80px", card: "labelled", cell: ({ next_runs }) => <Time at={next_runs[0]} /> },
  {
    name: "last",
    title: "Last run",
    width: "104px",
    card: "labelled",
    cell: ({ last_run }) => (last_run ? <Outcome run={last_run} /> : <span className="muted">never</span>),
  },
  { name: "owner", title: "Owner", width: "minmax(0, 0.6fr)", card: "none", cell: ({ owner }) => owner?.username ?? "–" },
];

export default function Schedules() {
  const [parameters] = useSearchParams();
  const navigate = useNavigate();
  const [view, setView] = useAddress(DEFAULTS);
  const { name, enabled } = view;
  const query = useQuery({ ...schedules({ page_size: PAGE_SIZE, ...(name && { name }), ...(enabled && { enabled: enabled === "true" }) }), ...live });
  const [typed, setTyped] = useTyped(name, (value) => setView({ name: value }));
  const isFiltered = name !== "" || enabled !== "";
  const isCreating = view.new !== "";
  return (
    <Page
      title="Schedules"
      heading={<>Schedules {query.data && <span className="muted">{number(query.data.count)}</span>}</>}
      actions={
        !isCreating &&
        !isRefused(query.error) && (
          <Button look="primary" onClick={() => setView({ new: "true" })}>
            Create a schedule
          </Button>
        )
      }
    >
      <div className="stack">
        {isCreating && !isRefused(query.error) && (
          <ScheduleForm initial={emptyDraft(parameters)} onDone={({ id }) => void navigate(`/schedules/${id}`)} onBack={() => void navigate("/schedules")} />
        )}
        <Answer query={query}>
          {({ results, count }) =>
            results.length === 0 && !isFiltered ? (
              !isCreating && <Empty title="There is no schedule">A schedule runs a command again and again, at the times that you choose.</Empty>
            ) : (
              <>
                <section className="panel" aria-label="Next runs">
                  <Calendar
                    label="Next runs"
                    entries={results.flatMap((one) => one.next_runs.map((at) => ({ at: Date.parse(at), name: visible(one.name), to: `/schedules/${one.id}` })))}
                  />
                  <p className="panel-body muted">The next five runs of each schedule, in your time zone.</p>
                </section>
                <div>
                  <div className="toolbar" role="search">
                    <input
                      className="grow"
                      type="search"
                      aria-label="Exact name"
                      placeholder="Exact name"
                      value={typed}
                      onChange={(event) => setTyped(event.target.value)}
                    />
                    <select className="narrow" aria-label="State" value={enabled} onChange={(event) => setView({ enabled: event.target.value })}>
                      <option value="">Every state</option>
                      <option value="true">Active</option>
                      <option value="false">Paused</option>
                    </select>
                  </div>
                  {results.length > 0 ? (
                    <Table
                      label="Schedules"
                      columns={columns}
                      count={results.length}
                      at={(index) => results[index]}
                      keyOf={({ id }) => id}
                      markOf={({ last_run }) => last_run?.id ?? ""}
                    />
                  ) : (
                    <Empty title="No schedule matches">
                      <Button onClick={() => setView({ name: "", enabled: "" })}>Show all schedules</Button>
                    </Empty>
                  )}
                  {count > results.length && (
                    <p className="note-row">
                      The newest {number(results.length)} of {number(count)}. Search by name for another one.
                    </p>
                  )}
                </div>
              </>
            )
          }
        </Answer>
      </div>
      <Same
        method="GET"
        path={`/api/events/schedules/${name ? `?name=${encodeURIComponent(name)}` : ""}`}
        farhand={name ? `farhand schedules show ${quoted(name)}` : "farhand schedules list"}
      />
    </Page>
  );
}
