// The form of a schedule: from a schedule, and to a request.
import type { Schema } from "../../api/client";
import type { Schedule } from "../../api/queries";
import { isoOf, localOf } from "../../ui/time-input";
import { valuesOf, type Parameter, type Texts } from "../../ui/script-params";
import { selection, type Targets } from "../run/targets";

export interface Draft {
  readonly name: string;
  readonly cron: string;
  readonly timezone: string;
  readonly kind: "line" | "argv" | "script";
  readonly line: string;
  /** The id of a script. */
  readonly script: string;
  /** A number, or empty for the latest at each run. */
  readonly version: string;
  readonly params: Texts;
  readonly targets: Targets;
  readonly username: string;
  readonly timeout: string;
  readonly concurrency: string;
  readonly errors: string;
  readonly ramp: boolean;
  readonly offline: NonNullable<Schema<"ScheduleCreation">["on_offline"]>;
  readonly misfire: Schedule["misfire"];
  readonly overlap: Schedule["overlap"];
  readonly startsAt: string;
  readonly endsAt: string;
}

const text = (value: string | number | null | undefined) => (value === null || value === undefined ? "" : String(value));
const amount = (value: string) => (/^\d+$/.test(value.trim()) ? Number(value) : value.trim());

/**
 * An empty form, with what an address such as `/schedules?new=true&line=uptime&selector=env=prod`
 * fills in.
 */
export function emptyDraft(parameters: URLSearchParams): Draft {
  const list = (name: string) => (parameters.get(name) ?? "").split(",").filter((item) => item !== "");
  const script = parameters.get("script") ?? "";
  return {
    name: "",
    cron: "",
    timezone: Intl.DateTimeFormat().resolvedOptions().timeZone,
    kind: script === "" ? "line" : "script",
    line: parameters.get("line") ?? "",
    script,
    version: "",
    params: {},
    targets: {
      servers: list("servers"),
      groups: list("groups").map(Number).filter(Number.isInteger),
      selector: parameters.get("selector") ?? "",
      all: parameters.get("all") === "true",
    },
    username: parameters.get("username") ?? "",
    timeout: "",
    concurrency: "",
    errors: "",
    ramp: false,
    offline: "skip",
    misfire: "run_once",
    overlap: "skip",
    startsAt: "",
    endsAt: "",
  };
}

export function draftOf(schedule: Schedule): Draft {
  const {
    name,
    cron,
    timezone,
    line,
    argv,
    script,
    script_version,
    targets,
    username,
    timeout,
    max_concurrency,
    max_errors,
    ramp,
    on_offline,
    misfire,
    overlap,
    starts_at,
    ends_at,
  } = schedule;
  return {
    name,
    cron,
    timezone,
    kind: script !== null ? "script" : argv !== null ? "argv" : "line",
    line: line ?? "",
    script: script ?? "",
    version: text(script_version),
    params: {},
    targets: { servers: targets.servers ?? [], groups: targets.groups ?? [], selector: targets.selector ?? "", all: targets.all ?? false },
    username: text(username),
    timeout: text(timeout),
    concurrency: text(max_concurrency),
    errors: text(max_errors),
    ramp,
    offline: on_offline,
    misfire,
    overlap,
    startsAt: starts_at === null ? "" : localOf(starts_at),
    endsAt: ends_at === null ? "" : localOf(ends_at),
  };
}

/**
 * The request of a form. It has no `enabled`: a new schedule is active, and a change of a paused one
 * leaves it paused. Values of parameters are never returned, so a change of a schedule sends
 * them only if some are typed, and the service keeps the others.
 */
export function requestOf(draft: Draft, parameters: readonly Parameter[]): Schema<"ScheduleCreation"> {
  const { kind, timeout, concurrency, errors, version } = draft;
  const params = valuesOf(parameters, draft.params);
  return {
    name: draft.name.trim(),
    cron: draft.cron.trim(),
    timezone: draft.timezone.trim(),
    targets: selection(draft.targets),
    ...(kind === "line" && { line: draft.line }),
    ...(kind === "script" && { script: draft.script, script_version: version.trim() === "" ? null : Number(version) }),
    ...(kind === "script" && Object.keys(params).length > 0 && { params }),
    username: draft.username.trim() || null,
    ...(timeout.trim() && { timeout: Number(timeout) }),
    ...(concurrency.trim() && { max_concurrency: amount(concurrency) }),
    max_errors: errors.trim() ? amount(errors) : null,
    ramp: draft.ramp,
    on_offline: draft.offline,
    misfire: draft.misfire,
    overlap: draft.overlap,
    starts_at: isoOf(draft.startsAt) || null,
    ends_at: isoOf(draft.endsAt) || null,
  };
}
