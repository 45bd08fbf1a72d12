import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, read } from "../../api/client";
import { command as commandQuery, type Command } from "../../api/queries";
import { visible } from "../../output/visible";
import { Button } from "../../ui/button";
import { Confirm } from "../../ui/dialog";

/** Cancels a command that waits, or kills one that runs. */
export function Stop({ command }: { command: Command }) {
  const client = useQueryClient();
  const [isAsking, setIsAsking] = useState(false);
  const { id, server_name } = command;
  const isWaiting = command.status.cancellable;
  const stop = useMutation({
    mutationFn: () =>
      read(
        isWaiting
          ? api.POST("/api/events/commands/{id}/cancel/", { params: { path: { id } } })
          : api.POST("/api/events/commands/{id}/kill/", { params: { path: { id } } }),
      ),
    onSettled: () => client.invalidateQueries({ queryKey: commandQuery(id).queryKey }),
  });
  return (
    <>
      <Button look="danger" onClick={() => setIsAsking(true)}>
        {isWaiting ? "Cancel" : "Kill"}
      </Button>
      <Confirm
        title={isWaiting ? `Cancel the command on ${server_name}?` : `Kill the command on ${server_name}?`}
        isOpen={isAsking}
        onClose={() => setIsAsking(false)}
        verb={isWaiting ? "Cancel the command" : "Kill"}
        action={() => stop.mutateAsync()}
      >
        <p>{isWaiting ? "It will not run." : "All its processes end immediately. What they have done so far stays."}</p>
        <pre className="command-line" tabIndex={0} aria-label="Command line">
          <code>{visible(command.line)}</code>
        </pre>
      </Confirm>
    </>
  );
}
