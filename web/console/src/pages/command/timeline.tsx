import type { Command } from "../../api/queries";
import { Time } from "../../ui/time";
import { duration } from "../../ui/words";

/** The five moments of a command, each with the time since the one before. */
export function Timeline({ command }: { command: Command }) {
  const moments: readonly (readonly [string, string | null])[] = [
    ["Created", command.added_at],
    ["Due", command.scheduled_at],
    ["Delivered", command.delivered_at],
    ["Started", command.acked_at],
    ["Ended", command.handled_at],
  ];
  const now = Date.now();
  let before: number | null = null;
  return (
    <ol className="timeline" aria-label="Moments of the command">
      {moments.map(([name, at]) => {
        const time = at === null ? null : Date.parse(at);
        const gap = time !== null && before !== null && time > before ? duration((time - before) / 1_000) : "";
        if (time !== null) before = time;
        return (
          <li key={name} className={time !== null && time <= now ? "reached" : ""}>
            <span>{name}</span>
            <span className="muted">{at === null ? "–" : <Time at={at} form="short" />}</span>
            <span className="muted number">{gap && `+${gap}`}</span>
          </li>
        );
      })}
    </ol>
  );
}
