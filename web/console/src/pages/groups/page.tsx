import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { Link, useNavigate } from "react-router";
import { api, read, type Schema } from "../../api/client";
import { isRefused } from "../../api/problem";
import { groups, isStaff, me } from "../../api/queries";
import { useAddress } from "../../live/use-address";
import { usePages } from "../../live/use-pages";
import { useTyped } from "../../live/use-typed";
import { visible } from "../../output/visible";
import { ActionError, Empty, Failure, Loading } from "../../ui/answers";
import { Button } from "../../ui/button";
import { errorsFor, TextField } from "../../ui/field";
import { Page } from "../../ui/page";
import { Same } from "../../ui/same";
import { Table, type Column } from "../../ui/table";
import { number, plural } from "../../ui/words";
import "../users/page.css";

type Group = Schema<"Group">;
const PAGE_SIZE = 100;
const DEFAULTS = { search: "", new: "" };

const columns: readonly Column<Group>[] = [
  {
    name: "name",
    title: "Name",
    width: "minmax(0, 1fr)",
    card: "title",
    cell: ({ id, name, display_name }) => <Link to={`/groups/${id}`}>{visible(display_name || name)}</Link>,
  },
  { name: "key", title: "Key", width: "minmax(0, 0.8fr)", card: "none", cell: ({ name }) => <span className="mono">{name}</span> },
  { name: "members", title: "Members", width: "120px", cell: ({ num_members }) => plural(num_members, "member") },
  { name: "servers", title: "Servers", width: "120px", cell: ({ servers }) => plural(servers.length, "server") },
  {
    name: "description",
    title: "Description",
    width: "minmax(0, 2fr)",
    card: "none",
    cell: ({ description }) => <span className="muted">{visible(description)}</span>,
  },
];

export default function Groups() {
  const [view, setView] = useAddress(DEFAULTS);
  const user = useQuery(me()).data;
  const [search, setSearch] = useTyped(view.search, (value) => setView({ search: value }));
  const query = view.search ? { search: view.search } : {};
  const list = usePages<Group>(PAGE_SIZE, (page) => groups({ ...query, page, page_size: PAGE_SIZE }));
  const { count } = list;
  // A limited API token manages nothing.
  const staff = isStaff(user) && !isRefused(list.problem);
  const isCreating = staff && view.new !== "";
  return (
    <Page
      title="Groups"
      heading={<>Groups {count !== undefined && <span className="muted">{number(count)}</span>}</>}
      actions={
        staff &&
        !isCreating && (
          <Button look="primary" onClick={() => setView({ new: "true" })}>
            Create a group
          </Button>
        )
      }
    >
      {isCreating && <CreateGroup onClose={() => setView({ new: "" })} />}
      <div className="toolbar" role="search">
        <input className="grow" type="search" aria-label="Search" placeholder="Search" value={search} onChange={(event) => setSearch(event.target.value)} />
      </div>
      {list.problem ? (
        <Failure problem={list.problem} retry={list.retry} />
      ) : count === undefined ? (
        <Loading />
      ) : count === 0 ? (
        <Empty title={view.search ? "No group matches" : staff ? "There is no group" : "You are in no group"}>
          {view.search ? <Button onClick={() => setView({ search: "" })}>Show all groups</Button> : <p>The members of a group can access its servers.</p>}
        </Empty>
      ) : (
        <Table label="Groups" columns={columns} count={count} at={list.at} keyOf={({ id }) => String(id)} onRange={list.show} />
      )}
      <Same method="GET" path={`/api/iam/groups/${view.search ? `?search=${encodeURIComponent(view.search)}` : ""}`} farhand="farhand groups" />
    </Page>
  );
}

function CreateGroup({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [name, setName] = useState("");
  const [display, setDisplay] = useState("");
  const create = useMutation({
    mutationFn: () => read(api.POST("/api/iam/groups/", { body: { name: name.trim(), display_name: display.trim() } })),
    onSuccess: ({ id }) => {
      void client.invalidateQueries({ queryKey: ["groups"] });
      void navigate(`/groups/${id}`);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!create.isPending) create.mutate();
  };
  return (
    <section className="panel user-panel" aria-label="Create a group">
      <h2>Create a group</h2>
      <form className="panel-body user-form" onSubmit={submit}>
        <TextField
          label="Key"
          required
          autoFocus
          autoCapitalize="none"
          placeholder="web"
          hint="Lower-case letters, digits, hyphens, underscores and dots."
          value={name}
          errors={errorsFor(create.error, "name")}
          onChange={(event) => setName(event.target.value)}
        />
        <TextField
          label="Name"
          placeholder="Web team"
          value={display}
          errors={errorsFor(create.error, "display_name")}
          onChange={(event) => setDisplay(event.target.value)}
        />
        <div className="user-wide">
          <ActionError error={create.error} />
          <div className="row-of">
            <Button look="primary" type="submit" isBusy={create.isPending}>
              Create the group
            </Button>
            <Button onClick={onClose}>Back</Button>
          </div>
        </div>
      </form>
    </section>
  );
}
