// Runs a command on a server, prints its output, and ends with its exit code.
//
//   FARHAND_URL=https://acme.eu1.example.com FARHAND_TOKEN=... node run.mjs web-1 'uptime'
//
// Without FARHAND_TOKEN it logs in with FARHAND_USERNAME and FARHAND_PASSWORD.
// FARHAND_ACCOUNT is the account on the host.
// FARHAND_WAIT is how many seconds one request waits for the end of the command (1 to 60, default
// 30). Exit code 125: the command could not be run, or did not end with an exit code. Needs Node 20
// or later, and no packages.
import { randomUUID } from "node:crypto";

const COULD_NOT_RUN = 125;
const { FARHAND_URL, FARHAND_TOKEN, FARHAND_USERNAME, FARHAND_PASSWORD, FARHAND_ACCOUNT } = process.env;
const WAIT_SECONDS = Number(process.env.FARHAND_WAIT ?? 30);

/**
 * Sends a request. Returns the body of a success; throws the messages of the service for everything
 * else.
 * @param {string} path
 * @param {{method?: string, headers?: Record<string, string>, body?: object}} [options]
 */
async function request(path, { headers, body, ...options } = {}) {
  const response = await fetch(new URL(path, FARHAND_URL), {
    ...options,
    headers: { "Content-Type": "application/json", ...headers },
    body: body && JSON.stringify(body),
    signal: AbortSignal.timeout((WAIT_SECONDS + 30) * 1000),
  });
  const answer = /** @type {any} */ (await response.json());
  if (response.ok) return answer;
  // An error response has a list of messages for each bad field, or `detail`.
  const fields = Object.entries(answer).filter(([, texts]) => Array.isArray(texts));
  const message = fields.map(([field, texts]) => `${field}: ${texts.join(" ")}`).join("; ") || answer.detail;
  throw new Error(`${response.status}: ${message}`);
}

async function token() {
  if (FARHAND_TOKEN) return FARHAND_TOKEN;
  const body = { username: FARHAND_USERNAME, password: FARHAND_PASSWORD };
  return (await request("/api/auth/login/", { method: "POST", body })).token;
}

/** Runs a command and waits until it has ended. */
async function run(server, line) {
  const authorization = { Authorization: `token="${await token()}"` };
  // If the answer is lost, a second request with the same key does not run the command again.
  const headers = { ...authorization, Prefer: `wait=${WAIT_SECONDS}`, "Idempotency-Key": randomUUID() };
  const body = { server, line, ...(FARHAND_ACCOUNT && { username: FARHAND_ACCOUNT }) };
  let command = await request("/api/events/commands/", { method: "POST", headers, body });
  while (command.handled_at === null) {
    command = await request(`/api/events/commands/${command.id}/?wait=${WAIT_SECONDS}`, { headers: authorization });
  }
  return command;
}

try {
  const [server, line] = process.argv.slice(2);
  const command = await run(server, line);
  process.stdout.write(command.result ?? "");
  console.error(command.exit_code === null ? command.status.message : `exit code ${command.exit_code}`);
  process.exitCode = command.exit_code ?? COULD_NOT_RUN;
} catch (error) {
  console.error(error.cause ? `${error.message}: ${error.cause.message}` : error.message);
  process.exitCode = COULD_NOT_RUN;
}
