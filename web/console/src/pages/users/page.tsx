import { useQuery } from "@tanstack/react-query";
import { isRefused } from "../../api/problem";
import { isStaff, me, users, type User } from "../../api/queries";
import { useAddress } from "../../live/use-address";
import { usePages } from "../../live/use-pages";
import { useTyped } from "../../live/use-typed";
import { visible } from "../../output/visible";
import { Empty, Failure, Loading } from "../../ui/answers";
import { Button } from "../../ui/button";
import { Page } from "../../ui/page";
import { quoted, Same } from "../../ui/same";
import { State } from "../../ui/state";
import { Table, type Column } from "../../ui/table";
import { Time } from "../../ui/time";
import { number } from "../../ui/words";
import { CreateUser } from "./create";
import { EditUser } from "./edit";
import { mayChange, rankOf } from "./rank";
import "./page.css";

const PAGE_SIZE = 100;
const DEFAULTS = { search: "", active: "", new: "", open: "" };

const columnsFor = (caller: User | undefined, open: (user: User) => void): readonly Column<User>[] => [
  {
    name: "username",
    title: "Username",
    width: "minmax(0, 1fr)",
    card: "title",
    cell: (user) =>
      caller && mayChange(caller, user) ? (
        <button type="button" className="link" onClick={() => open(user)}>
          {user.username}
        </button>
      ) : (
        user.username
      ),
  },
  { name: "name", title: "Name", width: "minmax(0, 1fr)", cell: ({ first_name, last_name }) => visible([first_name, last_name].filter(Boolean).join(" ")) },
  { name: "email", title: "E-mail", width: "minmax(0, 1.5fr)", cell: ({ email }) => visible(email) },
  { name: "rank", title: "Rank", width: "88px", cell: rankOf },
  {
    name: "state",
    title: "State",
    width: "96px",
    cell: ({ is_active }) => <State state={is_active ? "connected" : "offline"}>{is_active ? "active" : "inactive"}</State>,
  },
  { name: "login", title: "Last login", width: "88px", card: "labelled", cell: ({ last_login }) => <Time at={last_login} /> },
  { name: "joined", title: "Joined", width: "88px", card: "none", cell: ({ date_joined }) => <Time at={date_joined} /> },
];

export default function Users() {
  const [view, setView] = useAddress(DEFAULTS);
  const caller = useQuery(me()).data;
  const [search, setSearch] = useTyped(view.search, (value) => setView({ search: value }));
  const query = { ...(view.search && { search: view.search }), ...(view.active && { is_active: view.active === "true" }) };
  const list = usePages<User>(PAGE_SIZE, (page) => users({ ...query, page, page_size: PAGE_SIZE }));
  const { count } = list;
  // A limited API token manages nothing.
  const staff = isStaff(caller) && !isRefused(list.problem);
  const isCreating = view.new !== "" && staff;
  return (
    <Page
      title="Users"
      heading={<>Users {count !== undefined && <span className="muted">{number(count)}</span>}</>}
      actions={
        staff &&
        !isCreating && (
          <Button look="primary" onClick={() => setView({ new: "true", open: "" })}>
            Create a user
          </Button>
        )
      }
    >
      {isCreating && caller && <CreateUser caller={caller} onClose={() => setView({ new: "" })} />}
      {view.open !== "" && caller && staff && <EditUser key={view.open} id={Number(view.open)} caller={caller} onClose={() => setView({ open: "" })} />}
      <div className="toolbar" role="search">
        <input
          className="grow"
          type="search"
          aria-label="Search"
          placeholder="Username, name or e-mail address"
          value={search}
          onChange={(event) => setSearch(event.target.value)}
        />
        <select className="narrow" aria-label="State" value={view.active} onChange={(event) => setView({ active: event.target.value })}>
          <option value="">Every state</option>
          <option value="true">Active</option>
          <option value="false">Inactive</option>
        </select>
      </div>
      {list.problem ? (
        <Failure problem={list.problem} retry={list.retry} />
      ) : count === undefined ? (
        <Loading />
      ) : count === 0 ? (
        <Empty title="No user matches">
          <Button onClick={() => setView({ search: "", active: "" })}>Show all users</Button>
        </Empty>
      ) : (
        <Table
          label="Users"
          columns={columnsFor(caller, ({ id }) => setView({ open: String(id), new: "" }))}
          count={count}
          at={list.at}
          keyOf={({ id }) => String(id)}
          onRange={list.show}
        />
      )}
      <Same
        method="GET"
        path={`/api/iam/users/${view.search ? `?search=${encodeURIComponent(view.search)}` : ""}`}
        farhand={view.search ? `farhand users --search ${quoted(view.search)}` : "farhand users"}
      />
    </Page>
  );
}
