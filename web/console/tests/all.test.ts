// Lists that are read whole.
import { describe, expect, test } from "vitest";
import { readAll, type PageQuery } from "../src/api/all";
import { Problem } from "../src/api/problem";
import { leftOutOf } from "../src/ui/left-out";

/** A list of the service with items from 1 to `count`. */
const listOf = (count: number) => {
  const asked: number[] = [];
  const readPage = ({ page, page_size }: PageQuery) => {
    asked.push(page);
    const results = Array.from({ length: Math.max(0, Math.min(page_size, count - (page - 1) * page_size)) }, (_, index) => ({
      id: (page - 1) * page_size + index + 1,
    }));
    return Promise.resolve({ count, results });
  };
  return { asked, readPage };
};

describe("a list that is read whole", () => {
  test.each([
    [0, 1],
    [1, 1],
    [100, 1],
    [101, 2],
    [230, 3],
    [1_000, 10],
  ])("%i items are on %i pages", async (count, pages) => {
    const { asked, readPage } = listOf(count);
    const { results, count: all } = await readAll(readPage);
    expect(results.map(({ id }) => id)).toEqual(Array.from({ length: count }, (_, index) => index + 1));
    expect(all).toBe(count);
    expect(asked).toHaveLength(pages);
    expect(leftOutOf({ count: all, results }, "script")).toBeUndefined();
  });

  test("a list that is too long is read to the limit, and says what is missing", async () => {
    const { asked, readPage } = listOf(2_345);
    const list = await readAll(readPage);
    expect(list.results).toHaveLength(2_000);
    expect(asked).toHaveLength(20);
    expect(leftOutOf(list, "script")).toBe("Only 2,000 of 2,345 scripts are listed.");
    expect((await readAll(listOf(2_345).readPage, { most: 150 })).results).toHaveLength(150);
  });

  test("an item that a new one moved to the next page is listed once", async () => {
    const { readPage } = listOf(150);
    const { results } = await readAll(async (query) => {
      const { results } = await readPage(query);
      return query.page === 1 ? { count: 150, results } : { count: 151, results: [{ id: 100 }, ...results] };
    });
    expect(results).toHaveLength(150);
  });

  test("a list that becomes shorter ends, and other errors are reported", async () => {
    const failing = (status: number, on: number) => (query: PageQuery) =>
      query.page === on ? Promise.reject(new Problem(status, null, "no")) : listOf(150).readPage(query);
    expect((await readAll(failing(404, 2))).results).toHaveLength(100);
    await expect(readAll(failing(404, 1))).rejects.toThrow("no");
    await expect(readAll(failing(500, 2))).rejects.toThrow("no");
  });
});
