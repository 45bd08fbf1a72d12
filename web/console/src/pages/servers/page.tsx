import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useState } from "react";
import { Link } from "react-router";
import { isStaff, me, servers, type Server } from "../../api/queries";
import { useAddress } from "../../live/use-address";
import { useGroupNames } from "../../live/use-all";
import { usePages } from "../../live/use-pages";
import { Empty, Failure, Loading } from "../../ui/answers";
import { Button, LinkButton } from "../../ui/button";
import { Dialog } from "../../ui/dialog";
import { Labels } from "../../ui/labels";
import { Page } from "../../ui/page";
import { quoted, Same } from "../../ui/same";
import { stateOf, system } from "../../ui/server-words";
import { Mark } from "../../ui/state";
import { Table, type Column } from "../../ui/table";
import { Time } from "../../ui/time";
import { number } from "../../ui/words";
import { AddServer } from "./add-server";
import { Filters } from "./filters";
import { MEANINGS, modeOf } from "./policy";
import { DEFAULTS, queryOf } from "./query";
import { SelectionBar } from "./selection-bar";
import { useSelection } from "./use-selection";
import "./page.css";

const PAGE_SIZE = 200;
/** The columns of the list. `groupNames` are the names of groups by their ids. */
const columnsOf = (groupNames: ReadonlyMap<number, string>): readonly Column<Server>[] => [
  {
    name: "name",
    title: "Name",
    width: "minmax(140px, 1.6fr)",
    orderBy: "name",
    card: "title",
    cell: (server) => (
      <span className="server-name">
        <Mark state={stateOf(server)} />
        <span className="visually-hidden">{stateOf(server)}</span>
        <Link to={`/servers/${server.id}`} className="ellipsis">
          {server.name}
        </Link>
        {server.policy?.mode === "none" && (
          <span className="chip tone-wait" title={MEANINGS.none}>
            no policy
          </span>
        )}
      </span>
    ),
  },
  { name: "labels", title: "Labels", width: "minmax(0, 2fr)", card: "line", cell: ({ labels }) => <Labels labels={labels} /> },
  ...(groupNames.size > 0
    ? [
        {
          name: "groups",
          title: "Groups",
          width: "minmax(0, 1fr)",
          cell: ({ groups }: Server) => groups.map((id) => groupNames.get(id) ?? `group ${id}`).join(", "),
        },
      ]
    : []),
  { name: "system", title: "System", width: "minmax(0, 1fr)", cell: system },
  { name: "load", title: "Load", width: "56px", card: "none", cell: ({ load }) => <span className="number">{load === null ? "–" : load.toFixed(2)}</span> },
  { name: "address", title: "Address", width: "128px", card: "none", cell: ({ remote_ip }) => <span className="mono">{remote_ip ?? "–"}</span> },
  { name: "agent", title: "Agent", width: "72px", card: "none", cell: ({ agent_version }) => agent_version ?? "–" },
  {
    name: "seen",
    title: "Last seen",
    width: "88px",
    orderBy: "last_seen_at",
    card: "end",
    cell: ({ is_connected, last_seen_at }) => (is_connected ? "now" : last_seen_at ? <Time at={last_seen_at} /> : <span className="muted">never</span>),
  },
];

export default function Servers() {
  const [filter, setFilter] = useAddress(DEFAULTS);
  const [isAdding, setIsAdding] = useState(false);
  const client = useQueryClient();
  const staff = isStaff(useQuery(me()).data);
  const groupNames = useGroupNames();
  const query = queryOf(filter);
  const list = usePages<Server>(PAGE_SIZE, (page) => servers({ ...query, page, page_size: PAGE_SIZE }));
  const selection = useSelection(list.at);
  const isFiltered = filter.search !== "" || filter.label !== "" || filter.state !== "" || filter.policy !== "";
  const close = useCallback(() => {
    setIsAdding(false);
    void client.invalidateQueries({ queryKey: ["servers"] });
  }, [client]);
  const count = list.count;
  const asText = new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)])).toString();
  return (
    <Page
      title="Servers"
      heading={<>Servers {count !== undefined && <span className="muted">{number(count)}</span>}</>}
      actions={
        staff && (
          <>
            <LinkButton look="quiet" to="/servers/deleted">
              Deleted
            </LinkButton>
            <Button onClick={() => setIsAdding(true)}>Add servers</Button>
          </>
        )
      }
    >
      <Filters filter={filter} onChange={setFilter} problem={list.problem} />
      {list.problem && list.problem.fields["label"] === undefined ? (
        <Failure problem={list.problem} retry={list.retry} />
      ) : count === undefined ? (
        !list.problem && <Loading />
      ) : count === 0 ? (
        <Nothing isFiltered={isFiltered} staff={staff} onClear={() => setFilter(DEFAULTS)} />
      ) : (
        <>
          <SelectionBar selection={selection} filter={filter} count={count} />
          <Table
            label="Servers"
            columns={columnsOf(groupNames)}
            count={count}
            at={list.at}
            keyOf={({ id }) => id}
            nameOf={({ name }) => name}
            onRange={list.show}
            selection={selection}
            ordering={filter.ordering}
            onOrdering={(ordering) => setFilter({ ordering })}
            markOf={stateOf}
          />
        </>
      )}
      <Same
        method="GET"
        path={`/api/servers/?${asText}`}
        farhand={[
          "farhand servers",
          filter.search && `--search ${quoted(filter.search)}`,
          filter.label && `-l ${quoted(filter.label)}`,
          filter.state && (filter.state === "connected" ? "--connected" : "--offline"),
          modeOf(filter.policy) && `--policy ${filter.policy}`,
        ]
          .filter(Boolean)
          .join(" ")}
      />
      <Dialog title="Add servers" isOpen={isAdding} onClose={close}>
        <AddServer />
      </Dialog>
    </Page>
  );
}

function Nothing({ isFiltered, staff, onClear }: { isFiltered: boolean; staff: boolean; onClear: () => void }) {
  if (isFiltered) {
    return (
      <Empty title="No server matches">
        <Button onClick={onClear}>Show all servers</Button>
      </Empty>
    );
  }
  if (!staff) return <Empty title="You have no servers">Ask the staff of this workspace to add you to a group with servers.</Empty>;
  return (
    <Empty title="Connect your first server">
      <AddServer />
    </Empty>
  );
}
