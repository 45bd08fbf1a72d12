// Output of a command: live, with colours, follow, wrap, search, copy and download.
import { useVirtualizer } from "@tanstack/react-virtual";
import {
  memo,
  useEffect,
  useEffectEvent,
  useLayoutEffect,
  useRef,
  useState,
  useSyncExternalStore,
  type CSSProperties,
  type MouseEvent,
  type ReactNode,
} from "react";
import { useLocation, useNavigate } from "react-router";
import { Button } from "../ui/button";
import { Copy } from "../ui/copy";
import { number } from "../ui/words";
import type { Buffer } from "./buffer";
import { pieces } from "./text";
import { useMatches } from "./use-matches";

interface OutputProps {
  buffer: Buffer;
  /** Whether more output may arrive. */
  isLive: boolean;
  /** Shown while there is no output. */
  nothing: string;
  /** Whether the number of a line is a link to it: `#L12` in the address of the page. */
  hasLinks?: boolean;
  onDownload?: () => void;
  /** Shown at the left of the tools. */
  children?: ReactNode;
}

const LINE = 18;
/** Within this distance of the end, in pixels, the view follows the output. */
const NEAR_END = 24;

export function Output({ buffer, isLive, nothing, hasLinks = false, onDownload, children }: OutputProps) {
  useSyncExternalStore(buffer.subscribe, () => buffer.version);
  const { count } = buffer;
  const area = useRef<HTMLDivElement>(null);
  const { hash } = useLocation();
  const navigate = useNavigate();
  const [isFollowing, setIsFollowing] = useState(true);
  const [isWrapped, setIsWrapped] = useState(true);
  const [search, setSearch] = useState("");
  const [match, setMatch] = useState(0);
  const matches = useMatches(buffer, search);
  const virtualizer = useVirtualizer({ count, getScrollElement: () => area.current, estimateSize: () => LINE, overscan: 20, useFlushSync: false });
  const digits = String(count + buffer.dropped).length;

  useLayoutEffect(() => {
    if (isFollowing && area.current) area.current.scrollTop = area.current.scrollHeight;
  });
  useEffect(() => virtualizer.measure(), [isWrapped, virtualizer]);

  const onScroll = () => {
    const element = area.current;
    if (!element) return;
    const isAtEnd = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_END;
    // Only the user scrolls up; growing output never moves the start.
    if (isAtEnd !== isFollowing) setIsFollowing(isAtEnd);
  };
  const goTo = (next: number) => {
    if (matches.length === 0) return;
    const index = (next + matches.length) % matches.length;
    setMatch(index);
    setIsFollowing(false);
    virtualizer.scrollToIndex(matches[index]!, { align: "center" });
  };
  // A new text is searched immediately. Enter goes to the next match.
  const isNewSearch = useRef(false);
  const goToFirst = useEffectEvent(() => goTo(0));
  useEffect(() => {
    if (!isNewSearch.current || matches.length === 0) return;
    isNewSearch.current = false;
    goToFirst();
  }, [matches]);
  /** One handler for all numbers, because a component for each is too slow for fast output. */
  const onLineClick = (event: MouseEvent) => {
    const link = (event.target as Element).closest("a[href]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    void navigate({ hash: link.getAttribute("href")! }, { replace: true, preventScrollReset: true });
  };
  const linked = hasLinks ? Number(/^#L(\d+)$/.exec(hash)?.[1] ?? 0) - 1 - buffer.dropped : -1;
  const isLinked = linked >= 0 && linked < count;
  const goToLinked = useEffectEvent(() => {
    setIsFollowing(false);
    virtualizer.scrollToIndex(linked, { align: "center" });
  });
  useEffect(() => {
    if (isLinked) goToLinked();
  }, [isLinked, hash]);
  const current = search === "" ? (isLinked ? linked : undefined) : matches[match];

  return (
    <section className={`output ${isWrapped ? "wrapped" : ""}`} aria-label="Output">
      <div className="output-tools">
        {children}
        <span className="output-search">
          <input
            type="search"
            aria-label="Search the output"
            placeholder="Search the output"
            value={search}
            onChange={(event) => {
              setSearch(event.target.value);
              isNewSearch.current = true;
            }}
            onKeyDown={(event) => event.key === "Enter" && goTo(event.shiftKey ? match - 1 : match + 1)}
          />
          {search !== "" && (
            <span className="number" role="status">
              {matches.length === 0 ? "none" : `${number(match + 1)} of ${number(matches.length)}`}
            </span>
          )}
        </span>
        <Button look="quiet" aria-pressed={isFollowing} onClick={() => setIsFollowing(!isFollowing)}>
          Follow
        </Button>
        <Button look="quiet" aria-pressed={isWrapped} onClick={() => setIsWrapped(!isWrapped)}>
          Wrap
        </Button>
        <Copy textOf={() => buffer.text()} />
        {onDownload && (
          <Button look="quiet" onClick={onDownload}>
            Download
          </Button>
        )}
      </div>
      <div className="output-area" ref={area} onScroll={onScroll} tabIndex={0} role="log" aria-live="off" aria-label="Lines of the output">
        {count === 0 ? (
          <p className="output-nothing">{nothing}</p>
        ) : (
          <div className="output-lines" onClick={onLineClick} style={{ height: virtualizer.getTotalSize(), "--digits": digits } as CSSProperties}>
            {virtualizer.getVirtualItems().map(({ index, start }) => (
              <div
                key={index}
                data-index={index}
                ref={isWrapped && mayWrap(buffer.line(index), virtualizer.scrollRect?.width ?? 0) ? virtualizer.measureElement : undefined}
                className={`output-line ${index === current ? "current" : ""}`}
                style={{ transform: `translateY(${start}px)` }}
              >
                <a className="output-number" href={hasLinks ? `#L${index + 1 + buffer.dropped}` : undefined} tabIndex={-1} aria-hidden="true">
                  {index + 1 + buffer.dropped}
                </a>
                <Line text={buffer.line(index)} styles={buffer.styles(index)} />
              </div>
            ))}
          </div>
        )}
      </div>
      {isLive && !isFollowing && (
        <button type="button" className="output-more" onClick={() => setIsFollowing(true)}>
          Go to the end ↓
        </button>
      )}
    </section>
  );
}

/** No character of the face is wider, in pixels. */
const WIDEST_CHARACTER = 9;
/** The number of a line and the space around it, in pixels. */
const MARGIN = 130;

/**
 * Whether a line may need more than one row. Only such lines are measured, because measuring slows
 * down fast output.
 */
const mayWrap = (line: string, width: number) => line.length * WIDEST_CHARACTER > width - MARGIN || /[^ -~]/.test(line);

/** One line. `bdi` keeps the direction of its letters from reordering what is around it. */
const Line = memo(function Line({ text, styles }: { text: string; styles: string }) {
  return (
    <bdi dir="ltr" className="output-text">
      {pieces(text, styles).map(({ text: part, look, color, ground }, index) => (
        <span
          key={index}
          className={look || undefined}
          style={color || ground ? { ...(color && { color: `rgb(${color})` }), ...(ground && { background: `rgb(${ground})` }) } : undefined}
        >
          {part}
        </span>
      ))}
    </bdi>
  );
});
