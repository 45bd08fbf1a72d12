import { lookOf, Mark } from "../../ui/state";
import { number } from "../../ui/words";
import { STATES, type TargetState } from "./targets";

/** What has ended is at the left, what waits is at the right. */
const IN_BAR = [...STATES.slice(4), ...STATES.slice(0, 4).toReversed()];

interface ProgressProps {
  counts: Record<TargetState, number>;
  /** The state that the grid is limited to, or an empty text. */
  only: string;
  onOnly: (state: string) => void;
}

/** A bar with one part for each state. Its legend limits the grid to a state. */
export function Progress({ counts, only, onOnly }: ProgressProps) {
  const shown = STATES.filter((state) => counts[state] > 0);
  return (
    <div className="progress">
      <Bar counts={counts} />
      <div className="row-of" role="group" aria-label="Only servers in a state">
        {shown.map((state) => (
          <button key={state} type="button" className="progress-count" aria-pressed={only === state} onClick={() => onOnly(only === state ? "" : state)}>
            <Mark state={state} />
            <span>
              {number(counts[state])} {lookOf(state).word}
            </span>
          </button>
        ))}
      </div>
    </div>
  );
}

/** Only the bar, for lists. */
export function Bar({ counts }: { counts: Record<TargetState, number> }) {
  const shown = IN_BAR.filter((state) => counts[state] > 0);
  return (
    <div className="progress-bar" aria-hidden="true">
      {shown.map((state) => (
        <span key={state} className={`tone-${lookOf(state).tone} is-${state}`} style={{ flexGrow: counts[state] }} />
      ))}
    </div>
  );
}
