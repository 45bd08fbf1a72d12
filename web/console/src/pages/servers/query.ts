// The filters of the list of servers, as they are in the address and in a query.
import { modeOf } from "./policy";

export const DEFAULTS = { search: "", label: "", state: "", policy: "", ordering: "name" };
export type Filter = typeof DEFAULTS;

/** The query parameters of a filter. */
export const queryOf = ({ search, label, state, policy, ordering }: Filter) => ({
  ordering,
  ...(search && { search }),
  ...(label && { label }),
  ...(state && { is_connected: state === "connected" }),
  ...(modeOf(policy) && { policy: modeOf(policy) }),
});
