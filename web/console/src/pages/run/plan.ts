// The plan of a run: a dry run, which checks everything and creates nothing (contract 13.3).
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { api, read, type Schema } from "../../api/client";
import { commandFields, type Draft } from "./request";
import { selection } from "./targets";

export type Plan = Schema<"BatchDryRun">;

/** Resolves the targets, also while the line is still empty. */
export const plan = (draft: Draft) => {
  const body = { ...commandFields(draft), line: draft.line.trim() || "true", targets: selection(draft.targets), dry_run: true };
  return queryOptions({
    queryKey: ["plan", body],
    queryFn: async ({ signal }) => (await read(api.POST("/api/events/batches/", { body, signal }))) as Plan,
    placeholderData: keepPreviousData,
    staleTime: 10_000,
  });
};
