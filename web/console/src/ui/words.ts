// Times, durations and sizes in words.

const MINUTE = 60;
const HOUR = 3_600;
const DAY = 86_400;

/** How long ago a time was, or how soon it is: `now`, `12 s ago`, `in 3 h`. */
export function relative(time: number, now: number): string {
  const seconds = Math.round((now - time) / 1_000);
  const size = Math.abs(seconds);
  if (size < 5) return "now";
  const text =
    size < MINUTE
      ? `${size} s`
      : size < HOUR
        ? `${Math.floor(size / MINUTE)} min`
        : size < DAY
          ? `${Math.floor(size / HOUR)} h`
          : `${Math.floor(size / DAY)} d`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

const exactFormat = new Intl.DateTimeFormat(undefined, {
  year: "numeric",
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  fractionalSecondDigits: 3,
  timeZoneName: "short",
});
const secondsFormat = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" });
const shortFormat = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });

/** The exact time in the viewer's zone. */
export const exact = (time: number) => exactFormat.format(time);
/** Day and second in the viewer's zone. */
export const toSecond = (time: number) => secondsFormat.format(time);
/** Day and minute in the viewer's zone. */
export const short = (time: number) => shortFormat.format(time);

/** A duration in seconds: `0.41 s`, `00:12`, `1:02:03`. */
export function duration(seconds: number): string {
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  const whole = Math.floor(seconds);
  const two = (value: number) => String(value).padStart(2, "0");
  const [hours, minutes, rest] = [Math.floor(whole / HOUR), Math.floor((whole % HOUR) / MINUTE), whole % MINUTE];
  return hours > 0 ? `${hours}:${two(minutes)}:${two(rest)}` : `${two(minutes)}:${two(rest)}`;
}

/** A number of bytes: `512 B`, `3.2 MiB`. */
export function bytes(count: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let unit = 0;
  while (value >= 1_024 && unit < units.length - 1) {
    value /= 1_024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

/** The banner about output that the service left out; null if it kept all of it. */
export function leftOut(skipped: number): string | null {
  return skipped > 0 ? `${bytes(skipped)} of the output were left out.` : null;
}

const plurals = new Intl.PluralRules("en");
const numbers = new Intl.NumberFormat("en");
/** `1 server`, `2,000 servers`. */
export const plural = (count: number, one: string, many = `${one}s`) => `${numbers.format(count)} ${plurals.select(count) === "one" ? one : many}`;
/** A number with commas between thousands. */
export const number = (count: number) => numbers.format(count);
