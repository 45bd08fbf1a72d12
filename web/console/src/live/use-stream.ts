import { useEffect, useRef, useState } from "react";
import { follow, type ServerEvent } from "../api/events";
import type { Problem } from "../api/problem";

/** `idle`: nothing to follow. `cut`: the connection was lost and is tried again. */
export type StreamState = "idle" | "connecting" | "open" | "cut" | "complete" | "refused";

/**
 * Follows a stream of Server-Sent Events while the component is mounted. `path` null follows
 * nothing. `onEvent` returns `true` if the stream is complete with this event.
 */
export function useStream(path: string | null, onEvent: (event: ServerEvent) => boolean | void): { state: StreamState; problem: Problem | null } {
  const [state, setState] = useState<StreamState>("idle");
  const [problem, setProblem] = useState<Problem | null>(null);
  const handler = useRef(onEvent);
  useEffect(() => {
    handler.current = onEvent;
  });
  useEffect(() => {
    setProblem(null);
    if (path === null) return setState("idle");
    const controller = new AbortController();
    setState("connecting");
    let isComplete = false;
    void follow(
      path,
      {
        onEvent(event) {
          isComplete = handler.current(event) === true;
          return isComplete;
        },
        onConnection: (isOpen) => setState(isOpen ? "open" : "cut"),
        onRefused(refusal) {
          setProblem(refusal);
          setState("refused");
        },
      },
      controller.signal,
    ).then(() => isComplete && setState("complete"));
    return () => controller.abort();
  }, [path]);
  return { state, problem };
}
