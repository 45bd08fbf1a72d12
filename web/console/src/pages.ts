// The table of pages: one row for each. The router, the rail, the command palette and the
// keyboard shortcuts are made from it. README.md says how to add a page.
import { lazy, type ComponentType } from "react";

/** What is counted beside the name of a page in the rail. */
export type Count = "servers" | "running" | "batches";

export interface PageRow {
  /** A pattern of React Router. Its first segment is in `domain/src/http/console.rs`. */
  readonly path: string;
  readonly name: string;
  readonly component: ComponentType;
  /** The part of the rail with the page. Pages of one object are in no part. */
  readonly rail?: "work" | "manage";
  /** The second key of the shortcut: `g`, then this key. */
  readonly key?: string;
  readonly count?: Count;
  /** The page is in the bar of a phone. The others are in its menu. */
  readonly isInBar?: boolean;
  /** Only staff see the page in the rail and in the palette. */
  readonly isForStaff?: boolean;
}

const page = (load: () => Promise<{ default: ComponentType }>) => lazy(load);

export const pages: readonly PageRow[] = [
  { path: "/", name: "Overview", component: page(() => import("./pages/overview/page")), rail: "work", key: "o", isInBar: true },
  { path: "/servers", name: "Servers", component: page(() => import("./pages/servers/page")), rail: "work", key: "s", isInBar: true, count: "servers" },
  { path: "/servers/deleted", name: "Deleted servers", component: page(() => import("./pages/deleted-servers/page")) },
  { path: "/servers/:id", name: "Server", component: page(() => import("./pages/server/page")) },
  { path: "/run", name: "Run", component: page(() => import("./pages/run/page")), rail: "work", key: "r", isInBar: true },
  { path: "/commands/:id", name: "Command", component: page(() => import("./pages/command/page")) },
  { path: "/history", name: "History", component: page(() => import("./pages/history/page")), rail: "work", key: "h", isInBar: true },
  { path: "/batches", name: "Batches", component: page(() => import("./pages/batches/page")), rail: "work", key: "b", count: "batches" },
  { path: "/batches/:id", name: "Batch", component: page(() => import("./pages/batch/page")) },
  { path: "/schedules", name: "Schedules", component: page(() => import("./pages/schedules/page")), rail: "work", key: "d" },
  { path: "/schedules/:id", name: "Schedule", component: page(() => import("./pages/schedule/page")) },
  { path: "/scripts", name: "Scripts", component: page(() => import("./pages/scripts/page")), rail: "work", key: "c" },
  { path: "/scripts/:id", name: "Script", component: page(() => import("./pages/script/page")) },
  { path: "/tokens", name: "Tokens", component: page(() => import("./pages/tokens/page")), rail: "manage", key: "t" },
  { path: "/users", name: "Users", component: page(() => import("./pages/users/page")), rail: "manage", key: "u" },
  { path: "/groups", name: "Groups", component: page(() => import("./pages/groups/page")), rail: "manage" },
  { path: "/groups/:id", name: "Group", component: page(() => import("./pages/group/page")) },
  { path: "/registration", name: "Registration tokens", component: page(() => import("./pages/registration/page")), rail: "manage", isForStaff: true },
  { path: "/audit", name: "Audit", component: page(() => import("./pages/audit/page")), rail: "manage", key: "a", isForStaff: true },
  { path: "/sessions", name: "Sessions", component: page(() => import("./pages/sessions/page")), rail: "manage" },
  { path: "/settings", name: "Settings", component: page(() => import("./pages/settings/page")), rail: "manage" },
];
