import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import type { Schema } from "../../api/client";
import { isStaff, me, scripts } from "../../api/queries";
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
import { bytes, number } from "../../ui/words";

type Script = Schema<"ScriptPage">["results"][number];
const PAGE_SIZE = 100;
const DEFAULTS = { search: "" };

const columns: readonly Column<Script>[] = [
  { name: "name", title: "Name", width: "minmax(0, 1fr)", card: "title", cell: ({ id, name }) => <Link to={`/scripts/${id}`}>{visible(name)}</Link> },
  { name: "description", title: "Description", width: "minmax(0, 2fr)", cell: ({ description }) => visible(description) },
  { name: "interpreter", title: "Interpreter", width: "140px", cell: ({ interpreter }) => <span className="mono">{interpreter}</span> },
  {
    name: "params",
    title: "Parameters",
    width: "minmax(0, 1fr)",
    card: "none",
    cell: ({ params }) => <span className="mono muted">{params.map(({ name }) => name).join(", ")}</span>,
  },
  { name: "size", title: "Size", width: "72px", card: "none", cell: ({ body_bytes }) => <span className="number">{bytes(body_bytes)}</span> },
  { name: "version", title: "Version", width: "64px", cell: ({ version }) => <span className="number">v{version}</span> },
  { name: "updated", title: "Changed", width: "80px", card: "labelled", cell: ({ updated_at }) => <Time at={updated_at} /> },
];

export default function Scripts() {
  const [filter, setFilter] = useAddress(DEFAULTS);
  const staff = isStaff(useQuery(me()).data);
  const [search, setSearch] = useTyped(filter.search, (value) => setFilter({ search: value }));
  const query = filter.search ? { search: filter.search } : {};
  const list = usePages<Script>(PAGE_SIZE, (page) => scripts({ ...query, page, page_size: PAGE_SIZE }));
  const { count } = list;
  const create = staff && (
    <LinkButton look="primary" to="/scripts/new">
      Create a script
    </LinkButton>
  );
  return (
    <Page title="Scripts" heading={<>Scripts {count !== undefined && <span className="muted">{number(count)}</span>}</>} actions={create}>
      <div className="toolbar" role="search">
        <input
          className="grow"
          type="search"
          aria-label="Search"
          placeholder="Name or description"
          value={search}
          onChange={(event) => setSearch(event.target.value)}
        />
      </div>
      {list.problem ? (
        <Failure problem={list.problem} retry={list.retry} />
      ) : count === undefined ? (
        <Loading />
      ) : count === 0 ? (
        <Empty title={filter.search ? "No script matches" : "There is no script"}>
          {filter.search ? (
            <Button onClick={() => setFilter(DEFAULTS)}>Show all scripts</Button>
          ) : (
            <p>A script is a program that the workspace keeps, with versions and parameters. {!staff && "Staff write them."}</p>
          )}
        </Empty>
      ) : (
        <Table label="Scripts" columns={columns} count={count} at={list.at} keyOf={({ id }) => id} onRange={list.show} />
      )}
      <Same
        method="GET"
        path={`/api/events/scripts/${filter.search ? `?search=${encodeURIComponent(filter.search)}` : ""}`}
        farhand={filter.search ? `farhand scripts list --search ${quoted(filter.search)}` : "farhand scripts list"}
      />
    </Page>
  );
}
