// The instance of `npm test -- e2e --keep NAME`, which continues to run between test runs. If the
// Worker, its migrations or its settings changed, it is restarted with an empty state. `npm test --
// stop` stops it.
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { freePort, startInstance } from "./instance.mjs";
import { digest, endGroup, locked, root, say, tools } from "./lib.mjs";

const folder = join(root, ".wrangler", "test");
const stateDir = join(folder, "state");
/**
 * The file with the facts about the instance for the next run. It contains the operator token, so
 * only the owner can read it.
 */
const factsFile = join(folder, "instance.json");
/** The files that the instance depends on. */
const SOURCES = ["build/.source-digest", "migrations", "wrangler.toml", "scripts/serve.mjs", "scripts/private-miniflare.mjs", "scripts/migrate.mjs", "scripts/instance.mjs", "scripts/kept-instance.mjs"];

/** Returns the facts about the running instance, or null if none runs. */
function running() {
  if (!existsSync(factsFile)) return null;
  const facts = JSON.parse(readFileSync(factsFile, "utf8"));
  try {
    // The process number may belong to another process now.
    return readFileSync(`/proc/${facts.pid}/cmdline`, "utf8").includes(stateDir) ? facts : null;
  } catch {
    return null;
  }
}

/** Stops the instance and deletes its state. */
export async function stopKeptInstance() {
  await endGroup(running());
  rmSync(folder, { recursive: true, force: true });
}

/**
 * Starts the instance, unless it runs and is up to date. Returns environment variables for the
 * tests.
 */
export const keptInstance = (variables) => locked(join(tools, "kept-instance.lock"), () => keptInstanceAlone(variables));

async function keptInstanceAlone(variables) {
  const sourceDigest = digest(SOURCES, JSON.stringify(variables));
  let facts = running();
  const isHealthy = facts?.sourceDigest === sourceDigest && (await fetch(`${facts.url}/healthz`, { signal: AbortSignal.timeout(2000) }).then((response) => response.ok, () => false));
  if (!isHealthy) {
    await stopKeptInstance();
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    const { url, operatorToken, pid } = await startInstance({ stateDir, port: await freePort(), environment: variables });
    facts = { url, operatorToken, pid, sourceDigest };
    writeFileSync(factsFile, JSON.stringify(facts, null, 2), { mode: 0o600 });
  }
  say(`service: ${facts.url}, kept in ${folder}; npm test -- stop ends it`);
  return { FARHAND_URL: facts.url, FARHAND_OPERATOR_TOKEN: facts.operatorToken, FARHAND_STATE_DIR: stateDir };
}
