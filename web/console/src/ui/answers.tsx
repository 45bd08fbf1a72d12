// What is shown instead of data: while it loads, when it is empty, when it failed.
import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { asProblem, type Problem } from "../api/problem";
import { Button } from "./button";

/** Appears only after a moment, so that a fast answer causes no flicker. */
export const Loading = ({ what = "Loading" }: { what?: string }) => (
  <p className="loading" role="status">
    {what}…
  </p>
);

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

const TITLES: Record<number, string> = { 0: "No connection", 403: "Not allowed", 404: "Not found" };

export function Failure({ problem, retry }: { problem: Problem; retry?: () => void }) {
  return (
    <div className="empty failure" role="alert">
      <h2>{TITLES[problem.status] ?? "That did not work"}</h2>
      <p>{problem.message}</p>
      {problem.requestId && problem.status >= 500 && <p className="muted">Request {problem.requestId}</p>}
      {retry && problem.status !== 404 && <Button onClick={retry}>Try again</Button>}
    </div>
  );
}

/** The error of an action, beside its button. */
export function ActionError({ error }: { error: unknown }) {
  if (!error) return null;
  const problem = asProblem(error);
  const others = problem.othersThan();
  return (
    <div className="action-error" role="alert">
      {others.length > 0 ? others.map((message) => <p key={message}>{message}</p>) : <p>{problem.message}</p>}
    </div>
  );
}

/**
 * The data of a query, or what is shown instead. An error does not hide data that was read before.
 */
export function Answer<Data>({ query, children }: { query: UseQueryResult<Data>; children: (data: Data) => ReactNode }) {
  if (query.data !== undefined) return children(query.data);
  if (query.error) return <Failure problem={asProblem(query.error)} retry={() => void query.refetch()} />;
  return <Loading />;
}
