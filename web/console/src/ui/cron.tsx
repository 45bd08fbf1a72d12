import { queryOptions, useQuery } from "@tanstack/react-query";

const OPTIONS = { use24HourTimeFormat: true, verbose: false, dayOfWeekStartIndexZero: true } as const;

/** The library that describes cron lines, loaded when the first one is shown. */
const cronstrue = () =>
  queryOptions({
    queryKey: ["cronstrue"],
    queryFn: async () => (await import("cronstrue")).default,
    staleTime: Infinity,
  });

/**
 * What a cron line means, or null if it is not understood. The service decides whether it is valid.
 */
export function useCronWords(cron: string): string | null {
  const { data: library } = useQuery(cronstrue());
  if (!library || cron.trim() === "") return null;
  try {
    return library.toString(cron.trim(), OPTIONS);
  } catch {
    return null;
  }
}

/** A cron line in plain words, or unchanged if it is not understood. */
export function CronWords({ cron, timezone }: { cron: string; timezone?: string }) {
  const words = useCronWords(cron);
  return (
    <span title={timezone ? `${cron} (${timezone})` : cron}>
      {words ?? <span className="mono">{cron}</span>}
      {timezone && <span className="muted"> {timezone}</span>}
    </span>
  );
}
