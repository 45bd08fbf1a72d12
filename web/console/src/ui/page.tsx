import { useEffect, type ReactNode } from "react";

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
