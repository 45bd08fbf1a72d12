import { visible } from "../output/visible";

const SHOWN = 5;

/** Says which lines of a text that is being written have characters that its field does not show. */
export function HiddenNote({ text }: { text: string }) {
  const found = text.split("\n").flatMap((line, index) => {
    const names = line === visible(line) ? null : visible(line).match(/⟨U\+[0-9A-F]+⟩|[\u2400-\u2421]/g);
    return names ? [`line ${index + 1}: ${[...new Set(names)].join(" ")}`] : [];
  });
  if (found.length === 0) return null;
  return (
    <p className="tone-wait" role="status">
      It has characters that are invisible or change the order of others, in {found.slice(0, SHOWN).join(", ")}
      {found.length > SHOWN && ` and ${found.length - SHOWN} more lines`}.
    </p>
  );
}
