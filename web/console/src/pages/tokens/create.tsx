import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, read } from "../../api/client";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { Snippet } from "../../ui/copy";
import { errorsFor, SelectField, TextField } from "../../ui/field";
import { curl } from "../../ui/same";
import { aclOf, limitsOf, NO_LIMITS, type Draft } from "./acl";
import { AclFields } from "./acl-fields";
import { LineCheck } from "./line-check";

const DAY_MS = 86_400_000;
const LIFETIMES = [
  ["1", "1 day"],
  ["30", "30 days"],
  ["90", "90 days"],
  ["365", "1 year"],
  ["", "It does not expire"],
] as const;

/** Creates a token. Its key is shown once. */
export function CreateToken({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [days, setDays] = useState("90");
  const [draft, setDraft] = useState<Draft>(NO_LIMITS);
  const acl = aclOf(draft);
  const create = useMutation({
    mutationFn: () =>
      read(
        api.POST("/api/auth/tokens/", {
          body: { name: name.trim(), expires_at: days === "" ? null : new Date(Date.now() + Number(days) * DAY_MS).toISOString(), acl },
        }),
      ),
    onSuccess: () => client.invalidateQueries({ queryKey: ["tokens"] }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!create.isPending) create.mutate();
  };
  if (create.data) {
    return (
      <section className="panel" aria-label="The new token">
        <h2>The key of {create.data.name}</h2>
        <div className="panel-body">
          <p>Copy it now. It is not shown again.</p>
          <Snippet label="Key of the token" text={create.data.key ?? ""} />
          <p>Try it:</p>
          <Snippet label="A request with the token" text={`TOKEN=${create.data.key}\n${curl({ method: "GET", path: "/api/status/" })}`} />
          <Button look="primary" onClick={onClose}>
            I have copied the key
          </Button>
        </div>
      </section>
    );
  }
  return (
    <section className="panel" aria-label="Create a token">
      <h2>Create a token</h2>
      <form className="panel-body token-form" onSubmit={submit}>
        <div className="token-name">
          <TextField
            label="Name"
            required
            autoFocus
            placeholder="deploy"
            value={name}
            errors={errorsFor(create.error, "name")}
            onChange={(event) => setName(event.target.value)}
          />
          <SelectField label="Valid for" options={LIFETIMES} value={days} onChange={(event) => setDays(event.target.value)} />
        </div>
        <AclFields draft={draft} onChange={(changes) => setDraft((before) => ({ ...before, ...changes }))} />
        <p role="status">It allows: {limitsOf(acl).join("; ")}.</p>
        {acl && <LineCheck subject={{ acl }} />}
        <ActionError error={create.error} />
        <div className="row-of">
          <Button look="primary" type="submit" isBusy={create.isPending}>
            Create the token
          </Button>
          <Button onClick={onClose}>Back</Button>
        </div>
      </form>
    </section>
  );
}
