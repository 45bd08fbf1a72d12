import { useMemo } from "react";
import { pieces, stylesAfter, type Piece } from "../../output/text";

/** The start of an output with its colours, as harmless text. */
export function OutputText({ text, label }: { text: string; label: string }) {
  const lines = useMemo(() => {
    let styles = "";
    return text
      .replace(/\n$/, "")
      .split("\n")
      .map((line): Piece[] => {
        const shown = pieces(line, styles);
        styles = stylesAfter(styles, line);
        return shown;
      });
  }, [text]);
  return (
    <pre className="output output-text-short" tabIndex={0} role="region" aria-label={label}>
      {lines.map((line, index) => (
        <bdi key={index} dir="ltr">
          {line.map(({ text: part, look, color, ground }, at) => (
            <span key={at} className={look || undefined} style={{ ...(color && { color: `rgb(${color})` }), ...(ground && { background: `rgb(${ground})` }) }}>
              {part}
            </span>
          ))}
          {"\n"}
        </bdi>
      ))}
    </pre>
  );
}
