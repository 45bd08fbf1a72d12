// Lists that are read whole: to choose from, or to look up names. Long lists of a page are read in
// parts instead, with `usePages`.
import { asProblem } from "./problem";

/** A list, or its beginning: `count` is the number of all items. */
export interface Page<Item> {
  readonly count: number;
  readonly results: readonly Item[];
}

export interface PageQuery {
  page: number;
  page_size: number;
}

interface Options<Item> {
  /** Finds an item on two pages: a new item moves the others while the pages are read. */
  readonly keyOf?: (item: Item) => string | number;
  /** Maximum of `page_size` of the list (contract 3.7). */
  readonly pageSize?: number;
  /** Maximum number of items. `LeftOut` says how many are missing. */
  readonly most?: number;
}

/** Maximum of `page_size` of most lists (contract 3.7). */
export const MOST_ON_A_PAGE = 100;
const MOST = 2_000;

/** Reads all pages of a list, one after the other. */
export async function readAll<Item extends object>(readPage: (query: PageQuery) => Promise<Page<Item>>, options: Options<Item> = {}): Promise<Page<Item>> {
  const { keyOf = (item) => ("id" in item ? (item.id as string | number) : JSON.stringify(item)), pageSize = MOST_ON_A_PAGE, most = MOST } = options;
  const found = new Map<string | number, Item>();
  let count = 0;
  for (let page = 1; page === 1 || (page - 1) * pageSize < Math.min(count, most); page += 1) {
    const next = await readPage({ page, page_size: pageSize }).catch((error: unknown) => {
      // Deletions can make the list shorter while it is read.
      if (page > 1 && asProblem(error).status === 404) return null;
      throw error;
    });
    if (!next || next.results.length === 0) break;
    count = next.count;
    for (const item of next.results) if (found.size < most) found.set(keyOf(item), item);
  }
  return { count: Math.max(count, found.size), results: [...found.values()] };
}
