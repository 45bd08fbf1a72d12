import { keepPreviousData, useQueries, type UseQueryOptions, type UseQueryResult } from "@tanstack/react-query";
import { useCallback, useState } from "react";
import { asProblem, type Problem } from "../api/problem";
import { POLL_MS, type Page } from "../api/queries";

export interface Pages<Item> {
  /** All items, or undefined until the first answer. */
  readonly count: number | undefined;
  /** The item at a position of the whole list, or undefined while its page is loading. */
  readonly at: (index: number) => Item | undefined;
  /** Reports which positions are visible. Only their pages are loaded and kept current. */
  readonly show: (first: number, last: number) => void;
  readonly problem: Problem | null;
  readonly retry: () => void;
}

/**
 * A long list of which only the visible pages are loaded. `page` returns the query of a page,
 * counted from 1.
 */
// eslint-disable-next-line @typescript-eslint/no-explicit-any -- a query is invariant in the type of its data
export function usePages<Item>(pageSize: number, page: (number: number) => UseQueryOptions<any, Error, any, any>): Pages<Item> {
  const [range, setRange] = useState({ first: 1, last: 1 });
  const numbers = Array.from({ length: range.last - range.first + 1 }, (_, index) => range.first + index);
  // The first page is always loaded, because the count comes with it.
  const wanted = numbers.includes(1) ? numbers : [1, ...numbers];
  const queries: UseQueryResult<Page<Item>>[] = useQueries({
    queries: wanted.map((number) => ({ ...page(number), refetchInterval: POLL_MS, placeholderData: keepPreviousData })),
  });
  const byNumber = new Map(wanted.map((number, index) => [number, queries[index]]));
  // After a filter made the list shorter, a page that was visible before does not exist.
  const failed = queries.find((query, index) => query.error && !query.data && (wanted[index] === 1 || asProblem(query.error).status !== 404));
  const show = useCallback(
    (first: number, last: number) => {
      const next = { first: Math.floor(first / pageSize) + 1, last: Math.floor(last / pageSize) + 1 };
      setRange((before) => (before.first === next.first && before.last === next.last ? before : next));
    },
    [pageSize],
  );
  return {
    count: byNumber.get(1)?.data?.count,
    at: (index) => byNumber.get(Math.floor(index / pageSize) + 1)?.data?.results[index % pageSize],
    show,
    problem: failed?.error ? asProblem(failed.error) : null,
    retry: () => queries.forEach((query) => void query.refetch()),
  };
}
