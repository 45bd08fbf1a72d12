import { quoted } from "../../ui/same";
import type { Draft } from "./request";

/**
 * The command line of `farhand` for a run, or null if `farhand` has no option for a part of it.
 * `script` is the name of the script that runs.
 */
export function asFarhand(
  { what, params, line, targets, username, timeout, cwd, concurrency, errors, ramp, offline, at, name }: Draft,
  script = "",
): string | null {
  if (targets.groups.length > 0 || (what === "script" && script === "")) return null;
  const words = ["farhand run"];
  if (targets.servers.length > 0) words.push(targets.servers.map(quoted).join(","));
  if (targets.selector.trim()) words.push("-l", quoted(targets.selector.trim()));
  if (targets.all) words.push("--all");
  if (username.trim()) words.push("--as", quoted(username.trim()));
  if (timeout.trim()) words.push("--timeout", `${timeout.trim()}s`);
  if (cwd.trim()) words.push("--cwd", quoted(cwd.trim()));
  if (concurrency.trim()) words.push("--max-concurrency", concurrency.trim());
  if (errors.trim()) words.push("--max-errors", errors.trim());
  if (ramp) words.push("--ramp");
  if (offline) words.push("--on-offline", offline);
  if (at) words.push("--at", new Date(at).toISOString());
  if (name.trim()) words.push("--name", quoted(name.trim()));
  if (what === "line") return [...words, "--", quoted(line || "uptime")].join(" ");
  words.push("--script", quoted(script));
  for (const [key, value] of Object.entries(params)) words.push("--param", quoted(`${key}=${value}`));
  return words.join(" ");
}
