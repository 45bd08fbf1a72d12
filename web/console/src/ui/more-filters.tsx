import type { ReactNode } from "react";
import { useIsNarrow } from "./table";

/**
 * Filters that a phone folds away, so that the list is in sight. `inUse` is how many of them are
 * set.
 */
export function MoreFilters({ inUse, children }: { inUse: number; children: ReactNode }) {
  const isNarrow = useIsNarrow();
  if (!isNarrow) return children;
  return (
    <details className="more-filters unfold">
      <summary>More filters{inUse > 0 && `, ${inUse} in use`}</summary>
      <div className="toolbar">{children}</div>
    </details>
  );
}
