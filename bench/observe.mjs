// What requests make the Worker do: its calls from wasm into JavaScript, and its statements for D1.
import { Client } from "./load.mjs";
import { startObserved } from "./peers.mjs";
import { userToken } from "./workspace.mjs";

/** How often a request is made before it is observed: what an isolate remembers is there then. */
const BEFORE = 3;

/**
 * Starts the service on the state of a folder, makes a request several times, and stops the service.
 * @param {string} folder where a service ran before
 * @param {(make: {get: (path: string, token?: string) => Promise<string>}) => Promise<unknown>} work makes the request
 * @returns {Promise<{calls: Record<string, number>, statements: {text: string, parameters: unknown[]}[]}>} what the last request did
 */
export async function observe(folder, work) {
  const instance = await startObserved(folder);
  const client = new Client(instance.url, 1);
  const get = (path, token) => client.call("GET", path, { headers: token && userToken(token) });
  try {
    for (let made = 0; made < BEFORE; made += 1) await work({ get });
    await client.json("GET", "/observed");
    await work({ get });
    return await client.json("GET", "/observed");
  } finally {
    await client.close();
    await instance.stop();
  }
}
