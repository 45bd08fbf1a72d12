// An agent whose commands are over as soon as they come: it acks, and tells at once what `echo` would have said.
import { WebSocket } from "undici";
import { Client } from "./load.mjs";

/**
 * Connects an agent. A report that the service does not take ends the run.
 * @param {string} url of the service
 * @param {{id: string, key: string}} server
 * @returns {Promise<{close: () => Promise<void>}>}
 */
export async function connectAgent(url, { id, key }) {
  const headers = { Authorization: `id="${id}", key="${key}"` };
  const client = new Client(url, 2, headers);
  const socket = new WebSocket(`${url.replace("http", "ws")}/ws/servers/backhaul/`, { headers });
  socket.addEventListener("message", async ({ data }) => {
    const { query, command } = JSON.parse(data);
    if (query !== "command") return;
    const path = `/api/events/commands/${command.id}/`;
    const fin = { success: true, result: `${command.line.replace(/^echo /, "")}\n`, elapsed_time: 0.001, exit_code: 0, chunks: 0 };
    // Side by side, as the reporters of an Alpamon are.
    await Promise.all([
      client.call("POST", `${path}ack/`, { expected: 204 }),
      client.call("POST", `${path}fin/`, { body: fin, expected: 204 }),
    ]);
  });
  await new Promise((opened, failed) => {
    socket.addEventListener("open", opened, { once: true });
    socket.addEventListener("error", () => failed(new Error("the agent was not let in")), { once: true });
  });
  return {
    close: () => {
      socket.close();
      return client.close();
    },
  };
}
