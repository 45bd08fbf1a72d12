import type { Server } from "../api/queries";

/** The state of a server: one that awaits approval runs no commands. */
export const stateOf = ({ registration, is_connected }: Server) => (registration === "pending" ? "approval" : is_connected ? "connected" : "offline");

/** The operating system, short: `Debian 12`. */
export const system = ({ os_name, os_version }: Server) => [os_name?.replace(" GNU/Linux", ""), os_version].filter(Boolean).join(" ");
