// The filters of the history, as they are in the address bar.
import type { ListQuery } from "../../api/queries";
import { quoted } from "../../ui/same";

export const DEFAULTS = {
  search: "",
  server: "",
  state: "",
  by: "",
  as: "",
  exit: "",
  since: "",
  until: "",
  batch: "",
  schedule: "",
  shell: "",
  only: "",
  ordering: "-scheduled_at",
};
export type Filter = typeof DEFAULTS;
export type CommandQuery = ListQuery<"/api/events/commands/">;

/** Several states under one name. */
export const STATES: readonly (readonly [string, string])[] = [
  ["", "Every state"],
  ["scheduled,queued", "Waiting"],
  ["sent,acked", "Running"],
  ["success", "Success"],
  ["failed,expired,stuck", "Without success"],
  ["scheduled", "Scheduled"],
  ["queued", "Queued"],
  ["sent", "Sent"],
  ["acked", "Acknowledged"],
  ["failed", "Failed"],
  ["expired", "Expired"],
  ["stuck", "Stuck"],
  ["cancelled", "Cancelled"],
];

/** What `only` stands for. */
export const ONLY: readonly (readonly [string, string])[] = [
  ["", "By anyone"],
  ["later", "For later"],
  ["orphaned", "Of deleted users"],
];

/** The query of a filter. `user` is the id of the user whose name is in `by`. */
export function queryOf(
  { search, server, state, as, exit, since, until, batch, schedule, shell, only, ordering }: Filter,
  user: number | undefined,
): CommandQuery {
  return {
    ordering,
    ...(search && { search }),
    ...(server && { server }),
    ...(state && { state }),
    ...(user !== undefined && { requested_by: user }),
    ...(as && { username: as }),
    ...(/^-?\d+$/.test(exit) && { exit_code: Number(exit) }),
    ...(since && { added_at__gte: since }),
    ...(until && { added_at__lt: until }),
    ...(batch && { batch }),
    ...(schedule && { schedule }),
    ...(shell && { shell: shell as NonNullable<CommandQuery["shell"]> }),
    ...(only === "later" && { is_scheduled: true }),
    ...(only === "orphaned" && { requested_by_isnull: true }),
  };
}

/** A query as it is in an address. */
export const textOf = (query: object) => new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)])).toString();

/** The command line of `farhand`, or a request of `farhand api` if a filter has no option. */
export function asFarhand(filter: Filter, query: CommandQuery): string {
  const { search, server, state, by, as, exit, since, until, only } = filter;
  if (filter.batch || filter.schedule || filter.shell || only === "orphaned") return `farhand api GET ${quoted(`/api/events/commands/?${textOf(query)}`)}`;
  const options = [
    ["--server", server],
    ["--state", state],
    ["--by", by],
    ["--as", as],
    ["--exit-code", exit],
    ["--since", since],
    ["--until", until],
    ["--search", search],
  ] as const;
  return [
    "farhand history",
    ...options.filter(([, value]) => value !== "").map(([name, value]) => `${name} ${quoted(value)}`),
    ...(only === "later" ? ["--scheduled"] : []),
  ].join(" ");
}
