import { useNow } from "../live/clock";
import { duration, exact, relative, short } from "./words";

/** A time in the viewer's zone, relative to now. The exact time is shown on hover. */
export function Time({ at, form = "relative" }: { at: string | null | undefined; form?: "relative" | "short" | "exact" }) {
  const now = useNow(1_000);
  if (!at) return <span className="muted">–</span>;
  const time = Date.parse(at);
  const text = form === "exact" ? exact(time) : form === "short" ? short(time) : relative(time, now);
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
