import { useMemo, useRef } from "react";
import type { Buffer } from "./buffer";

interface Searched {
  readonly buffer: Buffer;
  readonly text: string;
  readonly dropped: number;
  /** The number of lines that were searched. */
  readonly count: number;
  readonly found: readonly number[];
}

/** The lines of a buffer with a text. While the output grows, only new lines are searched. */
export function useMatches(buffer: Buffer, text: string): readonly number[] {
  const before = useRef<Searched | null>(null);
  const { version, count, dropped } = buffer;
  return useMemo(() => {
    if (text === "") {
      before.current = null;
      return [];
    }
    const last = before.current;
    const isSame = last !== null && last.buffer === buffer && last.text === text && last.dropped === dropped && last.count <= count;
    // The last line may have grown.
    const from = isSame ? Math.max(last.count - 1, 0) : 0;
    const found = [...(isSame ? last.found.filter((line) => line < from) : []), ...buffer.find(text, from)];
    before.current = { buffer, text, dropped, count, found };
    return found;
    // eslint-disable-next-line react-hooks/exhaustive-deps -- the content of a buffer changes with its version
  }, [buffer, text, version, count, dropped]);
}
