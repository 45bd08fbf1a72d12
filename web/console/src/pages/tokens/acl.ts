// The access control list of a token (contract 4.12): the form, the request, and its meaning.
import type { Schema } from "../../api/client";
import { plural } from "../../ui/words";

/** The form. An empty field does not limit. */
export interface Draft {
  /** One pattern on each line. */
  readonly commands: string;
  /** One list of words on each line, separated by blanks. */
  readonly argv: string;
  readonly scripts: readonly string[];
  readonly servers: readonly string[];
  readonly selector: string;
  /** Separated by commas or blanks. */
  readonly usernames: string;
  readonly networks: string;
  readonly maxTargets: string;
  readonly isReadOnly: boolean;
  readonly readsAll: boolean;
}

export const NO_LIMITS: Draft = {
  commands: "",
  argv: "",
  scripts: [],
  servers: [],
  selector: "",
  usernames: "",
  networks: "",
  maxTargets: "",
  isReadOnly: false,
  readsAll: false,
};

const linesOf = (text: string) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
const wordsOf = (text: string) => text.split(/[\s,]+/).filter((word) => word !== "");

/** The list of a form, or null if nothing limits. */
export function aclOf(draft: Draft): Schema<"AclInput"> | null {
  const lists = {
    commands: linesOf(draft.commands),
    argv: linesOf(draft.argv).map((line) => line.split(/\s+/)),
    scripts: [...draft.scripts],
    servers: [...draft.servers],
    usernames: wordsOf(draft.usernames),
    networks: wordsOf(draft.networks),
  };
  const acl: Schema<"AclInput"> = {
    ...Object.fromEntries(Object.entries(lists).filter(([, list]) => list.length > 0)),
    ...(draft.selector.trim() && { selector: draft.selector.trim() }),
    ...(draft.maxTargets.trim() && { max_targets: Number(draft.maxTargets) }),
    ...(draft.isReadOnly && { read_only: true }),
    ...(draft.readsAll && { read_all: true }),
  };
  return Object.keys(acl).length > 0 ? acl : null;
}

const listed = (items: readonly string[]) => (items.length <= 3 ? items.join(", ") : `${items.slice(0, 3).join(", ")} and ${items.length - 3} more`);

/** What a list allows, in a few words each. */
export function limitsOf(acl: Schema<"Acl"> | Schema<"AclInput"> | null): readonly string[] {
  if (acl === null) return ["everything that you can do"];
  const { commands, argv, scripts, servers, selector, usernames, networks, max_targets, read_only, read_all } = acl;
  const nothing = (list: readonly unknown[], what: string) => (list.length === 0 ? `no ${what}` : null);
  return [
    read_only && "only reads",
    commands && (nothing(commands, "lines") ?? `lines like ${listed(commands)}`),
    argv && (nothing(argv, "programs") ?? `programs like ${listed(argv.map((words) => words.join(" ")))}`),
    scripts && (nothing(scripts, "scripts") ?? plural(scripts.length, "script")),
    servers && (nothing(servers, "servers") ?? `on ${plural(servers.length, "server")}`),
    selector && `on servers with ${selector}`,
    usernames && (nothing(usernames, "accounts") ?? `as ${listed(usernames)}`),
    networks && `from ${listed(networks)}`,
    max_targets && `at most ${plural(max_targets, "target")} in a batch`,
    read_all && "reads all commands",
  ].filter((part): part is string => typeof part === "string");
}
