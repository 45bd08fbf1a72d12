// Starts an instance of the service on this machine: workerd (serve.mjs) with D1, KV and Durable
// Objects in its own state folder. `npm start`, the tests and the benches use it.
import { randomBytes } from "node:crypto";
import { chmodSync, closeSync, cpSync, existsSync, mkdirSync, openSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { join, resolve } from "node:path";
import { commit, digest, endGroup, locked, once, release, root, run as show, say, startGroup, tools } from "./lib.mjs";

const inCheckout = join(root, "node_modules", ".bin", "wrangler");
/** The path of wrangler. npm may install the packages of a release into a folder above it. */
export const wrangler = release === null ? inCheckout : createRequire(import.meta.url).resolve("wrangler/bin/wrangler.js");
/** Wrangler's settings: no telemetry, no prompts, no update checks. */
export const QUIET = { WRANGLER_SEND_METRICS: "false", CI: "true", NO_UPDATE_NOTIFIER: "1", FORCE_COLOR: "0" };

/**
 * The environment for wrangler and workerd. Temporary files are in the state folder, because some
 * contain mails with secret links. wrangler's debug log is discarded, because it would contain all
 * results from D1.
 */
export function wranglerEnvironment(stateDir) {
  const [temporary, discarded] = [join(stateDir, "tmp"), join(stateDir, "discarded.log")];
  mkdirSync(temporary, { recursive: true, mode: 0o700 });
  if (!existsSync(discarded)) symlinkSync("/dev/null", discarded);
  return { ...process.env, ...QUIET, TMPDIR: temporary, WRANGLER_LOG_PATH: discarded };
}
const START_TIMEOUT_MS = 60_000;
/** The secrets that are generated if the environment does not set them. */
const SECRETS = ["OPERATOR_TOKEN", "SECRET_KEY"];
/**
 * The minimum length of a secret, in characters. The Worker refuses requests if a secret is
 * shorter.
 */
const MIN_SECRET_LENGTH = 32;
/**
 * Secrets that cannot be generated: the password of the mail server, and the previous secrets after
 * a rotation. They are read from the environment at each start.
 */
const EXTERNAL_SECRETS = ["SMTP_PASSWORD", "SECRET_KEY_PREVIOUS", "OPERATOR_TOKEN_PREVIOUS"];

/** Finds a free port of this machine. */
export const freePort = () =>
  new Promise((found, failed) => {
    const probe = createServer();
    probe.once("error", failed);
    probe.listen(0, "127.0.0.1", () => {
      const { port } = /** @type {import("node:net").AddressInfo} */ (probe.address());
      probe.close(() => found(port));
    });
  });

/**
 * Whether another program listens on a port. The instance must not use such a port, because the
 * program's responses would be mistaken for its own.
 */
export const isTaken = (port) =>
  new Promise((resolved) => {
    const probe = createServer();
    probe.once("error", () => resolved(true));
    probe.listen(port, "127.0.0.1", () => probe.close(() => resolved(false)));
  });

/** Throws an error if a secret of the environment is too short. */
export function checkSecrets(environment) {
  for (const name of [...SECRETS, ...SECRETS.map((name) => `${name}_PREVIOUS`)]) {
    const value = environment[name] ?? "";
    if (value !== "" && [...value].length < MIN_SECRET_LENGTH) {
      throw new Error(`${name} has fewer than ${MIN_SECRET_LENGTH} characters; \`openssl rand -base64 32\` prints a good one`);
    }
  }
}

/**
 * Returns the secrets of an instance. A secret comes from the environment, or is generated once.
 * All are stored in the state folder.
 */
function secrets(stateDir, environment) {
  const file = join(stateDir, "secrets.json");
  const kept = existsSync(file) ? JSON.parse(readFileSync(file, "utf8")) : {};
  const secret = (name) => environment[name] || kept[name] || randomBytes(32).toString("base64url");
  const values = Object.fromEntries(SECRETS.map((name) => [name, secret(name)]));
  writeFileSync(file, JSON.stringify(values, null, 2));
  chmodSync(file, 0o600);
  return values;
}

/**
 * Returns the vars of wrangler.toml.
 * @returns {Promise<Record<string, string>>}
 */
export async function varsOfWranglerToml() {
  const { parse } = await import("smol-toml");
  const { vars } = /** @type {any} */ (parse(readFileSync(join(root, "wrangler.toml"), "utf8")));
  return vars;
}

/** The state folder of `npm start`, unless STATE_DIR is set, of `npm run dev`, and of wrangler. */
export const DEFAULT_STATE_DIR = join(root, ".wrangler", "state");
const devVarsFile = join(root, ".dev.vars");
/** The variables of an instance that `wrangler dev` needs too. */
const IN_DEV_VARS = [...SECRETS, "BASE_URL"];

/**
 * Writes the variables that `wrangler dev` needs for the default state folder into .dev.vars. Other
 * lines of the file stay.
 */
export function writeDevVars(values) {
  const isKept = (line) => line !== "" && !IN_DEV_VARS.some((name) => line.startsWith(`${name}=`));
  const others = existsSync(devVarsFile) ? readFileSync(devVarsFile, "utf8").split("\n").filter(isKept) : [];
  const lines = IN_DEV_VARS.map((name) => `${name}=${quoted(name, values[name])}`);
  writeFileSync(devVarsFile, `${[...others, ...lines].join("\n")}\n`, { mode: 0o600 });
  chmodSync(devVarsFile, 0o600);
}

/** Quotes a value for .dev.vars. Between these quotes, no character has a meaning. */
function quoted(name, value) {
  const quote = ["'", "`"].find((quote) => !value.includes(quote));
  if (quote === undefined || value.includes("\n")) throw new Error(`${name} cannot be written into .dev.vars: it contains a line break, or both ' and \``);
  return `${quote}${value}${quote}`;
}

/**
 * Writes the variables that differ from wrangler.toml into a file, because every account of this
 * machine can read the arguments of a process. Returns the file and all variables.
 * @returns {Promise<{file: string, values: Record<string, string>}>}
 */
async function writeVariables(stateDir, port, environment) {
  const vars = await varsOfWranglerToml();
  const chosen = [...Object.keys(vars), ...EXTERNAL_SECRETS].filter((name) => environment[name] !== undefined);
  const { REGION, SERVICE_DOMAIN } = { ...vars, ...environment };
  const values = {
    COMMIT: commit(),
    // The base of links in mails.
    BASE_URL: `http://{workspace}.${REGION}.${SERVICE_DOMAIN}:${port}`,
    ...Object.fromEntries(chosen.map((name) => [name, environment[name]])),
    ...secrets(stateDir, environment),
  };
  const file = join(stateDir, "variables.json");
  writeFileSync(file, JSON.stringify(values, null, 2), { mode: 0o600 });
  chmodSync(file, 0o600);
  return { file, values };
}

/** Applies the missing migrations to the D1 of a state folder. */
async function applyMigrations(stateDir, run) {
  say("D1: applying migrations");
  await run(process.execPath, [join(root, "scripts", "migrate.mjs"), stateDir, root], { env: wranglerEnvironment(stateDir) });
}

/** The path of D1 in a state folder. */
const d1Folder = (stateDir) => join(stateDir, "v3", "d1");

/**
 * Applies the migrations to the local D1, unless it is up to date. This takes a second, so a migrated
 * empty D1 is kept as a template, and a new state folder gets a copy of it.
 */
async function migrate(stateDir, run) {
  const wanted = digest(["migrations", "wrangler.toml"]);
  await once(join(stateDir, "migrated"), wanted, async () => {
    // The folder of a release may be read-only, so it keeps no template.
    if (release !== null || existsSync(d1Folder(stateDir))) return applyMigrations(stateDir, run);
    const template = join(tools, "migrated");
    await locked(`${template}.lock`, () => once(join(template, "of"), wanted, async () => {
      rmSync(template, { recursive: true, force: true });
      mkdirSync(template, { recursive: true, mode: 0o700 });
      await applyMigrations(template, run);
    }));
    const umask = process.umask(0o077);
    cpSync(d1Folder(template), d1Folder(stateDir), { recursive: true });
    process.umask(umask);
  });
}

/**
 * Prepares a state folder: its access, D1 and secrets. Returns the variables of its instance, and
 * the file with them.
 */
export async function prepareState(stateDir, port, environment = process.env, run = show) {
  // Only the owner may access the state folder. An existing folder without the state of an instance
  // keeps its mode, but new files in it are private.
  const isNew = mkdirSync(stateDir, { recursive: true, mode: 0o700 }) !== undefined;
  if (isNew || existsSync(join(stateDir, "secrets.json"))) chmodSync(stateDir, 0o700);
  await migrate(stateDir, run);
  return await writeVariables(stateDir, port, environment);
}

/**
 * Starts an instance and waits until it responds. `project` is a folder with a wrangler.toml and
 * the built Worker in `build`. `run` runs a program like `run` of lib.mjs.
 * @param {{stateDir: string, port: number, project?: string, environment?: NodeJS.ProcessEnv,
 * onExit?: (how: string) => void, run?: typeof show}} options
 * @returns {Promise<{url: string, logFile: string, operatorToken: string, variables: Record<string,
 * string>, pid: number, stop: () => Promise<void>}>}
 */
export async function startInstance({ stateDir, port, project = root, environment = process.env, onExit, run = show }) {
  if (!Number.isInteger(port) || port < 1 || port > 65535) throw new Error(`PORT is not a port number`);
  if (await isTaken(port)) throw new Error(`port ${port} of 127.0.0.1 is in use; set PORT to another one`);
  stateDir = resolve(root, stateDir);
  const { file, values } = await prepareState(stateDir, port, environment, run);
  const logFile = join(stateDir, "worker.log");
  const log = openSync(logFile, "a", 0o600);
  const args = [join(root, "scripts", "serve.mjs"), stateDir, `${port}`, file, project];
  const child = startGroup(process.execPath, args, { stdio: ["ignore", log, log], env: wranglerEnvironment(stateDir) });
  closeSync(log);
  let stopped = false;
  let ended = null;
  child.once("error", (error) => (ended = error.message));
  child.once("exit", (status, signal) => {
    ended = `${status ?? signal}`;
    if (!stopped) onExit?.(ended);
  });
  const stop = async () => {
    stopped = true;
    await endGroup(child);
  };

  const url = `http://127.0.0.1:${port}`;
  const until = Date.now() + START_TIMEOUT_MS;
  for (;;) {
    if (ended !== null) {
      stopped = true;
      await endGroup(child);
      throw new Error(`the service ended with ${ended}; see ${logFile}`);
    }
    if (Date.now() > until) {
      await stop();
      throw new Error(`the service did not answer within ${START_TIMEOUT_MS / 1000} s; see ${logFile}`);
    }
    const health = await fetch(`${url}/healthz`, { signal: AbortSignal.timeout(2000) }).catch(() => null);
    if (health?.ok) break;
    await new Promise((go) => setTimeout(go, 100));
  }
  return { url, logFile, operatorToken: values.OPERATOR_TOKEN, variables: values, pid: child.pid, stop };
}
