import type { Batch } from "../../api/queries";
import { State } from "../../ui/state";

/** How many targets failed, as `max_errors` counts them (contract 13.9). */
export const failures = ({ failed, expired, stuck }: Batch["counts"]) => failed + expired + stuck;

/** The state of a batch. One that did not run everywhere does not look like a success. */
export function BatchState({ batch: { state, counts } }: { batch: Batch }) {
  if (state === "finished" && failures(counts) > 0) return <State state="failed">with failures</State>;
  if (state === "finished" && counts.skipped > 0) return <State state="skipped">partly skipped</State>;
  return <State state={state} />;
}
