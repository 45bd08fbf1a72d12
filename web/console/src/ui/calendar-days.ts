// The days of a small calendar, in the viewer's zone.

export interface Entry {
  readonly at: number;
  readonly name: string;
  readonly to: string;
}

export interface Day {
  /** Local midnight. */
  readonly start: number;
  readonly entries: readonly Entry[];
}

const startOfDay = (time: number, days = 0) => {
  const date = new Date(time);
  return new Date(date.getFullYear(), date.getMonth(), date.getDate() + days).getTime();
};

/**
 * The week of `now` and the weeks after it, up to the last entry: at least two weeks, and at most
 * `maxWeeks`. A day begins at local midnight, because some days have 23 or 25 hours.
 */
export function weeksOf(entries: readonly Entry[], now: number, maxWeeks = 5): Day[][] {
  const monday = -((new Date(now).getDay() + 6) % 7);
  const latest = Math.max(now, ...entries.map(({ at }) => at));
  const weeks: Day[][] = [];
  for (let week = 0; week < maxWeeks; week += 1) {
    const first = startOfDay(now, monday + week * 7);
    if (week >= 2 && first > latest) break;
    weeks.push(
      Array.from({ length: 7 }, (_, day) => {
        const start = startOfDay(now, monday + week * 7 + day);
        const end = startOfDay(now, monday + week * 7 + day + 1);
        return { start, entries: entries.filter(({ at }) => at >= start && at < end).sort((one, other) => one.at - other.at) };
      }),
    );
  }
  return weeks;
}

/** How many entries are after the last shown day. */
export function laterThan(weeks: readonly (readonly Day[])[], entries: readonly Entry[]): number {
  const last = weeks.at(-1)?.at(-1);
  return last ? entries.filter(({ at }) => at >= startOfDay(last.start, 1)).length : 0;
}
