// Observes what the Worker does for a request: its calls from wasm into JavaScript, and its D1
// statements.
import { Client } from "./load.mjs";
import { startObserved } from "./peers.mjs";
import { userToken } from "./workspace.mjs";

/** The number of requests before the observed request, so that the isolate has its cached hints. */
const WARM_UP_REQUESTS = 3;

/**
 * Starts the service with the state in a folder, sends a request several times, and stops the
 * service.
 * @param {string} folder where a service ran before
 * @param {(make: {get: (path: string, token?: string) => Promise<string>}) => Promise<unknown>}
 * work a function that sends the request
 * @returns {Promise<{calls: Record<string, number>, statements: {text: string, parameters:
 * unknown[]}[]}>} the calls and statements of the last request
 */
export async function observe(folder, work) {
  const instance = await startObserved(folder);
  const client = new Client(instance.url, 1);
  const get = (path, token) => client.call("GET", path, { headers: token && userToken(token) });
  try {
    for (let sent = 0; sent < WARM_UP_REQUESTS; sent += 1) await work({ get });
    await client.json("GET", "/observed");
    await work({ get });
    return await client.json("GET", "/observed");
  } finally {
    await client.close();
    await instance.stop();
  }
}
