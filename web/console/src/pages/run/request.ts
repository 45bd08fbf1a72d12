// What the form of a run sends.
import { api, read, type Schema } from "../../api/client";
import { onlyServer, selection, type Targets } from "./targets";

/** The form, as it is typed. Empty texts are the defaults of the service. */
export interface Draft {
  /** Whether a line or a script runs. */
  readonly what: "line" | "script";
  readonly line: string;
  /** The id of the script. */
  readonly script: string;
  readonly params: Readonly<Record<string, string | number | boolean>>;
  readonly targets: Targets;
  readonly username: string;
  /** Seconds. */
  readonly timeout: string;
  readonly cwd: string;
  /** A number or a percentage of the targets. */
  readonly concurrency: string;
  readonly errors: string;
  readonly ramp: boolean;
  readonly offline: "" | "skip" | "queue" | "reject";
  /** A local time, as an input of the browser has it. */
  readonly at: string;
  readonly name: string;
}

/** A number, or a percentage as text. */
const amount = (text: string) => (/^\d+$/.test(text.trim()) ? Number(text) : text.trim());

/** What runs. */
export const what = ({ what, line, script, params }: Draft) => (what === "script" ? { script, params: { ...params } } : { line });

/** Whether there is something to run. */
export const hasWhat = ({ what, line, script }: Draft) => (what === "script" ? script : line.trim()) !== "";

/** The fields that a command and a batch have in common. */
export const commandFields = ({ username, timeout, cwd, at }: Draft) => ({
  ...(username.trim() && { username: username.trim() }),
  ...(timeout.trim() && { timeout: Number(timeout) }),
  ...(cwd.trim() && { cwd: cwd.trim() }),
  ...(at && { scheduled_at: new Date(at).toISOString() }),
});

const batchFields = ({ concurrency, errors, ramp, offline, name }: Draft) => ({
  ...(concurrency.trim() && { max_concurrency: amount(concurrency) }),
  ...(errors.trim() && { max_errors: amount(errors) }),
  ...(ramp && { ramp }),
  ...(offline && { on_offline: offline }),
  ...(name.trim() && { name: name.trim() }),
});

type Request =
  | { readonly path: "/api/events/commands/"; readonly body: Schema<"CommandCreation"> }
  | { readonly path: "/api/events/batches/"; readonly body: Schema<"BatchCreation"> };

/** One named server runs a command, anything else is a batch. */
export function requestOf(draft: Draft): Request {
  const server = onlyServer(draft.targets);
  const body = { ...what(draft), ...commandFields(draft) };
  if (server !== undefined) {
    const { offline } = draft;
    return { path: "/api/events/commands/", body: { server, ...body, ...((offline === "queue" || offline === "reject") && { on_offline: offline }) } };
  }
  return { path: "/api/events/batches/", body: { ...body, ...batchFields(draft), targets: selection(draft.targets) } };
}

let attempt = { body: "", key: "" };

/**
 * The key that makes repeating a request harmless (contract 3.11). The same request keeps its key
 * until it succeeded, so that trying again after a lost answer does not run it twice.
 */
function keyOf(body: string) {
  if (attempt.body !== body) {
    const random = crypto.getRandomValues(new Uint32Array(4));
    attempt = { body, key: Array.from(random, (part) => part.toString(16).padStart(8, "0")).join("") };
  }
  return attempt.key;
}

/** Sends the run. Returns the address of the page that shows it. */
export async function send(draft: Draft): Promise<string> {
  const request = requestOf(draft);
  const header = { "Idempotency-Key": keyOf(JSON.stringify(request)) };
  const path =
    request.path === "/api/events/commands/"
      ? `/commands/${(await read(api.POST("/api/events/commands/", { params: { header }, body: request.body }))).id}`
      : `/batches/${((await read(api.POST("/api/events/batches/", { params: { header }, body: request.body }))) as Schema<"Batch">).id}`;
  attempt = { body: "", key: "" };
  return path;
}
