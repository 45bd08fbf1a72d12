// Loaded when two groups are compared, with the library that compares.
import { useQuery } from "@tanstack/react-query";
import { structuredPatch } from "diff";
import { useMemo } from "react";
import { command as commandQuery } from "../../api/queries";
import { plain } from "../../output/text";
import { Loading } from "../../ui/answers";
import { plural } from "../../ui/words";
import type { Group } from "./outputs";

const CONTEXT = 3;
const TIMEOUT_MS = 2_000;
const MOST_LINES = 2_000;

interface Line {
  readonly kind: "same" | "left" | "right" | "gap";
  readonly text: string;
}

/** The lines that differ, with some around them. Null if comparing takes too long. */
export function difference(left: string, right: string): Line[] | null {
  const harmless = (text: string) => text.replace(/\n$/, "").split("\n").map(plain).join("\n");
  const patch = structuredPatch("", "", harmless(left), harmless(right), undefined, undefined, { context: CONTEXT, timeout: TIMEOUT_MS });
  if (!patch) return null;
  return patch.hunks.flatMap(({ oldStart, lines }, index): Line[] => [
    ...(index > 0 || oldStart > 1 ? [{ kind: "gap", text: `line ${oldStart}` } as const] : []),
    // A backslash begins a note about the end of the file.
    ...lines
      .filter((line) => !line.startsWith("\\"))
      .map((line): Line => ({ kind: line.startsWith("-") ? "left" : line.startsWith("+") ? "right" : "same", text: line.slice(1) })),
  ]);
}

/** The kept output of a group, longer than in the list of groups if that was cut. */
function useResult({ result, result_truncated, targets }: Group) {
  const command = targets[0]?.command ?? "";
  const whole = useQuery({ ...commandQuery(command), enabled: result_truncated && command !== "" });
  return result_truncated ? whole.data?.result : (result ?? "");
}

const nameOf = ({ count, targets }: Group) => (count === 1 ? targets[0]!.server_name : plural(count, "server"));
const SIGNS = { same: " ", left: "−", right: "+", gap: "…" } as const;

export default function Difference({ left, right }: { left: Group; right: Group }) {
  const [before, after] = [useResult(left), useResult(right)];
  const lines = useMemo(() => (typeof before === "string" && typeof after === "string" ? difference(before, after) : undefined), [before, after]);
  return (
    <section className="panel-body difference" aria-label="Difference">
      <p>
        <span className="difference-left">− {nameOf(left)}</span> <span className="difference-right">+ {nameOf(right)}</span>
      </p>
      {lines === undefined && <Loading what="Comparing" />}
      {lines === null && <p>The outputs are too long and too different to compare.</p>}
      {lines?.length === 0 && <p>The outputs are equal. The states or exit codes differ.</p>}
      {lines && lines.length > 0 && (
        <pre className="output output-text-short" tabIndex={0} role="region" aria-label="Lines that differ">
          {lines.slice(0, MOST_LINES).map(({ kind, text }, index) => (
            <bdi key={index} dir="ltr" className={`difference-${kind}`}>
              <span aria-hidden="true">{SIGNS[kind]} </span>
              <span className="visually-hidden">{kind === "left" ? "only before: " : kind === "right" ? "only after: " : ""}</span>
              {text}
              {"\n"}
            </bdi>
          ))}
        </pre>
      )}
    </section>
  );
}
