import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, read } from "../../api/client";
import { isStaff, me, server as serverQuery, type Server } from "../../api/queries";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { errorsFor, TextField } from "../../ui/field";

/** A server that registered itself and awaits approval. */
export function Approve({ server }: { server: Server }) {
  const client = useQueryClient();
  const staff = isStaff(useQuery(me()).data);
  const [fingerprint, setFingerprint] = useState("");
  const approve = useMutation({
    mutationFn: () => read(api.POST("/api/servers/servers/{id}/approve/", { params: { path: { id: server.id } }, body: { fingerprint: fingerprint.trim() } })),
    onSuccess: (changed) => client.setQueryData(serverQuery(server.id).queryKey, changed),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    approve.mutate();
  };
  if (!staff) return <p className="muted">Staff must approve {server.name} before it runs commands.</p>;
  return (
    <section className="panel approve">
      <h2>{server.name} awaits approval</h2>
      <form className="panel-body form" onSubmit={submit}>
        <p>
          Run <code>farhand-agent status</code> on the host and type the fingerprint that it prints. Approve only if you know the host: its agent reported its
          name by itself.
        </p>
        <TextField
          label="Fingerprint"
          required
          placeholder="XXXX-XXXX"
          value={fingerprint}
          onChange={(event) => setFingerprint(event.target.value)}
          errors={errorsFor(approve.error, "fingerprint")}
        />
        <ActionError error={approve.error} />
        <div>
          <Button look="primary" type="submit" isBusy={approve.isPending}>
            Approve {server.name}
          </Button>
        </div>
      </form>
    </section>
  );
}
