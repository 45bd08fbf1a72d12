// Time zones for `time_zone.rs`, from the runtime's own time zone data.

/** The formatter of each time zone; null if the runtime does not know the zone. */
const formatters = new Map();

/** At most this many formatters are kept. There are about 600 names of time zones. */
const MAX_FORMATTERS = 1000;

function formatter(zone) {
  let found = formatters.get(zone);
  if (found === undefined) {
    const numeric = Object.fromEntries(["year", "month", "day", "hour", "minute", "second"].map((name) => [name, "numeric"]));
    try {
      found = new Intl.DateTimeFormat("en-US", { timeZone: zone, hourCycle: "h23", ...numeric });
    } catch {
      found = null;
    }
    if (formatters.size < MAX_FORMATTERS) formatters.set(zone, found);
  }
  return found;
}

export function isTimeZone(zone) {
  return formatter(zone) !== null;
}

/** Local time minus UTC, in seconds. `moment` is in seconds since 1970. */
export function offsetAt(zone, moment) {
  const parts = {};
  for (const { type, value } of formatter(zone).formatToParts(moment * 1000)) parts[type] = Number(value);
  const { year, month, day, hour, minute, second } = parts;
  return Date.UTC(year, month - 1, day, hour, minute, second) / 1000 - moment;
}
