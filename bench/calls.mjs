// node bench/calls.mjs: how often the built Worker's wasm calls JavaScript for a request. It fails if that is too often: each call
// costs up to half a microsecond, and much more where a row or a header takes several.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fail, say } from "../scripts/lib.mjs";
import { Client } from "./load.mjs";
import { observe } from "./observe.mjs";
import { startService, stopAll } from "./peers.mjs";
import { makeWorkspace } from "./workspace.mjs";

/** The most calls of a request; `token` names the caller's kind. */
const REQUESTS = [
  { path: "/api/events/commands/", token: "apiToken", most: 25 },
  { path: "/api/events/commands/", token: "loginToken", most: 25 },
  { path: "/api/auth/is-authenticated/", most: 10 },
];

const folder = mkdtempSync(join(tmpdir(), "farhand-calls-"));
const wrong = [];
try {
  const service = await startService(folder);
  const client = new Client(service.url, 1);
  const tokens = await makeWorkspace(client, service.operatorToken, "demo");
  await client.close();
  await service.stop();
  for (const { path, token, most } of REQUESTS) {
    const { calls } = await observe(folder, ({ get }) => get(path, tokens[token]));
    const count = Object.values(calls).reduce((sum, number) => sum + number, 0);
    const line = `${path}, ${token ?? "no header"}: ${count} calls of at most ${most}: ${JSON.stringify(calls)}`;
    say(line);
    if (count > most || count === 0) wrong.push(line);
  }
} finally {
  await stopAll();
  rmSync(folder, { recursive: true, force: true });
}
if (wrong.length > 0) fail(wrong.join("\n"));
