import { hiddenIn } from "../output/visible";

/** A note below a field whose text contains characters that cannot be seen in it. */
export function HiddenNote({ text }: { text: string }) {
  const names = hiddenIn(text);
  if (names.length === 0) return null;
  return (
    <p className="tone-wait" role="status">
      This text has characters that are invisible or change the order of others: {names.join(" ")}
    </p>
  );
}
