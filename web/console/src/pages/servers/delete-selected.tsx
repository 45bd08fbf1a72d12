import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, read } from "../../api/client";
import { isStaff, me } from "../../api/queries";
import { Button } from "../../ui/button";
import { Confirm } from "../../ui/dialog";
import { toast } from "../../ui/toasts";
import { plural } from "../../ui/words";
import type { Selected } from "./use-selection";

/** How many servers a user deletes, and keys the user rotates, within an hour, by default (contract 11.4). */
const MOST_AN_HOUR = { user: 20, superuser: 200 };

/** Deletes the selected servers one after the other. Those that fail stay selected. */
export function DeleteSelected({ selection }: { selection: Selected }) {
  const [isAsking, setIsAsking] = useState(false);
  const client = useQueryClient();
  const user = useQuery(me()).data;
  if (!isStaff(user)) return null;
  const selected = selection.names.size;
  const limit = user?.is_superuser ? MOST_AN_HOUR.superuser : MOST_AN_HOUR.user;
  const remove = async () => {
    const left = new Map(selection.names);
    try {
      for (const id of selection.names.keys()) {
        await read(api.DELETE("/api/servers/servers/{id}/", { params: { path: { id } } }));
        left.delete(id);
      }
      toast(`${plural(selected, "server")} deleted.`);
    } finally {
      selection.set([...left].map(([id, name]) => ({ id, name })));
      void client.invalidateQueries({ queryKey: ["servers"] });
    }
  };
  return (
    <>
      <Button look="danger" onClick={() => setIsAsking(true)}>
        Delete
      </Button>
      <Confirm
        title={`Delete ${plural(selected, "server")}?`}
        isOpen={isAsking}
        onClose={() => setIsAsking(false)}
        verb={`Delete ${plural(selected, "server")}`}
        typed={String(selected)}
        action={remove}
      >
        <p>Their agents are disconnected and waiting commands are cancelled. Staff can undelete the servers for some days.</p>
        <p className={selected > limit ? "error" : "muted"}>
          You may delete {limit} servers an hour, less the keys that you rotated in that time, unless this deployment has another limit.
          {selected > limit && ` Of these ${selected}, the others are refused and stay selected.`}
        </p>
      </Confirm>
    </>
  );
}
