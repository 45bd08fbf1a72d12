// The address of the page that runs a command, filled in.
import type { Command } from "../../api/queries";

/** The name of the script in the line of a command that ran one (contract 14.12). */
export const scriptOf = (line: string) => /^script:(.+)@\d+$/.exec(line)?.[1];

/** Values of a script's parameters are not kept, so they must be typed again. */
export function runAgain({ server_name, line, username }: Command) {
  const script = scriptOf(line);
  return `/run?${new URLSearchParams({ servers: server_name, ...(script === undefined ? { line } : { script }), username }).toString()}`;
}
