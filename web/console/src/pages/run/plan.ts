// The plan of a run: a dry run, which checks everything and creates nothing (contract 13.3).
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { api, read, type Schema } from "../../api/client";
import { commandFields, hasWhat, what, type Draft } from "./request";
import { selection } from "./targets";

export type Plan = Schema<"BatchDryRun">;

/** Resolves the targets, also while nothing is chosen to run yet. */
export const plan = (draft: Draft) => {
  const runs = hasWhat(draft) ? what(draft) : { line: "true" };
  const body = { ...runs, ...commandFields(draft), targets: selection(draft.targets), dry_run: true };
  return queryOptions({
    queryKey: ["plan", body],
    queryFn: async ({ signal }) => (await read(api.POST("/api/events/batches/", { body, signal }))) as Plan,
    placeholderData: keepPreviousData,
    staleTime: 10_000,
  });
};
