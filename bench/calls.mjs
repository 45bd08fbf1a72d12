// node bench/calls.mjs
//
// Counts how often the Worker's wasm calls JavaScript during a request. Fails if a count is 0 or
// above its limit. A call takes up to half a microsecond, and a row or a header can need several
// calls.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fail, say } from "../scripts/lib.mjs";
import { Client } from "./load.mjs";
import { observe } from "./observe.mjs";
import { startService, stopAll } from "./peers.mjs";
import { makeWorkspace } from "./workspace.mjs";

/** The requests, and the maximum calls for each. Without `token`, a request has no credential. */
const REQUESTS = [
  { path: "/api/events/commands/", token: "apiToken", max: 25 },
  { path: "/api/events/commands/", token: "loginToken", max: 25 },
  { path: "/api/auth/is-authenticated/", max: 10 },
];

const folder = mkdtempSync(join(tmpdir(), "farhand-calls-"));
const wrong = [];
try {
  const service = await startService(folder);
  const client = new Client(service.url, 1);
  const tokens = await makeWorkspace(client, service.operatorToken, "demo");
  await client.close();
  await service.stop();
  for (const { path, token, max } of REQUESTS) {
    const { calls } = await observe(folder, ({ get }) => get(path, tokens[token]));
    const count = Object.values(calls).reduce((sum, number) => sum + number, 0);
    const line = `${path}, ${token ?? "no header"}: ${count} calls of at most ${max}: ${JSON.stringify(calls)}`;
    say(line);
    if (count > max || count === 0) wrong.push(line);
  }
} finally {
  await stopAll();
  rmSync(folder, { recursive: true, force: true });
}
if (wrong.length > 0) fail(wrong.join("\n"));
