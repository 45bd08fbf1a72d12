// The targets of a run: what the page keeps in the address, and what a request contains.
import type { Schema } from "../../api/client";

/** The state in the entry of the browser's history. Only the console writes it, links cannot. */
export interface RunState {
  /** Targets that are too many for an address. */
  readonly servers?: readonly string[];
  /** Whether the user chose the line in the console. A link from another person cannot set this. */
  readonly isOwnLine?: boolean;
}

export const OWN_LINE: RunState = { isOwnLine: true };

export interface Targets {
  readonly servers: readonly string[];
  readonly groups: readonly number[];
  readonly selector: string;
  readonly all: boolean;
}

/** Maximum number of names of servers in an address. */
const MOST_IN_ADDRESS = 50;

/** The query of `/run` for servers, empty if there are too many. */
export const targetsInAddress = (names: readonly string[]) => (names.length > MOST_IN_ADDRESS ? "" : `?servers=${names.map(encodeURIComponent).join(",")}`);

export const isEmpty = ({ servers, groups, selector, all }: Targets) => servers.length === 0 && groups.length === 0 && selector.trim() === "" && !all;

/** The member `targets` of a request (contract 13.2). */
export function selection({ servers, groups, selector, all }: Targets): Schema<"TargetSelection"> {
  return {
    ...(servers.length > 0 && { servers: [...servers] }),
    ...(groups.length > 0 && { groups: [...groups] }),
    ...(selector.trim() !== "" && { selector: selector.trim() }),
    ...(all && { all }),
  };
}

/** The target of a run on one named server, which is a command and not a batch. */
export const onlyServer = (targets: Targets) =>
  targets.servers.length === 1 && targets.groups.length === 0 && targets.selector.trim() === "" && !targets.all ? targets.servers[0] : undefined;
