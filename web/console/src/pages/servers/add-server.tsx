import { Tabs } from "@base-ui/react/tabs";
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { Link } from "react-router";
import { api, read } from "../../api/client";
import { live, server as serverQuery } from "../../api/queries";
import { ActionError } from "../../ui/answers";
import { Button, LinkButton } from "../../ui/button";
import { Snippet } from "../../ui/copy";
import { errorsFor, SelectField, TextField } from "../../ui/field";
import { State } from "../../ui/state";
import type { PromptState } from "../server/prompt";
import { POLICY_CHOICES, POLICY_HINTS, withPolicy, type PolicyChoice } from "./policy";
import "./add-server.css";

/** Adds one named server, or makes a registration token with which many add themselves. */
export function AddServer() {
  return (
    <Tabs.Root defaultValue="one" className="add-server">
      <Tabs.List className="tabs">
        <Tabs.Tab value="one">One server</Tabs.Tab>
        <Tabs.Tab value="many">Many servers</Tabs.Tab>
      </Tabs.List>
      <Tabs.Panel value="one">
        <One />
      </Tabs.Panel>
      <Tabs.Panel value="many">
        <Many />
      </Tabs.Panel>
    </Tabs.Root>
  );
}

function One() {
  const [name, setName] = useState("");
  const [policy, setPolicy] = useState<PolicyChoice>("accounts");
  const [typed, setTyped] = useState<string | null>(null);
  const account = typed ?? (policy === "open" ? "root" : "");
  const create = useMutation({ mutationFn: () => read(api.POST("/api/servers/", { body: { name: name.trim(), default_username: account.trim() || null } })) });
  const isOfField = ["name", "default_username"].some((field) => errorsFor(create.error, field).length > 0);
  if (create.data) return <Waiting id={create.data.id} name={create.data.name} install={withPolicy(create.data.install ?? "", policy)} />;
  const refusesRoot = policy === "accounts" && account.trim() === "root";
  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate();
  };
  return (
    <form className="form" onSubmit={submit}>
      <TextField
        label="Name"
        required
        autoFocus
        placeholder="web-1"
        hint="Lower-case letters, digits, hyphens, underscores and dots."
        value={name}
        errors={errorsFor(create.error, "name")}
        onChange={(event) => setName(event.target.value)}
      />
      <PolicyField policy={policy} onChange={setPolicy} />
      <TextField
        label="Account for commands"
        placeholder="each user's own username"
        hint="Runs the commands that name no other account. Only staff, owners and managers may use an account other than their own."
        value={account}
        errors={refusesRoot ? ["This policy refuses every command as root. Enter another account."] : errorsFor(create.error, "default_username")}
        onChange={(event) => setTyped(event.target.value)}
      />
      {!isOfField && <ActionError error={create.error} />}
      <Button look="primary" type="submit" isBusy={create.isPending}>
        Show the install line
      </Button>
    </form>
  );
}

/** Asks what the host lets the service do. */
function PolicyField({ policy, onChange }: { policy: PolicyChoice; onChange: (policy: PolicyChoice) => void }) {
  return (
    <SelectField
      label="Policy of the host"
      hint={POLICY_HINTS[policy]}
      options={POLICY_CHOICES}
      value={policy}
      onChange={(event) => onChange(event.target.value as PolicyChoice)}
    />
  );
}

/** The install line, until the agent connects. */
export function Waiting({ id, name, install }: { id: string; name: string; install: string }) {
  const { data } = useQuery({ ...serverQuery(id), ...live, refetchInterval: 2_000 });
  if (data?.is_connected) {
    return (
      <div className="stack" role="status">
        <p>
          <State state="connected">{name} is connected.</State>
        </p>
        <div className="row-of">
          <LinkButton look="primary" to={`/servers/${id}`} state={UPTIME}>
            Run uptime on it
          </LinkButton>
          <Link to={`/servers/${id}`}>Show {name}</Link>
        </div>
      </div>
    );
  }
  return (
    <div>
      <p>Run this as root on the server. It contains the key of {name}, which is shown only now.</p>
      <Snippet label="Install line" text={install} />
      <p role="status">
        <State state="offline">Waiting for {name} to connect…</State>
      </p>
    </div>
  );
}

const UPTIME: PromptState = { line: "uptime" };
const HOUR_MS = 3_600_000;
const LIFETIMES = [
  ["1", "1 hour"],
  ["24", "24 hours"],
  ["168", "7 days"],
] as const;

function Many() {
  const [name, setName] = useState("");
  const [uses, setUses] = useState("10");
  const [hours, setHours] = useState("24");
  const [policy, setPolicy] = useState<PolicyChoice>("accounts");
  const create = useMutation({
    mutationFn: () =>
      read(
        api.POST("/api/servers/registration-tokens/", {
          body: { name: name.trim(), uses: Number(uses), expires_at: new Date(Date.now() + Number(hours) * HOUR_MS).toISOString() },
        }),
      ),
  });
  if (create.data) {
    return (
      <div>
        <p>
          Run this as root on each server, or put it into its image or its cloud-init. It contains the token's key, which is shown only now, and begins with a
          blank, so that most shells keep it out of their history. In an image, put the key into a file and use --token-file.
        </p>
        <Snippet label="Install line" text={withPolicy(create.data.install ?? "", policy)} />
        <p>Each server appears in the list as soon as its agent has registered.</p>
      </div>
    );
  }
  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate();
  };
  return (
    <form className="form" onSubmit={submit}>
      <TextField
        label="Name of the token"
        required
        placeholder="autumn rollout"
        value={name}
        errors={errorsFor(create.error, "name")}
        onChange={(event) => setName(event.target.value)}
      />
      <TextField
        label="Servers that may register"
        type="number"
        min={1}
        max={100_000}
        required
        value={uses}
        errors={errorsFor(create.error, "uses")}
        onChange={(event) => setUses(event.target.value)}
      />
      <SelectField label="Valid for" options={LIFETIMES} value={hours} onChange={(event) => setHours(event.target.value)} />
      <PolicyField policy={policy} onChange={setPolicy} />
      <ActionError error={create.error} />
      <Button look="primary" type="submit" isBusy={create.isPending}>
        Create the token
      </Button>
    </form>
  );
}
