import { beforeEach, describe, expect, test, vi } from "vitest";
import { Buffer } from "../src/output/buffer";

beforeEach(() => {
  vi.stubGlobal("document", { hidden: false });
  vi.stubGlobal("requestAnimationFrame", (call: () => void) => setTimeout(call, 0));
});

const lines = (buffer: Buffer) => Array.from({ length: buffer.count }, (_, index) => buffer.line(index));

describe("lines", () => {
  test("chunks may end anywhere", () => {
    const buffer = new Buffer();
    for (const chunk of ["a", "b\nc", "\n", "\nd\n", "e"]) buffer.append(chunk);
    expect(lines(buffer)).toEqual(["ab", "c", "", "d", "e"]);
  });

  test("a long line is broken, and nothing is lost", () => {
    const buffer = new Buffer();
    buffer.append("x".repeat(50_001));
    buffer.append("y\nz");
    expect(lines(buffer).map(({ length }) => length)).toEqual([20_000, 20_000, 10_002, 1]);
    expect(lines(buffer).join("")).toBe(`${"x".repeat(50_001)}yz`);
  });

  test("styles carry over lines that arrive in pieces", () => {
    const buffer = new Buffer();
    buffer.append("\u001b[31mred");
    buffer.append(" more\nstill red\u001b[0m\nplain");
    expect([0, 1, 2].map((index) => buffer.styles(index))).toEqual(["", "\u001b[31m", ""]);
  });

  test("old lines are dropped and counted", () => {
    const buffer = new Buffer();
    buffer.append("x\n".repeat(500_001));
    expect(buffer.count + buffer.dropped).toBe(500_001);
    expect(buffer.dropped).toBe(50_000);
  });
});

test("listeners hear once per frame", async () => {
  const buffer = new Buffer();
  const heard = vi.fn();
  buffer.subscribe(heard);
  for (let line = 0; line < 1_000; line += 1) buffer.append(`${line}\n`);
  await vi.waitFor(() => expect(heard).toHaveBeenCalledTimes(1));
});

test("search and copy ignore sequences", () => {
  const buffer = new Buffer();
  buffer.append("one\n\u001b[31mTw\u001b[0mo\nthree");
  expect(buffer.find("two")).toEqual([1]);
  expect(buffer.text()).toBe("one\nTwo\nthree");
});
