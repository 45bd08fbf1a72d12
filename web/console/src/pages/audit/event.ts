import type { Schema } from "../../api/client";
import { number } from "../../ui/words";

export type AuditEvent = Schema<"AuditEvent">;

/** The look of an outcome, a state of `State`. */
export const lookOfOutcome = (outcome: AuditEvent["outcome"]) => (outcome === "success" ? "success" : outcome === "denied" ? "cancelled" : "failed");

/** The number of requests that an event stands for, if there are several. */
export function timesOf(details: object): string {
  const count = "count" in details ? details.count : undefined;
  return typeof count === "number" && count > 1 ? ` × ${number(count)}` : "";
}
