import type { UseQueryResult } from "@tanstack/react-query";
import { useEffect, type ReactNode } from "react";
import { asProblem } from "../api/problem";
import { Empty, Failure, Loading } from "./answers";
import { LinkButton } from "./button";

interface PageProps {
  title: string;
  /** Shown instead of the title, for example with a link to the page above. */
  heading?: ReactNode;
  /** Beside the title: the primary action of the page. */
  actions?: ReactNode;
  children: ReactNode;
}

/** The frame of every page: its title, its actions, its content. */
export function Page({ title, heading, actions, children }: PageProps) {
  useEffect(() => {
    document.title = `${title} · Farhand`;
  }, [title]);
  return (
    <>
      <header className="page-header">
        <h1>{heading ?? title}</h1>
        {actions && <div className="page-actions">{actions}</div>}
      </header>
      {children}
    </>
  );
}

interface PageAnswerProps<Data> {
  query: UseQueryResult<Data>;
  /** What the page shows, for its error: `server`. */
  what: string;
  children: (data: Data) => ReactNode;
}

/** The page of one object, or what is shown instead. */
export function PageAnswer<Data>({ query, what, children }: PageAnswerProps<Data>) {
  if (query.data !== undefined) return children(query.data);
  if (!query.error) return <Loading />;
  const problem = asProblem(query.error);
  if (problem.status !== 404) {
    return (
      <Page title={`The ${what} cannot be shown`}>
        <Failure problem={problem} retry={() => void query.refetch()} />
      </Page>
    );
  }
  return (
    <Page title="Not found">
      <Empty title={`There is no such ${what}`}>
        <p>It was deleted, or you cannot access it.</p>
        <LinkButton to="/">Go to the overview</LinkButton>
      </Empty>
    </Page>
  );
}
