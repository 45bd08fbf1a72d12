// A scripted agent that runs no commands. When a command arrives, it immediately reports the ack
// and the fin, with the output that `echo` would have.
import { WebSocket } from "undici";
import { Client } from "./load.mjs";

/**
 * Connects an agent. If the service refuses a report, this process ends with an error.
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
    // In parallel, like the reporters of Alpamon.
    await Promise.all([
      client.call("POST", `${path}ack/`, { expected: 204 }),
      client.call("POST", `${path}fin/`, { body: fin, expected: 204 }),
    ]);
  });
  await new Promise((opened, failed) => {
    socket.addEventListener("open", opened, { once: true });
    socket.addEventListener("error", () => failed(new Error("the agent could not connect")), { once: true });
  });
  return {
    close: () => {
      socket.close();
      return client.close();
    },
  };
}
