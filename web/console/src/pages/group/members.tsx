import { useMutation, useQueries, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, read, type Schema } from "../../api/client";
import { liveAll, users, type User } from "../../api/queries";
import { ActionError, Answer } from "../../ui/answers";
import { Button } from "../../ui/button";
import { Confirm } from "../../ui/dialog";
import { errorsFor, SelectField } from "../../ui/field";
import { UserField } from "../../ui/user-input";
import { plural } from "../../ui/words";
import { memberships, type Membership, type Role } from "./memberships";

/** The number of members that are shown at first, and the number that each click adds. */
const STEP = 50;
const ROLES: readonly (readonly [Role, string])[] = [
  ["member", "Member"],
  ["manager", "Manager"],
  ["owner", "Owner"],
];

interface MembersProps {
  group: Schema<"Group">;
  /** What the caller may do, staff like an owner. */
  role: Role;
  user: User | undefined;
}

/**
 * The members of a group. Owners change all of them, managers add and remove members (contract
 * 5.4).
 */
export function Members({ group: { id }, role, user }: MembersProps) {
  const query = useQuery({ ...memberships(id), ...liveAll });
  const [most, setMost] = useState(STEP);
  const shown = query.data?.results.slice(0, most) ?? [];
  // A membership has only the id of its user.
  const names = useQueries({
    queries: shown.map(({ user: userId }) => ({
      queryKey: ["user", userId],
      queryFn: ({ signal }: { signal: AbortSignal }) => read(api.GET("/api/iam/users/{id}/", { params: { path: { id: userId } }, signal })),
      staleTime: 60_000,
    })),
  });
  return (
    <section className="panel" aria-label="Members">
      <h2>Members</h2>
      <Answer query={query}>
        {({ results }) => (
          <ul className="rows">
            {shown.map((membership, index) => (
              <Member
                key={membership.id}
                membership={membership}
                name={names[index]?.data?.username ?? "…"}
                role={role}
                isSelf={membership.user === user?.id}
              />
            ))}
            {results.length > most && (
              <li className="rows-head">
                <Button look="quiet" onClick={() => setMost(most + STEP)}>
                  and {plural(results.length - most, "more member")}
                </Button>
              </li>
            )}
          </ul>
        )}
      </Answer>
      {role !== "member" && <AddMember group={id} role={role} />}
    </section>
  );
}

function Member({ membership, name, role, isSelf }: { membership: Membership; name: string; role: Role; isSelf: boolean }) {
  const client = useQueryClient();
  const [isAsking, setIsAsking] = useState(false);
  const refresh = () => {
    void client.invalidateQueries({ queryKey: ["group", membership.group] });
    void client.invalidateQueries({ queryKey: ["groups"] });
  };
  const path = { id: membership.id };
  const change = useMutation({
    mutationFn: (next: Role) => read(api.PATCH("/api/iam/memberships/{id}/", { params: { path }, body: { role: next } })),
    onSuccess: refresh,
  });
  const remove = async () => {
    await read(api.DELETE("/api/iam/memberships/{id}/", { params: { path } }));
    refresh();
  };
  const mayRemove = isSelf || role === "owner" || (role === "manager" && membership.role === "member");
  return (
    <li>
      <div className="rows-head">
        <span className="rows-text">{name}</span>
        {role === "owner" ? (
          <select aria-label={`Role of ${name}`} className="role" value={membership.role} onChange={(event) => change.mutate(event.target.value as Role)}>
            {ROLES.map(([value, text]) => (
              <option key={value} value={value}>
                {text}
              </option>
            ))}
          </select>
        ) : (
          <span className="muted">{membership.role}</span>
        )}
        {mayRemove && (
          <Button look="quiet" aria-label={isSelf ? "Leave the group" : `Remove ${name}`} onClick={() => setIsAsking(true)}>
            {isSelf ? "Leave" : "Remove"}
          </Button>
        )}
      </div>
      {change.error && (
        <div className="rows-body">
          <ActionError error={change.error} />
        </div>
      )}
      <Confirm
        title={isSelf ? "Leave the group?" : `Remove ${name}?`}
        isOpen={isAsking}
        onClose={() => setIsAsking(false)}
        verb={isSelf ? "Leave" : `Remove ${name}`}
        action={remove}
      >
        <p>{isSelf ? "You lose" : `${name} loses`} the access to the servers of this group, unless another group gives it.</p>
      </Confirm>
    </li>
  );
}

function AddMember({ group, role }: { group: number; role: Role }) {
  const client = useQueryClient();
  const [username, setUsername] = useState("");
  const [given, setGiven] = useState<Role>("member");
  const add = useMutation({
    mutationFn: async () => {
      const user = (await client.fetchQuery(users({ username: username.trim(), page_size: 1 }))).results[0]?.id;
      if (user === undefined) throw new Error(`There is no user ${username.trim()}.`);
      return read(api.POST("/api/iam/memberships/", { body: { group, user, role: given } }));
    },
    onSuccess: () => {
      setUsername("");
      void client.invalidateQueries({ queryKey: ["group", group] });
      void client.invalidateQueries({ queryKey: ["groups"] });
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (username.trim() !== "" && !add.isPending) add.mutate();
  };
  return (
    <form className="panel-body member-form" onSubmit={submit}>
      <div className="field">
        <span className="field-name">Add a user</span>
        <UserField label="Username" value={username} onChange={setUsername} />
      </div>
      {role === "owner" && (
        <SelectField
          label="Role"
          options={ROLES}
          value={given}
          errors={errorsFor(add.error, "role")}
          onChange={(event) => setGiven(event.target.value as Role)}
        />
      )}
      <Button type="submit" isBusy={add.isPending}>
        Add
      </Button>
      <ActionError error={add.error} />
    </form>
  );
}
