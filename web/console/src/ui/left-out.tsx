import type { Page } from "../api/queries";
import { number, plural } from "./words";

/** Says that a list was too long to be read whole; undefined if it was read whole. */
export const leftOutOf = ({ count, results }: Page<unknown>, what: string) =>
  count > results.length ? `Only ${number(results.length)} of ${plural(count, what)} are listed.` : undefined;

export function LeftOut({ of, what }: { of: Page<unknown>; what: string }) {
  const text = leftOutOf(of, what);
  return text === undefined ? null : <p className="hint">{text}</p>;
}
