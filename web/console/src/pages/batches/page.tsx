import { Link } from "react-router";
import { batches, type Batch } from "../../api/queries";
import { useAddress } from "../../live/use-address";
import { usePages } from "../../live/use-pages";
import { useTyped } from "../../live/use-typed";
import { visible } from "../../output/visible";
import { Empty, Failure, Loading } from "../../ui/answers";
import { Button, LinkButton } from "../../ui/button";
import { Page } from "../../ui/page";
import { quoted, Same } from "../../ui/same";
import { Table, type Column } from "../../ui/table";
import { Time } from "../../ui/time";
import { UserInput, useUserId } from "../../ui/user-input";
import { number, plural } from "../../ui/words";
import { Bar } from "../batch/progress";
import { BatchState, failures } from "../batch/state";
import { textOf } from "../history/query";
import "../batch/page.css";
import "./page.css";

const PAGE_SIZE = 100;
const DEFAULTS = { name: "", state: "", by: "", schedule: "" };
type Filter = typeof DEFAULTS;
const STATES = [
  ["", "Every state"],
  ["running,stopping", "Running"],
  ["scheduled", "Scheduled"],
  ["finished", "Finished"],
  ["cancelled", "Cancelled"],
] as const;

/** How a batch went, in words: `3 of 40 servers failed`. */
function outcome({ counts, state }: Batch): string {
  const { total, success } = counts;
  const bad = failures(counts);
  if (bad > 0) return `${number(bad)} of ${plural(total, "server")} failed`;
  if (counts.skipped > 0 && state === "finished") return `${number(counts.skipped)} of ${plural(total, "server")} skipped`;
  if (success === total) return total === 1 ? "success" : `success on all ${plural(total, "server")}`;
  return state === "scheduled" ? plural(total, "server") : `${number(success)} of ${plural(total, "server")}`;
}

const columns: readonly Column<Batch>[] = [
  { name: "state", title: "State", width: "104px", cell: (batch) => <BatchState batch={batch} /> },
  {
    name: "name",
    title: "Batch",
    width: "minmax(0, 2fr)",
    card: "title",
    cell: ({ id, name, line }) => (
      <Link to={`/batches/${id}`} title={visible(line)} className={name ? "" : "mono"}>
        {visible(name || line)}
      </Link>
    ),
  },
  {
    name: "line",
    title: "Command",
    width: "minmax(0, 2fr)",
    card: "none",
    cell: ({ name, line }) => name && <span className="mono muted">{visible(line)}</span>,
  },
  { name: "progress", title: "Progress", width: "110px", card: "none", cell: ({ counts }) => <Bar counts={counts} /> },
  { name: "outcome", title: "Outcome", width: "minmax(0, 1.4fr)", cell: outcome },
  { name: "by", title: "By", width: "minmax(0, 0.7fr)", cell: ({ requested_by }) => requested_by?.username ?? "–" },
  { name: "start", title: "Started", width: "88px", card: "end", cell: ({ scheduled_at }) => <Time at={scheduled_at} /> },
];

export default function Batches() {
  const [filter, setFilter] = useAddress(DEFAULTS);
  const user = useUserId(filter.by);
  const isReady = filter.by === "" || typeof user === "number";
  const { name, state, schedule } = filter;
  const query = { ...(name && { name }), ...(state && { state }), ...(schedule && { schedule }), ...(typeof user === "number" && { requested_by: user }) };
  const list = usePages<Batch>(PAGE_SIZE, (page) => ({ ...batches({ ...query, page, page_size: PAGE_SIZE }), enabled: isReady }));
  const count = isReady ? list.count : user === null ? 0 : undefined;
  const isFiltered = Object.values(filter).some((value) => value !== "");
  return (
    <Page
      title="Batches"
      heading={<>Batches {count !== undefined && <span className="muted">{number(count)}</span>}</>}
      actions={
        <LinkButton look="primary" to="/run">
          Run on many servers
        </LinkButton>
      }
    >
      <Filters filter={filter} onChange={setFilter} />
      {list.problem ? (
        <Failure problem={list.problem} retry={list.retry} />
      ) : count === undefined ? (
        <Loading />
      ) : count === 0 ? (
        <Empty title={isFiltered ? "No batch matches" : "No batch has run"}>
          {isFiltered ? (
            <Button onClick={() => setFilter(DEFAULTS)}>Show all batches</Button>
          ) : (
            <p>A batch runs one command on many servers, and shows which of them answered differently.</p>
          )}
        </Empty>
      ) : (
        <Table label="Batches" columns={columns} count={count} at={list.at} keyOf={({ id }) => id} onRange={list.show} markOf={({ state }) => state} />
      )}
      <Same
        method="GET"
        path={`/api/events/batches/?${textOf(query)}`}
        farhand={
          filter.by || schedule
            ? `farhand api GET ${quoted(`/api/events/batches/?${textOf(query)}`)}`
            : ["farhand batch list", state && `--state ${state}`, name && `--name ${quoted(name)}`].filter(Boolean).join(" ")
        }
      />
    </Page>
  );
}

function Filters({ filter, onChange }: { filter: Filter; onChange: (changes: Partial<Filter>) => void }) {
  const [name, setName] = useTyped(filter.name, (value) => onChange({ name: value }));
  return (
    <div className="toolbar" role="search">
      <input className="grow" type="search" aria-label="Exact name" placeholder="Exact name" value={name} onChange={(event) => setName(event.target.value)} />
      <select className="narrow" aria-label="State" value={filter.state} onChange={(event) => onChange({ state: event.target.value })}>
        {STATES.map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
      <UserInput className="narrow" label="Requested by" value={filter.by} onChange={(by) => onChange({ by })} />
      {filter.schedule && (
        <span className="picked">
          <Link to={`/schedules/${filter.schedule}`}>of one schedule</Link>
          <Button look="quiet" aria-label="Not only of one schedule" onClick={() => onChange({ schedule: "" })}>
            ×
          </Button>
        </span>
      )}
    </div>
  );
}
