// States of commands, targets, batches and servers: each has a colour, a shape and a word, never
// colour alone.
import type { ReactNode } from "react";

type Tone = "good" | "bad" | "busy" | "wait" | "off";
type Shape = "dot" | "ring" | "half" | "check" | "cross" | "pause" | "bar" | "clock";
interface Look {
  readonly word: string;
  readonly tone: Tone;
  readonly shape: Shape;
}

const LOOKS: Record<string, Look> = {
  connected: { word: "connected", tone: "good", shape: "dot" },
  offline: { word: "offline", tone: "off", shape: "ring" },
  approval: { word: "awaits approval", tone: "wait", shape: "pause" },
  scheduled: { word: "scheduled", tone: "off", shape: "clock" },
  pending: { word: "pending", tone: "off", shape: "ring" },
  queued: { word: "queued", tone: "wait", shape: "pause" },
  sent: { word: "sent", tone: "busy", shape: "half" },
  acked: { word: "running", tone: "busy", shape: "half" },
  running: { word: "running", tone: "busy", shape: "half" },
  stopping: { word: "stopping", tone: "busy", shape: "half" },
  success: { word: "success", tone: "good", shape: "check" },
  finished: { word: "finished", tone: "good", shape: "check" },
  failed: { word: "failed", tone: "bad", shape: "cross" },
  stuck: { word: "stuck", tone: "bad", shape: "cross" },
  expired: { word: "expired", tone: "bad", shape: "clock" },
  cancelled: { word: "cancelled", tone: "off", shape: "bar" },
  skipped: { word: "skipped", tone: "off", shape: "bar" },
};

const DRAWINGS: Record<Shape, ReactNode> = {
  dot: <circle cx="6" cy="6" r="4" fill="currentColor" />,
  ring: <circle cx="6" cy="6" r="3.5" fill="none" stroke="currentColor" strokeWidth="1.5" />,
  half: (
    <>
      <circle cx="6" cy="6" r="4" fill="none" stroke="currentColor" strokeWidth="1.5" />
      <path d="M6 2a4 4 0 0 1 0 8z" fill="currentColor" />
    </>
  ),
  check: <path d="M2 6.5 5 9.5 10 3" fill="none" stroke="currentColor" strokeWidth="1.8" strokeLinecap="round" strokeLinejoin="round" />,
  cross: <path d="M2.5 2.5l7 7M9.5 2.5l-7 7" fill="none" stroke="currentColor" strokeWidth="1.8" strokeLinecap="round" />,
  pause: <path d="M4 2.5v7M8 2.5v7" fill="none" stroke="currentColor" strokeWidth="2" strokeLinecap="round" />,
  bar: (
    <>
      <circle cx="6" cy="6" r="4.2" fill="none" stroke="currentColor" strokeWidth="1.5" />
      <path d="M3 9 9 3" stroke="currentColor" strokeWidth="1.5" />
    </>
  ),
  clock: (
    <>
      <circle cx="6" cy="6" r="4.2" fill="none" stroke="currentColor" strokeWidth="1.5" />
      <path d="M6 3.5V6l2 1" fill="none" stroke="currentColor" strokeWidth="1.5" strokeLinecap="round" />
    </>
  ),
};

const UNKNOWN: Look = { word: "", tone: "off", shape: "ring" };

/** The look of a state, for legends and grids. An unknown state is shown with its own word. */
export const lookOf = (state: string): Look => LOOKS[state] ?? { ...UNKNOWN, word: state };

/** The shape of a state without its word. The caller names the state in another way. */
export function Mark({ state }: { state: string }) {
  const { tone, shape } = lookOf(state);
  return (
    <svg className={`mark tone-${tone}`} viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">
      {DRAWINGS[shape]}
    </svg>
  );
}

/** A state with shape and word. `children` replaces the word. */
export function State({ state, children }: { state: string; children?: ReactNode }) {
  return (
    <span className="state">
      <Mark state={state} />
      <span className={`tone-${lookOf(state).tone}`}>{children ?? lookOf(state).word}</span>
    </span>
  );
}
