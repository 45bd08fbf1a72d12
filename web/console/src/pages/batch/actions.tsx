import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { api, read } from "../../api/client";
import { batch as batchQuery, type Batch } from "../../api/queries";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { Confirm } from "../../ui/dialog";
import { plural } from "../../ui/words";
import { hasEnded } from "./targets";

/** Stops a batch that has not ended, or repeats one that has. */
export function Actions({ batch }: { batch: Batch }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [asked, setAsked] = useState<"stop" | "kill" | null>(null);
  const path = { id: batch.id };
  const name = batch.name || "this batch";
  const { counts } = batch;
  const waiting = counts.pending + counts.queued;
  const running = counts.sent + counts.running;
  const retried = counts.total - counts.success;
  const end = async (kill: boolean) => {
    const changed = await read(
      kill ? api.POST("/api/events/batches/{id}/kill/", { params: { path } }) : api.POST("/api/events/batches/{id}/cancel/", { params: { path } }),
    );
    client.setQueryData(batchQuery(batch.id).queryKey, changed);
    void client.invalidateQueries({ queryKey: ["batches"] });
  };
  const retry = useMutation({
    mutationFn: () => read(api.POST("/api/events/batches/{id}/retry-failed/", { params: { path } })),
    onSuccess: ({ id }) => {
      void client.invalidateQueries({ queryKey: ["batches"] });
      void navigate(`/batches/${id}`);
    },
  });
  if (hasEnded(batch)) {
    if (retried === 0) return null;
    return (
      <>
        <ActionError error={retry.error} />
        <Button look="primary" isBusy={retry.isPending} onClick={() => retry.mutate()}>
          Retry on {plural(retried, "server")}
        </Button>
      </>
    );
  }
  return (
    <>
      {batch.state !== "stopping" && <Button onClick={() => setAsked("stop")}>Stop</Button>}
      <Button look="danger" onClick={() => setAsked("kill")}>
        Kill
      </Button>
      <Confirm title={`Stop ${name}?`} isOpen={asked === "stop"} onClose={() => setAsked(null)} verb="Stop the batch" action={() => end(false)}>
        <p>
          It does not start on {plural(waiting, "further server")}. What runs on {plural(running, "server")} goes on.
        </p>
      </Confirm>
      <Confirm title={`Kill ${name}?`} isOpen={asked === "kill"} onClose={() => setAsked(null)} verb="Kill the batch" action={() => end(true)}>
        <p>
          The command ends immediately on {plural(running, "server")}, and does not start on {plural(waiting, "further server")}. What it has done so far stays.
        </p>
      </Confirm>
    </>
  );
}
