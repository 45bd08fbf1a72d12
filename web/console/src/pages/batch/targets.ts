// The targets of a batch, kept current by its stream.
import { queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { readAll, type PageQuery } from "../../api/all";
import { api, read, type Schema } from "../../api/client";
import { batch as batchQuery, type Batch } from "../../api/queries";
import { useStream } from "../../live/use-stream";
import { visible } from "../../output/visible";

export type Target = Schema<"BatchTarget">;
export type TargetState = Target["state"];
type Change = Schema<"BatchChange">;

const PAGE_SIZE = 1_000;
/** Changes are shown together, because a large batch reports hundreds in a second. */
const SHOWN_EVERY_MS = 100;

/** Every state in the order in which a target reaches them. The ended ones come last. */
export const STATES = [
  "pending",
  "queued",
  "sent",
  "running",
  "success",
  "failed",
  "expired",
  "stuck",
  "cancelled",
  "skipped",
] as const satisfies readonly TargetState[];

export const hasEnded = ({ state }: Pick<Batch, "state">) => state === "finished" || state === "cancelled";

/** Why a target is in its state, unless the state and the exit code say it. */
export const reasonOf = ({ state, exit_code, reason }: Target) => (state === "success" || exit_code !== null ? null : reason && visible(reason));

/** All pages of the list of targets. */
const allTargets = (id: string) =>
  queryOptions({
    queryKey: ["batch", id, "targets"],
    queryFn: async ({ signal }) => {
      const readPage = (query: PageQuery) => read(api.GET("/api/events/batches/{id}/targets/", { params: { path: { id }, query }, signal }));
      return (await readAll(readPage, { keyOf: ({ server }) => server, pageSize: PAGE_SIZE, most: Infinity })).results;
    },
    // The stream has the changes.
    staleTime: Infinity,
  });

/** The steps of a target. A later step is never replaced by an earlier one. */
const step = (state: TargetState) => Math.min(STATES.indexOf(state), STATES.indexOf("success"));

/** A target after a change. A stream that restarts repeats old changes, which are ignored. */
export function changed(target: Target, change: Change | undefined): Target {
  if (!change || step(change.state) < step(target.state)) return target;
  const { state, exit_code, command } = change;
  if (state === target.state && command === target.command) return target;
  return { ...target, state, exit_code, command };
}

/** The number of targets in each state. */
export function countStates(targets: readonly Target[]): Record<TargetState, number> {
  const counts = Object.fromEntries(STATES.map((state) => [state, 0])) as Record<TargetState, number>;
  for (const { state } of targets) counts[state] += 1;
  return counts;
}

export function useTargets(batch: Batch) {
  const client = useQueryClient();
  const { id } = batch;
  const query = useQuery(allTargets(id));
  const changes = useRef(new Map<string, Change>());
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const [version, setVersion] = useState(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const isLive = !hasEnded(batch);
  const { state: stream } = useStream(isLive ? `/api/events/batches/${id}/stream/` : null, ({ name, data }) => {
    if (name === "target") {
      const change = JSON.parse(data) as Change;
      changes.current.set(change.server, change);
      timer.current ??= setTimeout(() => {
        timer.current = undefined;
        setVersion((before) => before + 1);
      }, SHOWN_EVERY_MS);
    } else if (name === "end") {
      client.setQueryData(batchQuery(id).queryKey, JSON.parse(data) as Batch);
      // The service now has the run times and the reasons.
      void client.invalidateQueries({ queryKey: ["batch", id] });
      void client.invalidateQueries({ queryKey: ["batches"] });
      return true;
    }
    return undefined;
  });
  // eslint-disable-next-line react-hooks/exhaustive-deps -- the changes have a new version when they are to be shown
  const targets = useMemo(() => query.data?.map((target) => changed(target, changes.current.get(target.server))), [query.data, version]);
  return { query, targets, stream };
}
