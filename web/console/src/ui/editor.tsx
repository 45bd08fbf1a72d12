import { useRef, type ComponentProps } from "react";
import { visible } from "../output/visible";
import "./editor.css";

const MIN_ROWS = 8;
const MAX_ROWS = 28;

/** The numbers beside a text, one on each line. */
const numbers = (text: string) => Array.from({ length: text.split("\n").length }, (_, index) => index + 1).join("\n");

/** A text area with line numbers. */
export function Editor({ value, ...rest }: Omit<ComponentProps<"textarea">, "value"> & { value: string }) {
  const gutter = useRef<HTMLPreElement>(null);
  const rows = Math.min(Math.max(value.split("\n").length + 1, MIN_ROWS), MAX_ROWS);
  return (
    <div className="editor">
      <pre ref={gutter} className="editor-numbers" aria-hidden="true">
        {numbers(value)}
      </pre>
      <textarea
        {...rest}
        className="editor-text"
        rows={rows}
        wrap="off"
        spellCheck={false}
        autoComplete="off"
        autoCapitalize="none"
        value={value}
        onScroll={({ currentTarget }) => {
          if (gutter.current) gutter.current.scrollTop = currentTarget.scrollTop;
        }}
      />
    </div>
  );
}

/** A text with line numbers, to read. */
export function Source({ text, label }: { text: string; label: string }) {
  return (
    <div className="editor source">
      <pre className="editor-numbers" aria-hidden="true">
        {numbers(text)}
      </pre>
      <pre className="editor-text" tabIndex={0} role="region" aria-label={label}>
        <code>{visible(text)}</code>
      </pre>
    </div>
  );
}
