import { useEffect, useState } from "react";
import { Button } from "./button";

/** A button that copies a text, and says so. `textOf` makes a text that is too long to keep. */
export function Copy({ text = "", textOf = () => text, label = "Copy" }: { text?: string; textOf?: () => string; label?: string }) {
  const [isCopied, setIsCopied] = useState(false);
  useEffect(() => {
    if (!isCopied) return;
    const timer = setTimeout(() => setIsCopied(false), 2_000);
    return () => clearTimeout(timer);
  }, [isCopied]);
  const copy = () => void navigator.clipboard.writeText(textOf()).then(() => setIsCopied(true));
  return (
    <Button look="quiet" onClick={copy}>
      <span aria-live="polite">{isCopied ? "Copied" : label}</span>
    </Button>
  );
}

/** Commands for a terminal, with a button to copy them. */
export function Snippet({ text, label }: { text: string; label: string }) {
  return (
    <div className="snippet">
      <pre tabIndex={0} aria-label={label}>
        <code>{text}</code>
      </pre>
      <Copy text={text} />
    </div>
  );
}
