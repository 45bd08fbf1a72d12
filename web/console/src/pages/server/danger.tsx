import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { api, read } from "../../api/client";
import type { Server } from "../../api/queries";
import { Button } from "../../ui/button";
import { Confirm, Dialog } from "../../ui/dialog";
import { toast } from "../../ui/toasts";
import { Waiting } from "../servers/add-server";

/** Replaces the key of a server's agent, and shows the new install line once. */
export function RotateKey({ server }: { server: Server }) {
  const [isAsking, setIsAsking] = useState(false);
  const { id, name } = server;
  const rotate = useMutation({ mutationFn: () => read(api.POST("/api/servers/servers/{id}/rotate-key/", { params: { path: { id } } })) });
  return (
    <>
      <Button onClick={() => setIsAsking(true)}>Rotate key</Button>
      <Confirm title={`Rotate the key of ${name}?`} isOpen={isAsking} onClose={() => setIsAsking(false)} verb="Rotate the key" action={() => rotate.mutateAsync()}>
        <p>The agent of {name} is disconnected immediately, and needs the new key to connect again.</p>
      </Confirm>
      <Dialog title={`The new key of ${name}`} isOpen={rotate.data !== undefined} onClose={rotate.reset}>
        {rotate.data && <Waiting id={id} name={name} install={rotate.data.install ?? ""} />}
      </Dialog>
    </>
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
        <p>Its agent is disconnected and its key is refused. Waiting commands are cancelled. The history stays until retention deletes it.</p>
      </Confirm>
    </>
  );
}
