// Uses the generated client as a program would: logs in, creates an API token, and runs a command
// with it.
import { createCommand, createToken, isAuthenticated, listCommands, logIn, retrieveCommand, status } from "./client";
import { client } from "./client/client.gen";

/** The response body of a call that must succeed. */
function good<T>(called: { data?: T; error?: unknown }): T {
  if (called.data === undefined) throw new Error(JSON.stringify(called.error));
  return called.data;
}

/** Runs a line on a server, and returns the results of the calls. */
export async function run(baseUrl: string, username: string, password: string, server: string, line: string) {
  client.setConfig({ baseUrl });
  const refused = await status();
  if (refused.response?.status !== 401 || refused.error === undefined || !("detail" in refused.error)) throw new Error("a request without a credential must be a 401");

  const login = good(await logIn({ body: { username, password } }));
  client.setConfig({ auth: `token="${login.token}"` });
  const token = good(await createToken({ body: { name: "client", expires_at: null } }));
  client.setConfig({ auth: `token="${token.key}"` });
  const { authenticated } = good(await isAuthenticated());

  const made = good(await createCommand({ body: { server, line }, headers: { Prefer: "wait=30", "Idempotency-Key": "client-1" } }));
  const found = good(await retrieveCommand({ path: { id: made.id } }));
  const listed = good(await listCommands({ query: { server: made.server, page_size: 1, ordering: "-added_at" } }));
  const blank = await createCommand({ body: { server, line: " " } });
  const code = blank.error && "code" in blank.error ? blank.error.code : null;
  return { authenticated, result: found.result, status: made.status.text, count: listed.count, code };
}
