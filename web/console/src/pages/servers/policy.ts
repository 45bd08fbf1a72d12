import type { Server } from "../../api/queries";

/** The policies that an install line can set, the default first, with what each means. */
export const POLICY_CHOICES = [
  ["accounts", "Accounts: every command, but none as root"],
  ["argv", "Argv: only the commands that you list on the host"],
  ["open", "Open: every command, also as root"],
] as const;

export type PolicyChoice = (typeof POLICY_CHOICES)[number][0];

/** What a chosen policy means for the host. */
export const POLICY_HINTS: Readonly<Record<PolicyChoice, string>> = {
  accounts: "Written on the host, where only root can change it. An account that may use sudo or docker is root all the same.",
  argv: "Nothing runs until root lists it in /etc/farhand/policy.toml on the host. Shell lines and scripts never run.",
  open: "Whoever may run commands as root here, and whoever controls this service, is root on the host.",
};

/** Adds the policy to an install line, whose variables are after its last pipe. */
export function withPolicy(install: string, policy: PolicyChoice): string {
  const at = install.lastIndexOf("| ");
  return at < 0 ? install : `${install.slice(0, at + 2)}FARHAND_POLICY=${policy} ${install.slice(at + 2)}`;
}

type Mode = NonNullable<Server["policy"]>["mode"];

/** The modes of a host's policy, with their names. */
export const MODES: readonly (readonly [Mode, string])[] = [
  ["none", "No policy"],
  ["open", "Open"],
  ["accounts", "Accounts"],
  ["argv", "Argv"],
  ["custom", "Custom"],
];

/** The mode with a name from an address. */
export const modeOf = (name: string) => MODES.find(([mode]) => mode === name)?.[0];

/** What a mode means, for a title. */
export const MEANINGS: Readonly<Record<Mode, string>> = {
  none: "The host has no policy: it runs whatever the service asks for.",
  open: "The policy limits no commands.",
  accounts: "No command runs as root.",
  argv: "Only commands that the host lists run.",
  custom: "The policy has other rules, or it is broken and refuses every command.",
};
