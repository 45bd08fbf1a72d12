import type { UseQueryResult } from "@tanstack/react-query";
import { asProblem } from "../../api/problem";
import { Mark } from "../../ui/state";
import { useIsNarrow } from "../../ui/table";
import { plural, short } from "../../ui/words";
import type { Plan } from "./plan";
import type { Draft } from "./request";
import { onlyServer } from "./targets";

/** Maximum number of servers that are listed by name. */
const LISTED = 200;

interface PreviewProps {
  draft: Draft;
  hasTargets: boolean;
  query: UseQueryResult<Plan>;
}

/** What would happen, in words, and the servers. */
export function Preview(props: PreviewProps) {
  return (
    <section className="panel preview" aria-label="Preview">
      <div className="panel-body">
        <Content {...props} />
      </div>
    </section>
  );
}

function Content({ draft, hasTargets, query }: PreviewProps) {
  const isNarrow = useIsNarrow();
  if (!hasTargets) return <p className="muted">Choose servers to see what would run.</p>;
  if (query.error) {
    const problem = asProblem(query.error);
    if (problem.fields["params"]) return <p className="muted">Fill in the parameters to see what would run.</p>;
    return (
      <p className="error" role="alert">
        {problem.fields["targets"]?.[0] ?? problem.message}
      </p>
    );
  }
  if (!query.data) return <p className="muted">Looking up the servers…</p>;
  const { targets, total } = query.data;
  return (
    <>
      <p role="status">{summary(draft, query.data)}</p>
      <details className="unfold" open={!isNarrow}>
        <summary>{plural(total, "server")}</summary>
        <ul className="planned" tabIndex={0} aria-label="Servers of this run">
          {targets.slice(0, LISTED).map(({ server, server_name, is_connected, username }) => (
            <li key={server}>
              <Mark state={is_connected ? "connected" : "offline"} />
              <span className="ellipsis">{server_name}</span>
              <span className="muted">
                {is_connected ? "" : "offline, "}as {username}
              </span>
            </li>
          ))}
        </ul>
        {targets.length > LISTED && <p className="muted">and {plural(targets.length - LISTED, "more", "more")}</p>}
      </details>
    </>
  );
}

/** One or two sentences about the run. */
export function summary(draft: Draft, { targets, total, max_concurrency, max_errors }: Plan): string {
  const isBatch = onlyServer(draft.targets) === undefined;
  const accounts = new Set(targets.map(({ username }) => username));
  const offline = targets.filter(({ is_connected }) => !is_connected).length;
  const parts = [
    draft.at ? `Starts on ${short(Date.parse(draft.at))}` : "Runs now",
    `on ${total === 1 ? targets[0]!.server_name : plural(total, "server")}`,
    accounts.size === 1 ? `as ${[...accounts][0]}` : `as ${accounts.size} different accounts`,
  ];
  const sentences = [`${parts.join(" ")}${isBatch && total > 1 ? `, ${Math.min(max_concurrency, total)} at once` : ""}.`];
  if (max_errors !== null && isBatch) sentences.push(`Stops when more than ${max_errors} failed.`);
  if (offline > 0) sentences.push(offlineSentence(offline, draft.offline || (isBatch ? "skip" : "reject"), draft.at !== ""));
  return sentences.join(" ");
}

function offlineSentence(count: number, policy: "skip" | "queue" | "reject", isLater: boolean): string {
  const are = count === 1 ? "1 server is offline" : `${plural(count, "server")} are offline`;
  if (isLater) return `${are} at the moment.`;
  if (policy === "queue") return `${are}: the command waits for ${count === 1 ? "its agent" : "their agents"}, at most an hour.`;
  return policy === "skip" ? `${are} and ${count === 1 ? "is" : "are"} skipped.` : `${are}, so the service will refuse it.`;
}
