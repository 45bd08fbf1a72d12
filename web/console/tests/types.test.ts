import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";

test("every script of the tests is type-checked", () => {
  const scripts = readdirSync(import.meta.dirname).filter((file) => file.endsWith(".mjs"));
  expect(scripts.filter((file) => !readFileSync(join(import.meta.dirname, file), "utf8").startsWith("// @ts-check\n"))).toEqual([]);
  expect(scripts).toContain("service.mjs");
});
