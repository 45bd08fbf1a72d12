import { useQuery, type QueryKey, type UseQueryOptions } from "@tanstack/react-query";
import { allGroups, type Page } from "../api/queries";

export interface All<Item> extends Page<Item> {
  /** Whether the list was read. It is empty before. */
  readonly isRead: boolean;
}

/** For which time a list to choose from is not read again. */
const STALE_MS = 60_000;
const NOTHING = { count: 0, results: [], isRead: false } as const;

/** A whole list, to choose from or to look up names. `LeftOut` says if it was too long. */
export function useAll<Item, Key extends QueryKey>(query: UseQueryOptions<Page<Item>, Error, Page<Item>, Key>): All<Item> {
  const { data } = useQuery({ ...query, staleTime: STALE_MS });
  return data ? { ...data, isRead: true } : NOTHING;
}

/** The names of all groups by their ids. */
export function useGroupNames(): ReadonlyMap<number, string> {
  return new Map(useAll(allGroups()).results.map(({ id, name, display_name }) => [id, display_name || name]));
}
