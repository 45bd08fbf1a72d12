import { memo, useId, useRef, useState, type KeyboardEvent, type MouseEvent } from "react";
import { lookOf, Mark } from "../../ui/state";
import { WithTimes } from "../../ui/time";
import { duration } from "../../ui/words";
import { reasonOf, type Target } from "./targets";

interface GridProps {
  targets: readonly Target[];
  /** The id of the server whose output is open. */
  selected: string;
  onSelect: (server: string) => void;
}

/** Maximum number of servers that are shown with their names. */
const NAMED = 36;

/**
 * One square for each server, with the colour and the shape of its state. The arrow keys move,
 * Enter opens.
 */
export function Grid({ targets, selected, onSelect }: GridProps) {
  const id = useId();
  const box = useRef<HTMLDivElement>(null);
  const [active, setActive] = useState<number | null>(null);
  const current = active === null ? targets.findIndex(({ server }) => server === selected) : Math.min(active, targets.length - 1);
  const shown = targets[current];
  const indexOf = ({ target }: MouseEvent) => {
    const cell = target instanceof Element ? target.closest("[data-index]") : null;
    return cell instanceof HTMLElement ? Number(cell.dataset["index"]) : null;
  };
  const columns = () => {
    const cells = box.current?.querySelectorAll<HTMLElement>("[data-index]") ?? [];
    const top = cells[0]?.offsetTop;
    const count = [...cells].findIndex(({ offsetTop }) => offsetTop !== top);
    return count === -1 ? cells.length : count;
  };
  const onKey = (event: KeyboardEvent) => {
    const at = Math.max(current, 0);
    const moves: Record<string, () => number> = {
      ArrowRight: () => (current === -1 ? 0 : at + 1),
      ArrowLeft: () => at - 1,
      ArrowDown: () => (current === -1 ? 0 : at + columns()),
      ArrowUp: () => at - columns(),
      Home: () => 0,
      End: () => targets.length - 1,
    };
    const move = moves[event.key];
    if (move) {
      event.preventDefault();
      const next = Math.max(0, Math.min(move(), targets.length - 1));
      setActive(next);
      document.getElementById(`${id}-${next}`)?.scrollIntoView({ block: "nearest" });
    } else if ((event.key === "Enter" || event.key === " ") && shown) {
      event.preventDefault();
      onSelect(shown.server);
    }
  };
  const isNamed = targets.length <= NAMED;
  return (
    <>
      <div
        ref={box}
        className={`target-grid ${isNamed ? "named" : ""}`}
        role="listbox"
        aria-label="Servers of the batch"
        tabIndex={0}
        aria-activedescendant={shown && `${id}-${current}`}
        onKeyDown={onKey}
        onMouseOver={(event) => setActive(indexOf(event) ?? active)}
        onMouseLeave={() => setActive(null)}
        onClick={(event) => {
          const index = indexOf(event);
          if (index !== null && targets[index]) onSelect(targets[index].server);
        }}
      >
        {targets.map(({ server, server_name, state }, index) => (
          <Cell
            key={server}
            id={`${id}-${index}`}
            index={index}
            name={server_name}
            state={state}
            isNamed={isNamed}
            isActive={index === current}
            isSelected={server === selected}
          />
        ))}
      </div>
      <p className="target-note muted" aria-hidden="true">
        {shown ? <WithTimes text={sentence(shown)} /> : isNamed ? "Choose a server for its output." : "Choose a square for its server and its output."}
      </p>
    </>
  );
}

function sentence(target: Target) {
  const { server_name, state, exit_code, elapsed_time } = target;
  return [
    `${server_name}: ${lookOf(state).word}`,
    exit_code !== null && exit_code !== 0 && `exit code ${exit_code}`,
    elapsed_time !== null && duration(elapsed_time),
    reasonOf(target),
  ]
    .filter(Boolean)
    .join(", ");
}

interface CellProps {
  id: string;
  index: number;
  name: string;
  state: string;
  isNamed: boolean;
  isActive: boolean;
  isSelected: boolean;
}

const Cell = memo(function Cell({ id, index, name, state, isNamed, isActive, isSelected }: CellProps) {
  const { tone, word } = lookOf(state);
  return (
    <div
      id={id}
      role="option"
      aria-selected={isSelected}
      aria-label={`${name}: ${word}`}
      data-index={index}
      data-state={state}
      title={`${name}: ${word}`}
      className={`target tone-${tone} ${isActive ? "active" : ""}`}
    >
      <Mark state={state} />
      {isNamed && <span className="ellipsis">{name}</span>}
    </div>
  );
});
