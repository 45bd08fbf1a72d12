// Query options that several pages share. A page adds its own beside its code.
import type { paths } from "#schema";
import { QueryCache, QueryClient, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { reportConnection } from "../live/connection";
import { MOST_ON_A_PAGE, readAll, type Page } from "./all";
import { api, read, type Schema } from "./client";
import { asProblem } from "./problem";

export type Server = Schema<"Server">;
export type Command = Schema<"Command">;
export type Batch = Schema<"Batch">;
export type Schedule = Schema<"Schedule">;
export type User = Schema<"User">;
/** The query parameters of a list. */
export type ListQuery<Path extends keyof paths> = paths[Path] extends { get: { parameters: { query?: infer Query } } } ? NonNullable<Query> : never;

export type { Page };

/** How often visible data is read again, unless a stream keeps it current (contract 16.3). */
export const POLL_MS = 5_000;

/** Reports to the frame whether the service answers. All queries use this cache. */
const cache = new QueryCache({
  onSuccess: () => reportConnection(true),
  onError: (error) => reportConnection(!asProblem(error).isOffline),
});

export const queryClient = new QueryClient({
  queryCache: cache,
  defaultOptions: {
    queries: {
      // A browser that assumes it is offline may still reach a service on its own machine.
      networkMode: "always",
      // An error of the service is its answer. A lost connection heals with the next poll.
      retry: (failures, error) => asProblem(error).isOffline && failures < 2,
      staleTime: 2_000,
      throwOnError: false,
    },
    mutations: { networkMode: "always" },
  },
});

/** The options of a query that is read again while its page is visible. */
export const live = { refetchInterval: POLL_MS, refetchIntervalInBackground: false, placeholderData: keepPreviousData } as const;

/**
 * The same for a list that is read whole. A list of many pages is read less often, so that the
 * number of requests stays the same.
 */
export const liveAll = {
  ...live,
  refetchInterval: ({ state }: { state: { data: Page<unknown> | undefined } }) =>
    POLL_MS * Math.max(1, Math.ceil((state.data?.results.length ?? 0) / MOST_ON_A_PAGE)),
} as const;

export const me = () =>
  queryOptions({
    queryKey: ["me"],
    queryFn: ({ signal }) => read(api.GET("/api/iam/users/-/", { signal })),
    staleTime: 60_000,
  });

export const servers = (query: ListQuery<"/api/servers/">) =>
  queryOptions({
    queryKey: ["servers", query],
    queryFn: ({ signal }) => read(api.GET("/api/servers/", { params: { query }, signal })),
  });

export const server = (id: string) =>
  queryOptions({
    queryKey: ["server", id],
    // Only an agent, which asks for its own server, gets the other form of the response.
    queryFn: async ({ signal }) => (await read(api.GET("/api/servers/servers/{id}/", { params: { path: { id } }, signal }))) as Server,
  });

export const commands = (query: ListQuery<"/api/events/commands/">) =>
  queryOptions({
    queryKey: ["commands", query],
    queryFn: ({ signal }) => read(api.GET("/api/events/commands/", { params: { query }, signal })),
  });

export const command = (id: string) =>
  queryOptions({
    queryKey: ["command", id],
    queryFn: ({ signal }) => read(api.GET("/api/events/commands/{id}/", { params: { path: { id } }, signal })),
  });

export const batches = (query: ListQuery<"/api/events/batches/">) =>
  queryOptions({
    queryKey: ["batches", query],
    queryFn: ({ signal }) => read(api.GET("/api/events/batches/", { params: { query }, signal })),
  });

export const batch = (id: string) =>
  queryOptions({
    queryKey: ["batch", id],
    queryFn: ({ signal }) => read(api.GET("/api/events/batches/{id}/", { params: { path: { id } }, signal })),
  });

export const schedules = (query: ListQuery<"/api/events/schedules/">) =>
  queryOptions({
    queryKey: ["schedules", query],
    queryFn: ({ signal }) => read(api.GET("/api/events/schedules/", { params: { query }, signal })),
  });

export const groups = (query: ListQuery<"/api/iam/groups/">) =>
  queryOptions({
    queryKey: ["groups", query],
    queryFn: ({ signal }) => read(api.GET("/api/iam/groups/", { params: { query }, signal })),
  });

export const schedule = (id: string) =>
  queryOptions({
    queryKey: ["schedule", id],
    queryFn: ({ signal }) => read(api.GET("/api/events/schedules/{id}/", { params: { path: { id } }, signal })),
  });

export const scripts = (query: ListQuery<"/api/events/scripts/">) =>
  queryOptions({
    queryKey: ["scripts", query],
    queryFn: ({ signal }) => read(api.GET("/api/events/scripts/", { params: { query }, signal })),
  });

/** All scripts by name. */
export const allScripts = () =>
  queryOptions({
    queryKey: ["scripts", "all"],
    queryFn: async ({ signal }): Promise<Page<Schema<"ScriptSummary">>> => {
      const { count, results } = await readAll((query) => read(api.GET("/api/events/scripts/", { params: { query }, signal })));
      return { count, results: [...results].sort((one, other) => one.name.localeCompare(other.name)) };
    },
  });

export const allGroups = () =>
  queryOptions({
    queryKey: ["groups", "all"],
    queryFn: ({ signal }) => readAll((query) => read(api.GET("/api/iam/groups/", { params: { query }, signal }))),
  });

export const allSchedules = () =>
  queryOptions({
    queryKey: ["schedules", "all"],
    queryFn: ({ signal }) => readAll((query) => read(api.GET("/api/events/schedules/", { params: { query }, signal }))),
  });

export const script = (id: string) =>
  queryOptions({
    queryKey: ["script", id],
    queryFn: ({ signal }) => read(api.GET("/api/events/scripts/{id}/", { params: { path: { id } }, signal })),
  });

export const users = (query: ListQuery<"/api/iam/users/">) =>
  queryOptions({
    queryKey: ["users", query],
    queryFn: ({ signal }) => read(api.GET("/api/iam/users/", { params: { query }, signal })),
  });

// The queries behind the counts of the rail. The overview shows the same numbers.
export const connectedServers = () => servers({ is_connected: true, page_size: 1 });
export const offlineServers = () => servers({ is_connected: false, page_size: 1 });
export const runningCommands = () => commands({ state: "sent,acked", page_size: 8 });
export const runningBatches = () => batches({ state: "running,stopping", page_size: 1 });

/**
 * Staff manage servers, groups, scripts and ordinary users. Superusers can do all that staff can.
 */
export const isStaff = (user: User | undefined) => user !== undefined && (user.is_staff || user.is_superuser);
