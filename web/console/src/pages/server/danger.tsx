import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { api, read } from "../../api/client";
import { me, type Server } from "../../api/queries";
import { Button } from "../../ui/button";
import { Snippet } from "../../ui/copy";
import { Confirm, Dialog } from "../../ui/dialog";
import { Time } from "../../ui/time";
import { toast } from "../../ui/toasts";
import { Waiting } from "../servers/add-server";

/** Replaces the key of a server's agent, and shows the new install line once. */
export function RotateKey({ server }: { server: Server }) {
  const [isAsking, setIsAsking] = useState(false);
  const [isNow, setIsNow] = useState(false);
  const isSuperuser = useQuery(me()).data?.is_superuser;
  const { id, name } = server;
  const rotate = useMutation({ mutationFn: () => read(api.POST("/api/servers/servers/{id}/rotate-key/", { params: { path: { id } }, body: { now: isNow } })) });
  return (
    <>
      <Button onClick={() => setIsAsking(true)}>Rotate key</Button>
      <Confirm
        title={`Rotate the key of ${name}?`}
        isOpen={isAsking}
        onClose={() => setIsAsking(false)}
        verb="Rotate the key"
        action={() => rotate.mutateAsync()}
      >
        <p>The old key works until the agent connects with the new one, for a day at most.</p>
        {isSuperuser && (
          <label className="check">
            <input type="checkbox" checked={isNow} onChange={(event) => setIsNow(event.target.checked)} /> Refuse the old key immediately, and disconnect the
            agent
          </label>
        )}
      </Confirm>
      <Dialog title={`The new key of ${name}`} isOpen={rotate.data !== undefined} onClose={rotate.reset}>
        {rotate.data?.old_key_valid_until && <NewKey name={name} install={rotate.data.install ?? ""} until={rotate.data.old_key_valid_until} />}
        {rotate.data && !rotate.data.old_key_valid_until && <Waiting id={id} name={name} install={rotate.data.install ?? ""} />}
      </Dialog>
    </>
  );
}

/** The install line with a new key, while the agent may still be connected with the old one. */
function NewKey({ name, install, until }: { name: string; install: string; until: string }) {
  return (
    <div>
      <p>Run this as root on the server. It contains the new key of {name}, which is shown only now.</p>
      <Snippet label="Install line" text={install} />
      <p>
        The old key works until {name} connects with the new one, at the latest until <Time at={until} form="short" />.
      </p>
    </div>
  );
}

export function DeleteServer({ server }: { server: Server }) {
  const [isAsking, setIsAsking] = useState(false);
  const client = useQueryClient();
  const navigate = useNavigate();
  const { id, name } = server;
  const remove = async () => {
    await read(api.DELETE("/api/servers/servers/{id}/", { params: { path: { id } } }));
    void navigate("/servers");
    client.removeQueries({ queryKey: ["server", id] });
    void client.invalidateQueries({ queryKey: ["servers"] });
    toast(`${name} is deleted.`);
  };
  return (
    <>
      <Button look="danger" onClick={() => setIsAsking(true)}>
        Delete
      </Button>
      <Confirm title={`Delete ${name}?`} isOpen={isAsking} onClose={() => setIsAsking(false)} verb={`Delete ${name}`} typed={name} action={remove}>
        <p>
          Its agent is disconnected and its key is refused. Waiting commands are cancelled. The history stays until retention deletes it. Staff can undelete it
          for some days.
        </p>
      </Confirm>
    </>
  );
}
