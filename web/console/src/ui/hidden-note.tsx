import { hiddenIn } from "../output/visible";

const MAX_LINES = 5;

/**
 * Says which lines of a text that is being written have characters that its field does not show.
 */
export function HiddenNote({ text }: { text: string }) {
  const found = text.split("\n").flatMap((line, index) => {
    const names = hiddenIn(line);
    return names.length > 0 ? [`line ${index + 1}: ${names.join(" ")}`] : [];
  });
  if (found.length === 0) return null;
  return (
    <p className="tone-wait" role="status">
      It has characters that are invisible or change the order of others, in {found.slice(0, MAX_LINES).join(", ")}
      {found.length > MAX_LINES && ` and ${found.length - MAX_LINES} more lines`}.
    </p>
  );
}
