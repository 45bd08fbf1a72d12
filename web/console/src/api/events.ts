// Server-Sent Events through `fetch`, because `EventSource` cannot send an Authorization header.
import { createParser } from "eventsource-parser";
import { authorization, endIfRefused } from "./client";
import { Problem, asProblem, problemOf } from "./problem";
import * as session from "./session";

export interface ServerEvent {
  readonly id: string | undefined;
  readonly name: string;
  readonly data: string;
}

export interface StreamHandlers {
  /** Returns `true` if the stream is complete with this event. */
  onEvent(event: ServerEvent): boolean | void;
  /** The connection opened, or was lost and will be retried. */
  onConnection?(isOpen: boolean): void;
  /** The service refused the stream, and a retry would not help. */
  onRefused?(problem: Problem): void;
}

const RETRY_FIRST_MS = 500;
const RETRY_MOST_MS = 10_000;
/**
 * The service sends a comment every 15 s (contract 7.9), so a longer silence is a lost connection.
 */
const SILENCE_MS = 40_000;

/**
 * Follows a stream until an event completes it or `signal` aborts. After a cut it continues behind
 * the last event that had an id.
 */
export async function follow(path: string, handlers: StreamHandlers, signal: AbortSignal): Promise<void> {
  let lastId: string | undefined;
  let delay = RETRY_FIRST_MS;
  while (!signal.aborted) {
    const attempt = new AbortController();
    const stop = () => attempt.abort();
    signal.addEventListener("abort", stop);
    let silence = setTimeout(stop, SILENCE_MS);
    let isComplete = false;
    try {
      const token = session.token();
      const response = await fetch(path, {
        signal: attempt.signal,
        cache: "no-store",
        headers: {
          Accept: "text/event-stream",
          ...(token !== null && { Authorization: authorization(token) }),
          ...(lastId !== undefined && { "Last-Event-ID": lastId }),
        },
      });
      if (!response.ok || !response.body) {
        const body: unknown = await response.json().catch(() => null);
        const problem = problemOf(response.status, body, response.headers.get("X-Request-Id"));
        endIfRefused(problem.status, problem.code, token);
        // A retry may help after a 429 or a 5xx, but not after other errors.
        if (problem.status < 500 && problem.status !== 429) return handlers.onRefused?.(problem);
        throw problem;
      }
      handlers.onConnection?.(true);
      delay = RETRY_FIRST_MS;
      const parser = createParser({
        onEvent({ id, event, data }) {
          if (id !== undefined) lastId = id;
          if (handlers.onEvent({ id, name: event ?? "message", data }) === true) isComplete = true;
        },
      });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        clearTimeout(silence);
        silence = setTimeout(stop, SILENCE_MS);
        parser.feed(value);
        if (isComplete) {
          attempt.abort();
          return;
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      void asProblem(error);
    } finally {
      clearTimeout(silence);
      signal.removeEventListener("abort", stop);
    }
    if (isComplete) return;
    handlers.onConnection?.(false);
    await pause(delay, signal);
    delay = Math.min(delay * 2, RETRY_MOST_MS);
  }
}

/** Waits for `ms`, but ends early if the signal aborts or the browser is online again. */
function pause(ms: number, signal: AbortSignal) {
  return new Promise<void>((resolve) => {
    const done = () => {
      clearTimeout(timer);
      window.removeEventListener("online", done);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    window.addEventListener("online", done);
    signal.addEventListener("abort", done);
  });
}
