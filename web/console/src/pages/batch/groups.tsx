import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense, useState } from "react";
import { live, type Batch } from "../../api/queries";
import { Answer, Loading } from "../../ui/answers";
import { State } from "../../ui/state";
import { plural } from "../../ui/words";
import { OutputText } from "./output-text";
import { keyOf, outputs, toggled, type Group } from "./outputs";
import { hasEnded } from "./targets";

const Difference = lazy(() => import("./difference"));

/** Maximum number of servers of a group that are named. */
const NAMED = 6;

interface GroupsProps {
  batch: Batch;
  /** The keys of the groups that the address compares. */
  initial: readonly string[];
  onCompare: (keys: readonly string[]) => void;
  onSelect: (server: string) => void;
}

/** Which servers had equal output, and what differs between two of these groups. */
export function Groups({ batch, initial, onCompare, onSelect }: GroupsProps) {
  // The address changes in a transition, too late for a box that was clicked.
  const [compared, setCompared] = useState(initial);
  const toggle = (key: string) => {
    const next = toggled(compared, key);
    setCompared(next);
    onCompare(next);
  };
  const query = useQuery({ ...outputs(batch.id), ...(hasEnded(batch) ? {} : live) });
  return (
    <section className="panel" aria-label="Outputs">
      <Answer query={query}>
        {({ count, results }) => {
          const chosen = compared.flatMap((key) => results.find((group) => keyOf(group) === key) ?? []);
          return (
            <>
              <header>
                <h2>{headline(count, results)}</h2>
                {results.length > 1 && <span className="muted">{chosen.length < 2 ? "Choose two to compare them." : "Compared below."}</span>}
              </header>
              <ul className="groups">
                {results.map((group) => (
                  <OneGroup
                    key={keyOf(group)}
                    group={group}
                    isAlone={results.length === 1}
                    isCompared={compared.includes(keyOf(group))}
                    onCompare={() => toggle(keyOf(group))}
                    onSelect={onSelect}
                  />
                ))}
              </ul>
              {count > results.length && (
                <p className="panel-body muted">{plural(count - results.length, "smaller group is", "smaller groups are")} not shown.</p>
              )}
              {chosen.length === 2 && (
                <Suspense fallback={<Loading what="Comparing" />}>
                  <Difference left={chosen[0]!} right={chosen[1]!} />
                </Suspense>
              )}
            </>
          );
        }}
      </Answer>
    </section>
  );
}

function headline(count: number, groups: readonly Group[]) {
  if (count === 0) return "No server has ended";
  if (count === 1) return groups[0]!.count === 1 ? "One output" : "All ended servers said the same";
  return `${count} different outcomes`;
}

interface OneGroupProps {
  group: Group;
  isAlone: boolean;
  isCompared: boolean;
  onCompare: () => void;
  onSelect: (server: string) => void;
}

function OneGroup({ group, isAlone, isCompared, onCompare, onSelect }: OneGroupProps) {
  const { count, state, exit_code, result, result_truncated, targets } = group;
  const who = count === 1 ? targets[0]!.server_name : `${targets[0]!.server_name} and ${plural(count - 1, "more server")}`;
  const named = targets.slice(0, NAMED);
  return (
    <li>
      <div className="group-head">
        {!isAlone && (
          <label className="check">
            <input type="checkbox" aria-label={`Compare the output of ${who}`} checked={isCompared} onChange={onCompare} />
          </label>
        )}
        <State state={state}>
          {plural(count, "server")}
          {exit_code !== null && exit_code !== 0 && `, exit code ${exit_code}`}
        </State>
        <span className="group-names">
          {named.map(({ server, server_name }) => (
            <button key={server} type="button" className="chip" onClick={() => onSelect(server)}>
              {server_name}
            </button>
          ))}
          {count > named.length && <span className="muted">and {plural(count - named.length, "more", "more")}</span>}
        </span>
      </div>
      {result ? (
        <OutputText text={result} label={`Output of ${who}`} />
      ) : (
        <p className="muted">{result === null ? "It never started here." : "There was no output."}</p>
      )}
      {result_truncated && <p className="muted">This is the start of a longer output.</p>}
    </li>
  );
}
