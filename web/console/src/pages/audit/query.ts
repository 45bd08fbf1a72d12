// The filters of the audit log, as they are in the address and in a query.
import type { AuditEvent } from "./event";

export const DEFAULTS = { actor: "", action: "", object: "", outcome: "", since: "", until: "" };
export type Filter = typeof DEFAULTS;

export type AuditQuery = ReturnType<typeof queryOf>;

/** The query parameters of a filter. */
export const queryOf = ({ actor, action, object, outcome, since, until }: Filter) => ({
  ...(actor && { actor }),
  ...(action && { action }),
  ...(object && { object }),
  ...(outcome && { outcome: outcome as AuditEvent["outcome"] }),
  ...(since && { occurred_at__gte: since }),
  ...(until && { occurred_at__lt: until }),
});
