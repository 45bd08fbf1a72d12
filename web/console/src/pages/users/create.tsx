import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, read } from "../../api/client";
import type { User } from "../../api/queries";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { errorsFor, TextField } from "../../ui/field";
import { toast } from "../../ui/toasts";
import { RankField, rankFields, type Rank } from "./rank";

export function CreateUser({ caller, onClose }: { caller: User; onClose: () => void }) {
  const client = useQueryClient();
  const [fields, setFields] = useState({ username: "", email: "", password: "", first_name: "", last_name: "" });
  const [rank, setRank] = useState<Rank>("user");
  const create = useMutation({
    mutationFn: () =>
      read(
        api.POST("/api/iam/users/", {
          body: { ...fields, username: fields.username.trim(), email: fields.email.trim(), ...(caller.is_superuser && rankFields(rank)) },
        }),
      ),
    onSuccess: ({ username }) => {
      void client.invalidateQueries({ queryKey: ["users"] });
      toast(`${username} can sign in.`);
      onClose();
    },
  });
  const field = (name: keyof typeof fields) => ({
    value: fields[name],
    errors: errorsFor(create.error, name),
    onChange: (event: { target: { value: string } }) => setFields((before) => ({ ...before, [name]: event.target.value })),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!create.isPending) create.mutate();
  };
  return (
    <section className="panel user-panel" aria-label="Create a user">
      <h2>Create a user</h2>
      <form className="panel-body user-form" onSubmit={submit}>
        <TextField
          label="Username"
          required
          autoFocus
          autoCapitalize="none"
          hint="An account name of UNIX. Commands without an account run as it."
          {...field("username")}
        />
        <TextField label="E-mail address" type="email" required {...field("email")} />
        <TextField
          label="Password"
          type="password"
          autoComplete="new-password"
          required
          hint="At least 8 characters. The user can change it."
          {...field("password")}
        />
        <TextField label="First name" {...field("first_name")} />
        <TextField label="Last name" {...field("last_name")} />
        <RankField
          caller={caller}
          value={rank}
          onChange={setRank}
          errors={[...errorsFor(create.error, "is_staff"), ...errorsFor(create.error, "is_superuser")]}
        />
        <div className="user-wide">
          <ActionError error={create.error} />
          <div className="row-of">
            <Button look="primary" type="submit" isBusy={create.isPending}>
              Create the user
            </Button>
            <Button onClick={onClose}>Back</Button>
          </div>
        </div>
      </form>
    </section>
  );
}
