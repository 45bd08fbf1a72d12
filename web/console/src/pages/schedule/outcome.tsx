import type { Schema } from "../../api/client";
import { State } from "../../ui/state";

const LOOKS = { started: "success", skipped: "skipped", refused: "failed", missed: "expired" } as const;

/** What happened at a due time. */
export function Outcome({ run: { outcome } }: { run: Schema<"ScheduleRun"> }) {
  return <State state={LOOKS[outcome]}>{outcome}</State>;
}
