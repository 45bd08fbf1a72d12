import { useNow } from "../live/clock";
import { visible } from "../output/visible";
import { duration, exact, relative, short, toSecond } from "./words";

/** A time in the viewer's zone, relative to now. The exact time is shown on hover. */
export function Time({ at, form = "relative" }: { at: string | null | undefined; form?: "relative" | "short" | "second" | "exact" }) {
  const now = useNow(1_000);
  if (!at) return <span className="muted">–</span>;
  const time = Date.parse(at);
  const text = form === "exact" ? exact(time) : form === "second" ? toSecond(time) : form === "short" ? short(time) : relative(time, now);
  return (
    <time dateTime={at} title={exact(time)}>
      {text}
    </time>
  );
}

/** The seconds since a time, counting. */
export function Since({ at }: { at: string }) {
  const now = useNow(1_000);
  return <span className="number">{duration(Math.max(10, (now - Date.parse(at)) / 1_000))}</span>;
}

const ISO = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))/;

/** A sentence of the service, with its times in the viewer's zone. */
export const WithTimes = ({ text }: { text: string }) =>
  text.split(ISO).map((part, index) => (index % 2 === 1 ? <Time key={index} at={part} form="second" /> : visible(part)));
