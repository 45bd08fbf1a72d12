/** The labels of a server. */
export function Labels({ labels }: { labels: Record<string, string> }) {
  const texts = Object.entries(labels).map(([key, value]) => (value === "" ? key : `${key}=${value}`));
  if (texts.length === 0) return null;
  return (
    <span className="chips" title={texts.join("\n")}>
      {texts.map((text) => (
        <span key={text} className="chip">
          {text}
        </span>
      ))}
    </span>
  );
}
