import { Link } from "react-router";
import { commands, type Command } from "../../api/queries";
import { useAddress } from "../../live/use-address";
import { usePages } from "../../live/use-pages";
import { useTyped } from "../../live/use-typed";
import { visible } from "../../output/visible";
import { Empty, Failure, Loading } from "../../ui/answers";
import { Button, LinkButton } from "../../ui/button";
import { MoreFilters } from "../../ui/more-filters";
import { Page } from "../../ui/page";
import { Same } from "../../ui/same";
import { ServerPicker } from "../../ui/server-picker";
import { State } from "../../ui/state";
import { Table, type Column } from "../../ui/table";
import { Since, Time } from "../../ui/time";
import { TimeInput } from "../../ui/time-input";
import { UserInput, useUserId } from "../../ui/user-input";
import { duration, number } from "../../ui/words";
import { asFarhand, DEFAULTS, ONLY, queryOf, STATES, textOf, type Filter } from "./query";

const PAGE_SIZE = 100;
const SHELLS = [
  ["", "Every shell"],
  ["system", "Shell of the system"],
  ["internal", "Internal"],
] as const;

const columns: readonly Column<Command>[] = [
  { name: "state", title: "State", width: "104px", cell: ({ state }) => <State state={state} /> },
  {
    name: "line",
    title: "Command",
    width: "minmax(0, 3fr)",
    card: "title",
    cell: ({ id, line }) => (
      <Link to={`/commands/${id}`} className="mono" title={visible(line)}>
        {visible(line)}
      </Link>
    ),
  },
  { name: "server", title: "Server", width: "minmax(0, 1fr)", cell: ({ server, server_name }) => <Link to={`/servers/${server}`}>{server_name}</Link> },
  { name: "by", title: "By", width: "minmax(0, 0.8fr)", cell: ({ requested_by }) => requested_by?.username ?? <span className="muted">deleted user</span> },
  { name: "as", title: "As", width: "minmax(0, 0.6fr)", card: "none", cell: ({ username }) => username },
  { name: "exit", title: "Exit", width: "44px", card: "none", cell: ({ exit_code }) => <span className="number">{exit_code ?? ""}</span> },
  {
    name: "ran",
    title: "Ran",
    width: "64px",
    card: "none",
    cell: ({ state, acked_at, elapsed_time }) =>
      state === "acked" && acked_at ? <Since at={acked_at} /> : elapsed_time === null ? "" : <span className="number">{duration(elapsed_time)}</span>,
  },
  { name: "due", title: "Due", width: "88px", orderBy: "scheduled_at", card: "end", cell: ({ scheduled_at }) => <Time at={scheduled_at} /> },
  { name: "ended", title: "Ended", width: "88px", orderBy: "handled_at", card: "none", cell: ({ handled_at }) => <Time at={handled_at} /> },
];

export default function History() {
  const [filter, setFilter] = useAddress(DEFAULTS);
  const user = useUserId(filter.by);
  const query = queryOf(filter, user ?? undefined);
  const isUnknown = user === null;
  // A name that is being looked up must not show the commands of all users.
  const isReady = filter.by === "" || typeof user === "number";
  const list = usePages<Command>(PAGE_SIZE, (page) => ({ ...commands({ ...query, page, page_size: PAGE_SIZE }), enabled: isReady }));
  const count = isReady ? list.count : isUnknown ? 0 : undefined;
  const isFiltered = Object.entries(DEFAULTS).some(([name, value]) => name !== "ordering" && filter[name as keyof Filter] !== value);
  return (
    <Page
      title="History"
      heading={<>History {count !== undefined && <span className="muted">{number(count)}</span>}</>}
      actions={isFiltered && <Button onClick={() => setFilter({ ...DEFAULTS, ordering: filter.ordering })}>Clear the filters</Button>}
    >
      <Filters filter={filter} onChange={setFilter} />
      {list.problem ? (
        <Failure problem={list.problem} retry={list.retry} />
      ) : count === undefined ? (
        <Loading />
      ) : count === 0 ? (
        <Nothing isFiltered={isFiltered} unknown={isUnknown ? filter.by : null} />
      ) : (
        <Table
          label="Commands"
          columns={columns}
          count={count}
          at={list.at}
          keyOf={({ id }) => id}
          onRange={list.show}
          ordering={filter.ordering}
          onOrdering={(ordering) => setFilter({ ordering })}
          markOf={({ state }) => state}
        />
      )}
      <Same method="GET" path={`/api/events/commands/?${textOf(query)}`} farhand={asFarhand(filter, query)} />
    </Page>
  );
}

function Filters({ filter, onChange }: { filter: Filter; onChange: (changes: Partial<Filter>) => void }) {
  const [search, setSearch] = useTyped(filter.search, (value) => onChange({ search: value }));
  const [account, setAccount] = useTyped(filter.as, (value) => onChange({ as: value }));
  const [exit, setExit] = useTyped(filter.exit, (value) => onChange({ exit: value }));
  const states = STATES.some(([value]) => value === filter.state) ? STATES : [...STATES, [filter.state, filter.state.replaceAll(",", ", ")] as const];
  const options = (list: readonly (readonly [string, string])[]) =>
    list.map(([value, text]) => (
      <option key={value} value={value}>
        {text}
      </option>
    ));
  return (
    <div className="toolbar" role="search">
      <input
        className="grow"
        type="search"
        aria-label="Search"
        placeholder="Server, line or user"
        value={search}
        onChange={(event) => setSearch(event.target.value)}
      />
      <ServerPicker className="narrow" value={filter.server} onChange={(server) => onChange({ server })} />
      <select className="narrow" aria-label="State" value={filter.state} onChange={(event) => onChange({ state: event.target.value })}>
        {options(states)}
      </select>
      <MoreFilters inUse={[filter.by, filter.as, filter.exit, filter.since, filter.until, filter.shell, filter.only].filter((value) => value !== "").length}>
        <UserInput className="narrow" label="Requested by" value={filter.by} onChange={(by) => onChange({ by })} />
        <input
          className="narrow"
          type="text"
          aria-label="Account"
          placeholder="Account"
          autoComplete="off"
          autoCapitalize="none"
          spellCheck={false}
          value={account}
          onChange={(event) => setAccount(event.target.value)}
        />
        <input
          className="narrow"
          type="text"
          inputMode="numeric"
          aria-label="Exit code"
          placeholder="Exit code"
          autoComplete="off"
          value={exit}
          onChange={(event) => setExit(event.target.value)}
        />
        <TimeInput label="Since" value={filter.since} onChange={(since) => onChange({ since })} />
        <TimeInput label="Until" value={filter.until} onChange={(until) => onChange({ until })} />
        <select className="narrow" aria-label="Shell" value={filter.shell} onChange={(event) => onChange({ shell: event.target.value })}>
          {options(SHELLS)}
        </select>
        <select className="narrow" aria-label="Kind" value={filter.only} onChange={(event) => onChange({ only: event.target.value })}>
          {options(ONLY)}
        </select>
      </MoreFilters>
      {filter.batch && <Part name="of one batch" to={`/batches/${filter.batch}`} onClear={() => onChange({ batch: "" })} />}
      {filter.schedule && <Part name="of one schedule" to={`/schedules/${filter.schedule}`} onClear={() => onChange({ schedule: "" })} />}
    </div>
  );
}

/** A filter that only links set. */
function Part({ name, to, onClear }: { name: string; to: string; onClear: () => void }) {
  return (
    <span className="picked">
      <Link to={to}>{name}</Link>
      <Button look="quiet" aria-label={`Not only ${name}`} onClick={onClear}>
        ×
      </Button>
    </span>
  );
}

function Nothing({ isFiltered, unknown }: { isFiltered: boolean; unknown: string | null }) {
  if (unknown !== null) return <Empty title={`There is no user ${unknown}`} />;
  if (isFiltered) return <Empty title="No command matches">Change or clear the filters above.</Empty>;
  return (
    <Empty title="No command has run">
      <LinkButton look="primary" to="/run">
        Run a command
      </LinkButton>
    </Empty>
  );
}
