// The table of pages: one row for each. The router, the rail, the command palette and the
// keyboard shortcuts are made from it. README.md says how to add a page.
import { lazy, type ComponentType } from "react";

/** What is counted beside the name of a page in the rail. */
export type Count = "servers" | "running" | "batches";

export interface PageRow {
  /** A pattern of React Router. Its first segment is in `domain/src/console.rs`. */
  readonly path: string;
  readonly name: string;
  readonly component: ComponentType;
  /** The part of the rail with the page. Pages of one object are in no part. */
  readonly rail?: "work" | "manage";
  /** The second key of the shortcut: `g`, then this key. */
  readonly key?: string;
  readonly count?: Count;
  /** Only staff see the page in the rail and in the palette. */
  readonly isForStaff?: boolean;
}

const page = (load: () => Promise<{ default: ComponentType }>) => lazy(load);

export const pages: readonly PageRow[] = [
  { path: "/", name: "Overview", component: page(() => import("./pages/overview/page")), rail: "work", key: "o" },
  { path: "/servers", name: "Servers", component: page(() => import("./pages/servers/page")), rail: "work", key: "s", count: "servers" },
  { path: "/servers/:id", name: "Server", component: page(() => import("./pages/server/page")) },
  { path: "/run", name: "Run", component: page(() => import("./pages/run/page")), rail: "work", key: "r" },
  { path: "/commands/:id", name: "Command", component: page(() => import("./pages/command/page")) },
];
