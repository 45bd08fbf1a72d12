import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, read } from "../../api/client";
import { server as serverQuery, type Server } from "../../api/queries";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { Dialog } from "../../ui/dialog";
import { errorsFor, Field, TextField } from "../../ui/field";

interface EditProps {
  server: Server;
  /** Only staff change labels, because labels decide which servers get a command. */
  mayLabel: boolean;
  isOpen: boolean;
  onClose: () => void;
}

/** Labels as lines of `key=value`. */
const textOf = (labels: Record<string, string>) =>
  Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .join("\n");
export const labelsOf = (text: string) =>
  Object.fromEntries(
    text
      .split(/[\n,]/)
      .map((line) => line.trim())
      .filter((line) => line !== "")
      .map((line) => {
        const [key = "", ...rest] = line.split("=");
        return [key.trim(), rest.join("=").trim()];
      }),
  );

export function Edit({ isOpen, onClose, ...rest }: EditProps) {
  return (
    <Dialog title={`Edit ${rest.server.name}`} isOpen={isOpen} onClose={onClose}>
      <Form {...rest} onClose={onClose} />
    </Dialog>
  );
}

function Form({ server, mayLabel, onClose }: Omit<EditProps, "isOpen">) {
  const client = useQueryClient();
  const [name, setName] = useState(server.name);
  const [account, setAccount] = useState(server.default_username ?? "");
  const [labels, setLabels] = useState(textOf(server.labels));
  const save = useMutation({
    mutationFn: () =>
      read(
        api.PATCH("/api/servers/servers/{id}/", {
          params: { path: { id: server.id } },
          body: { name: name.trim(), default_username: account.trim() || null, ...(mayLabel && { labels: labelsOf(labels) }) },
        }),
      ),
    onSuccess: (changed) => {
      client.setQueryData(serverQuery(server.id).queryKey, changed);
      onClose();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate();
  };
  return (
    <form onSubmit={submit}>
      <TextField label="Name" required value={name} onChange={(event) => setName(event.target.value)} errors={errorsFor(save.error, "name")} />
      <TextField
        label="Default account"
        placeholder="none"
        value={account}
        onChange={(event) => setAccount(event.target.value)}
        errors={errorsFor(save.error, "default_username")}
        hint="Commands without an account run as this one."
      />
      {mayLabel && (
        <Field label="Labels" hint="One on each line, as key=value." errors={errorsFor(save.error, "labels")}>
          {(ids) => <textarea {...ids} className="mono" rows={4} spellCheck={false} value={labels} onChange={(event) => setLabels(event.target.value)} />}
        </Field>
      )}
      <ActionError error={save.error} />
      <div className="dialog-actions">
        <Button onClick={onClose}>Back</Button>
        <Button look="primary" type="submit" isBusy={save.isPending}>
          Save
        </Button>
      </div>
    </form>
  );
}
