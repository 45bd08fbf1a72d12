import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { Link } from "react-router";
import { api, read } from "../../api/client";
import * as session from "../../api/session";
import { me, type User } from "../../api/queries";
import { ActionError, Answer } from "../../ui/answers";
import { Button } from "../../ui/button";
import { errorsFor, TextField } from "../../ui/field";
import { Page } from "../../ui/page";
import { Same } from "../../ui/same";
import { toast } from "../../ui/toasts";
import { useEdits } from "../../ui/use-edits";

/** The own account: names, e-mail address, password. */
export default function Settings() {
  const query = useQuery(me());
  return (
    <Page title="Settings">
      <Answer query={query}>
        {(user) => (
          <div className="stack">
            <Account user={user} />
            <Password username={user.username} />
            <p className="muted">
              <Link to="/sessions">Your sessions</Link> and <Link to="/tokens">your API tokens</Link> have pages of their own. The theme is in the menu with
              your name.
            </p>
          </div>
        )}
      </Answer>
      <Same method="PATCH" path="/api/iam/users/-/" body={{ first_name: "Ada" }} farhand={`farhand api PATCH /api/iam/users/-/ -d '{"first_name": "Ada"}'`} />
    </Page>
  );
}

function Account({ user }: { user: User }) {
  const client = useQueryClient();
  const { first_name, last_name, email } = user;
  const { field, changes, isChanged, clear } = useEdits({ first_name, last_name, email });
  const [password, setPassword] = useState("");
  const save = useMutation({
    mutationFn: () => read(api.PATCH("/api/iam/users/-/", { body: { ...changes, ...(changes.email !== undefined && { password }) } })),
    onSuccess: (changed) => {
      client.setQueryData(me().queryKey, changed);
      void client.invalidateQueries({ queryKey: ["users"] });
      setPassword("");
      clear();
      toast("Your account is changed.");
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!save.isPending) save.mutate();
  };
  return (
    <section className="panel" aria-label="Account">
      <h2>{user.username}</h2>
      <form className="panel-body form" onSubmit={submit}>
        <TextField label="First name" autoComplete="given-name" {...field("first_name", save.error)} />
        <TextField label="Last name" autoComplete="family-name" {...field("last_name", save.error)} />
        <TextField label="E-mail address" type="email" autoComplete="email" required {...field("email", save.error)} />
        {changes.email !== undefined && (
          <TextField
            label="Current password"
            type="password"
            autoComplete="current-password"
            required
            hint="For a new e-mail address."
            value={password}
            errors={errorsFor(save.error, "password")}
            onChange={(event) => setPassword(event.target.value)}
          />
        )}
        <ActionError error={save.error} />
        <div>
          <Button look="primary" type="submit" isBusy={save.isPending} disabled={!isChanged}>
            Save
          </Button>
        </div>
      </form>
    </section>
  );
}

function Password({ username }: { username: string }) {
  const [current, setCurrent] = useState("");
  const [next, setNext] = useState("");
  const [again, setAgain] = useState("");
  const kind = session.useSession().session?.kind;
  const differs = again !== "" && next !== again;
  const save = useMutation({
    mutationFn: async () => {
      await read(api.POST("/api/auth/change-password/", { body: { password: current, new_password: next } }));
      // The change has ended all sessions, this one too, unless it uses an API token.
      if (kind === "login") {
        const { token } = await read(api.POST("/api/auth/login/", { body: { username, password: next } }));
        session.begin({ token, kind });
      }
    },
    onSuccess: () => {
      setCurrent("");
      setNext("");
      setAgain("");
      toast("Your password is changed. Your other sessions have ended.");
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!differs && !save.isPending) save.mutate();
  };
  return (
    <section className="panel" aria-label="Password">
      <h2>Password</h2>
      <form className="panel-body form" onSubmit={submit}>
        <TextField
          label="Current password"
          type="password"
          autoComplete="current-password"
          required
          value={current}
          errors={errorsFor(save.error, "password")}
          onChange={(event) => setCurrent(event.target.value)}
        />
        <TextField
          label="New password"
          type="password"
          autoComplete="new-password"
          required
          hint="At least 8 characters, not a common one."
          value={next}
          errors={errorsFor(save.error, "new_password")}
          onChange={(event) => setNext(event.target.value)}
        />
        <TextField
          label="New password again"
          type="password"
          autoComplete="new-password"
          required
          value={again}
          errors={differs ? ["This is not the same password."] : []}
          onChange={(event) => setAgain(event.target.value)}
        />
        <ActionError error={save.error} />
        <div>
          <Button type="submit" isBusy={save.isPending}>
            Change the password
          </Button>
        </div>
      </form>
    </section>
  );
}
