import { number } from "../../ui/words";

/** The number of requests that an event stands for, if there are several. */
export function timesOf(details: object): string {
  const count = "count" in details ? details.count : undefined;
  return typeof count === "number" && count > 1 ? ` × ${number(count)}` : "";
}
