// The address of the page that runs a command, filled in.
import type { Command } from "../../api/queries";

/** A script runs again by its name and version, which are in the line. */
export const runAgain = ({ server_name, line, username }: Command) => `/run?${new URLSearchParams({ servers: server_name, line, username }).toString()}`;
