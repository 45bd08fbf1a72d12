import { Link } from "react-router";
import { useNow } from "../live/clock";
import { laterThan, weeksOf, type Entry } from "./calendar-days";
import { plural } from "./words";
import "./calendar.css";

const MINUTE_MS = 60_000;
/** The maximum number of entries that a day shows. */
const MAX_SHOWN = 3;
const weekday = new Intl.DateTimeFormat(undefined, { weekday: "short" });
const dayOfMonth = new Intl.DateTimeFormat(undefined, { day: "numeric" });
const firstOfMonth = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
const wholeDay = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long" });

/** The next runs in a table of weeks, from the current one on. */
export function Calendar({ entries, label }: { entries: readonly Entry[]; label: string }) {
  const now = useNow(MINUTE_MS);
  const weeks = weeksOf(entries, now);
  const later = laterThan(weeks, entries);
  return (
    <>
      <table className="calendar" aria-label={label}>
        <thead>
          <tr>
            {weeks[0]!.map(({ start }) => (
              <th key={start} scope="col">
                {weekday.format(start)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {weeks.map((days, week) => (
            <tr key={days[0]!.start}>
              {days.map(({ start, entries: ofDay }, index) => {
                const isToday = now >= start && now < (days[index + 1]?.start ?? start + 86_400_000);
                return (
                  <td key={start} className={`${isToday ? "today" : ""} ${ofDay.length === 0 ? "free" : ""}`}>
                    <span className="calendar-day" title={wholeDay.format(start)}>
                      {(week === 0 && index === 0) || new Date(start).getDate() === 1 ? firstOfMonth.format(start) : dayOfMonth.format(start)}
                      {isToday && <span className="visually-hidden"> today</span>}
                    </span>
                    {ofDay.slice(0, MAX_SHOWN).map(({ at, name, to }) => (
                      <Link key={`${to}${at}`} to={to} title={`${time.format(at)} ${name}`}>
                        <span className="number">{time.format(at)}</span> {name}
                      </Link>
                    ))}
                    {ofDay.length > MAX_SHOWN && <span className="muted">{plural(ofDay.length - MAX_SHOWN, "more", "more")}</span>}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
      {later > 0 && <p className="muted panel-body">{plural(later, "later run")} not shown.</p>}
    </>
  );
}
