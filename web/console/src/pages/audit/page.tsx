import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { api, read } from "../../api/client";
import { isStaff, me } from "../../api/queries";
import { useAddress } from "../../live/use-address";
import { usePages } from "../../live/use-pages";
import { useTyped } from "../../live/use-typed";
import { visible } from "../../output/visible";
import { Empty, Failure, Loading } from "../../ui/answers";
import { Button } from "../../ui/button";
import { MoreFilters } from "../../ui/more-filters";
import { Page } from "../../ui/page";
import { quoted, Same } from "../../ui/same";
import { State } from "../../ui/state";
import { Table, type Column } from "../../ui/table";
import { Time } from "../../ui/time";
import { TimeInput } from "../../ui/time-input";
import { number } from "../../ui/words";
import { textOf } from "../history/query";
import { EventDetails } from "./details";
import { lookOfOutcome, timesOf, type AuditEvent } from "./event";
import { Export } from "./export";
import { DEFAULTS, queryOf, type Filter } from "./query";
import { useVerify } from "./verify";
import "./page.css";

const PAGE_SIZE = 100;
const OUTCOMES = [
  ["", "Every outcome"],
  ["success", "Success"],
  ["failure", "Failure"],
  ["denied", "Denied"],
] as const;
/** Actions that are offered as completions. Any other can be typed. */
const ACTIONS = [
  "api_token.create",
  "api_token.delete",
  "api_token.update",
  "batch.cancel",
  "batch.create",
  "batch.kill",
  "batch.retry",
  "command.cancel",
  "command.create",
  "command.kill",
  "command.read",
  "group.create",
  "group.delete",
  "group.update",
  "membership.create",
  "membership.delete",
  "membership.update",
  "registration_token.create",
  "registration_token.delete",
  "schedule.create",
  "schedule.delete",
  "schedule.run",
  "schedule.update",
  "script.create",
  "script.delete",
  "script.update",
  "server.approve",
  "server.create",
  "server.delete",
  "server.register",
  "server.rotate_key",
  "server.update",
  "session.delete",
  "session.login",
  "session.logout",
  "user.change_password",
  "user.create",
  "user.delete",
  "user.request_reset",
  "user.reset_password",
  "user.set_password",
  "user.update",
];

const columnsFor = (open: (event: AuditEvent) => void): readonly Column<AuditEvent>[] => [
  { name: "time", title: "When", width: "136px", cell: ({ occurred_at }) => <Time at={occurred_at} form="second" /> },
  {
    name: "action",
    title: "Action",
    width: "minmax(0, 1.2fr)",
    card: "title",
    cell: (event) => (
      <button type="button" className="link mono" onClick={() => open(event)}>
        {event.action}
      </button>
    ),
  },
  {
    name: "outcome",
    title: "Outcome",
    width: "120px",
    cell: ({ outcome, details }) => <State state={lookOfOutcome(outcome)}>{`${outcome}${timesOf(details)}`}</State>,
  },
  {
    name: "actor",
    title: "Actor",
    width: "minmax(0, 1fr)",
    cell: ({ actor }) => (actor.name !== null ? visible(actor.name) : <span className="muted">{actor.type}</span>),
  },
  {
    name: "object",
    title: "Object",
    width: "minmax(0, 1.6fr)",
    cell: ({ object }) =>
      object && (
        <span title={object.id ?? ""}>
          <span className="muted">{object.type}</span> {visible(object.name ?? object.id ?? "")}
        </span>
      ),
  },
  { name: "ip", title: "Address", width: "128px", card: "none", cell: ({ remote_ip }) => <span className="mono">{remote_ip ?? "–"}</span> },
  {
    name: "link",
    title: "Entry",
    width: "72px",
    card: "none",
    cell: ({ link }) => <span className="number">{link === null ? <span className="muted">pending</span> : number(link)}</span>,
  },
];

export default function Audit() {
  const user = useQuery(me()).data;
  if (!user) return <Loading />;
  if (isStaff(user)) return <Log />;
  return (
    <Page title="Audit">
      <Empty title="Only staff read the audit log">Ask the staff of this workspace.</Empty>
    </Page>
  );
}

function Log() {
  const [filter, setFilter] = useAddress(DEFAULTS);
  const [open, setOpen] = useState<AuditEvent | null>(null);
  const query = queryOf(filter);
  const verification = useVerify();
  const list = usePages<AuditEvent>(PAGE_SIZE, (page) => ({
    queryKey: ["audit", query, page],
    queryFn: ({ signal }: { signal: AbortSignal }) =>
      read(api.GET("/api/audit/events/", { params: { query: { ...query, page, page_size: PAGE_SIZE } }, signal })),
  }));
  const { count } = list;
  const isFiltered = Object.values(filter).some((value) => value !== "");
  const options = [
    ["--actor", filter.actor],
    ["--action", filter.action],
    ["--object", filter.object],
    ["--outcome", filter.outcome],
    ["--since", filter.since],
    ["--until", filter.until],
  ] as const;
  return (
    <Page
      title="Audit"
      heading={<>Audit {count !== undefined && <span className="muted">{number(count)}</span>}</>}
      actions={
        <>
          {isFiltered && <Button onClick={() => setFilter(DEFAULTS)}>Clear the filters</Button>}
          <Export query={query} count={count ?? 0} />
          {verification.button}
        </>
      }
    >
      {verification.outcome}
      <Filters filter={filter} onChange={setFilter} />
      {list.problem ? (
        <Failure problem={list.problem} retry={list.retry} />
      ) : count === undefined ? (
        <Loading />
      ) : count === 0 ? (
        <Empty title="No event matches">Change or clear the filters above.</Empty>
      ) : (
        <div className={open ? "audit-columns" : ""}>
          <Table label="Audit events" columns={columnsFor(setOpen)} count={count} at={list.at} keyOf={({ id }) => id} onRange={list.show} />
          {open && <EventDetails event={open} onClose={() => setOpen(null)} onFilter={(changes) => setFilter(changes)} />}
        </div>
      )}
      <Same
        method="GET"
        path={`/api/audit/events/?${textOf(query)}`}
        farhand={["farhand audit list", ...options.filter(([, value]) => value !== "").map(([name, value]) => `${name} ${quoted(value)}`)].join(" ")}
      />
    </Page>
  );
}

function Filters({ filter, onChange }: { filter: Filter; onChange: (changes: Partial<Filter>) => void }) {
  const [actor, setActor] = useTyped(filter.actor, (value) => onChange({ actor: value }));
  const [action, setAction] = useTyped(filter.action, (value) => onChange({ action: value }));
  const [object, setObject] = useTyped(filter.object, (value) => onChange({ object: value }));
  const plain = { autoComplete: "off", autoCapitalize: "none", spellCheck: false } as const;
  return (
    <div className="toolbar" role="search">
      <input
        {...plain}
        className="grow"
        type="search"
        aria-label="Action"
        placeholder="Action, such as command.create"
        list="audit-actions"
        value={action}
        onChange={(event) => setAction(event.target.value)}
      />
      <datalist id="audit-actions">
        {ACTIONS.map((name) => (
          <option key={name} value={name} />
        ))}
      </datalist>
      <MoreFilters inUse={[filter.actor, filter.object, filter.outcome, filter.since, filter.until].filter((value) => value !== "").length}>
        <input
          {...plain}
          className="narrow"
          type="text"
          aria-label="Actor"
          placeholder="Actor"
          value={actor}
          onChange={(event) => setActor(event.target.value)}
        />
        <input
          {...plain}
          className="narrow mono"
          type="text"
          aria-label="Id of the object"
          placeholder="Id of the object"
          value={object}
          onChange={(event) => setObject(event.target.value)}
        />
        <select className="narrow" aria-label="Outcome" value={filter.outcome} onChange={(event) => onChange({ outcome: event.target.value })}>
          {OUTCOMES.map(([value, text]) => (
            <option key={value} value={value}>
              {text}
            </option>
          ))}
        </select>
        <TimeInput label="Since" value={filter.since} onChange={(since) => onChange({ since })} />
        <TimeInput label="Until" value={filter.until} onChange={(until) => onChange({ until })} />
      </MoreFilters>
    </div>
  );
}
