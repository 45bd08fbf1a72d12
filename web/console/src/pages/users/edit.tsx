import { queryOptions, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, read } from "../../api/client";
import type { User } from "../../api/queries";
import { ActionError, Answer, Empty } from "../../ui/answers";
import { Button } from "../../ui/button";
import { Confirm } from "../../ui/dialog";
import { errorsFor, TextField } from "../../ui/field";
import { toast } from "../../ui/toasts";
import { useAttention } from "../../ui/use-attention";
import { useEdits } from "../../ui/use-edits";
import { mayChange, RankField, rankFields, rankOf, type Rank } from "./rank";

const user = (id: number) =>
  queryOptions({
    queryKey: ["user", id],
    queryFn: ({ signal }) => read(api.GET("/api/iam/users/{id}/", { params: { path: { id } }, signal })),
  });

interface EditProps {
  id: number;
  caller: User;
  onClose: () => void;
}

/** Changes a user: names, address, rank, whether active; and sets a password. */
export function EditUser({ id, ...rest }: EditProps) {
  const query = useQuery(user(id));
  const element = useAttention<HTMLElement>(id);
  return (
    <section className="panel user-panel" aria-label="Change a user" ref={element} tabIndex={-1}>
      <Answer query={query}>
        {(found) => (mayChange(rest.caller, found) ? <Form user={found} {...rest} /> : <Empty title={`Only superusers change ${found.username}`} />)}
      </Answer>
    </section>
  );
}

function Form({ user: found, caller, onClose }: { user: User; caller: User; onClose: () => void }) {
  const client = useQueryClient();
  const { id, username } = found;
  const { email, first_name, last_name } = found;
  const { field, changes, isChanged } = useEdits({ email, first_name, last_name });
  const [chosen, setRank] = useState<Rank | null>(null);
  const rank = chosen ?? rankOf(found);
  const [asked, setAsked] = useState<"delete" | "deactivate" | null>(null);
  const path = { id };
  const done = (text: string) => {
    void client.invalidateQueries({ queryKey: ["users"] });
    void client.invalidateQueries({ queryKey: ["user", id] });
    toast(text);
  };
  const save = useMutation({
    mutationFn: () => read(api.PATCH("/api/iam/users/{id}/", { params: { path }, body: { ...changes, ...(rank !== rankOf(found) && rankFields(rank)) } })),
    onSuccess: () => {
      done(`${username} is changed.`);
      onClose();
    },
  });
  const setActive = async (is_active: boolean) => {
    await read(api.PATCH("/api/iam/users/{id}/", { params: { path }, body: { is_active } }));
    done(is_active ? `${username} is active.` : `${username} is deactivated.`);
  };
  const activate = useMutation({ mutationFn: () => setActive(true) });
  const remove = async () => {
    await read(api.DELETE("/api/iam/users/{id}/", { params: { path } }));
    done(`${username} is deleted.`);
    onClose();
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!save.isPending) save.mutate();
  };
  return (
    <>
      <header>
        <h2>{username}</h2>
        <Button look="quiet" onClick={onClose}>
          Close
        </Button>
      </header>
      <form className="panel-body user-form" onSubmit={submit}>
        <TextField label="E-mail address" type="email" required {...field("email", save.error)} />
        <TextField label="First name" {...field("first_name", save.error)} />
        <TextField label="Last name" {...field("last_name", save.error)} />
        <RankField caller={caller} value={rank} onChange={setRank} errors={[...errorsFor(save.error, "is_staff"), ...errorsFor(save.error, "is_superuser")]} />
        <div className="user-wide">
          {rank === "user" && rankOf(found) !== "user" && (
            <p className="tone-wait">Without the rank, {username} loses all sessions and the servers that they own.</p>
          )}
          <ActionError error={save.error ?? activate.error} />
          <div className="row-of">
            <Button look="primary" type="submit" isBusy={save.isPending} disabled={!isChanged && rank === rankOf(found)}>
              Save
            </Button>
            {found.is_active ? (
              <Button onClick={() => setAsked("deactivate")}>Deactivate</Button>
            ) : (
              <Button isBusy={activate.isPending} onClick={() => activate.mutate()}>
                Activate
              </Button>
            )}
            <Button look="danger" onClick={() => setAsked("delete")}>
              Delete
            </Button>
          </div>
        </div>
      </form>
      {caller.is_superuser && <SetPassword username={username} />}
      <Confirm
        title={`Deactivate ${username}?`}
        isOpen={asked === "deactivate"}
        onClose={() => setAsked(null)}
        verb={`Deactivate ${username}`}
        action={() => setActive(false)}
      >
        <p>Their sessions end, and their API tokens and schedules are disabled.</p>
      </Confirm>
      <Confirm
        title={`Delete ${username}?`}
        isOpen={asked === "delete"}
        onClose={() => setAsked(null)}
        verb={`Delete ${username}`}
        typed={username}
        action={remove}
      >
        <p>Their sessions and API tokens are deleted immediately. Their commands stay in the history.</p>
      </Confirm>
    </>
  );
}

function SetPassword({ username }: { username: string }) {
  const [password, setPassword] = useState("");
  const save = useMutation({
    mutationFn: () => read(api.PUT("/api/users/users/{username}/", { params: { path: { username } }, body: { password } })),
    onSuccess: () => {
      setPassword("");
      toast(`${username} has a new password.`);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!save.isPending) save.mutate();
  };
  return (
    <form className="panel-body user-form user-password" onSubmit={submit} aria-label={`Password of ${username}`}>
      <TextField
        label="New password"
        type="password"
        autoComplete="new-password"
        required
        value={password}
        errors={errorsFor(save.error, "password")}
        hint="Ends the sessions of the user."
        onChange={(event) => setPassword(event.target.value)}
      />
      <div className="user-wide">
        {errorsFor(save.error, "password").length === 0 && <ActionError error={save.error} />}
        <Button type="submit" isBusy={save.isPending}>
          Set the password
        </Button>
      </div>
    </form>
  );
}
