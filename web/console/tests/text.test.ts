import { describe, expect, test } from "vitest";
import { harmless, pieces, plain, stylesAfter } from "../src/output/text";
import { hiddenIn, visible } from "../src/output/visible";
import { ATTACKS } from "./attacks";

describe("attacks", () => {
  test("there are at least 40", () => expect(ATTACKS.length).toBeGreaterThanOrEqual(40));

  test.each(ATTACKS.map((attack) => [attack.name, attack] as const))("%s", (_, { output, shown }) => {
    const text = pieces(output, "")
      .map((piece) => piece.text)
      .join("");
    expect(text).toBe(shown);
    expect(plain(output)).toBe(shown);
  });
});

describe("no line takes long", () => {
  const SIZE = 200_000;
  const of = (text: string) => text.repeat(Math.ceil(SIZE / text.length));
  const HOSTILE: readonly (readonly [string, string])[] = [
    ["unfinished strings", of("\u009d\u001b[0m")],
    ["unfinished strings of escapes", of("\u001b]\u001bX")],
    ["carriage returns", `${of("\r")}x`],
    ["carriage returns at the end", `x${of("\r")}`],
    ["backspaces", `${of("a")}${of("\b")}`],
    ["leading backspaces", of("\b")],
    ["styles and backspaces", `${of("\u001b[1ma")}${of("\b")}`],
    ["unfinished control sequences", of("\u001b[0;")],
    ["intermediate bytes", `\u001b[${of(" ")}`],
    ["changes of colour", of("\u001b[31ma\u001b[32mb")],
  ];

  test.each(HOSTILE)("%s", (_, line) => {
    const began = performance.now();
    harmless(line);
    plain(line);
    // Under 100 ms on a machine that does nothing else. Before, some took minutes.
    expect(performance.now() - began).toBeLessThan(2_000);
    expect(pieces(line, "").length).toBeLessThanOrEqual(202);
    expect(performance.now() - began).toBeLessThan(4_000);
  });

  test("nothing of a line with too many looks is lost", () => {
    const text = pieces("\u001b[31ma\u001b[32mb".repeat(2_000), "")
      .map((piece) => piece.text)
      .join("");
    expect(text).toBe("ab".repeat(2_000));
  });
});

test("backspaces remove characters, not styles", () => {
  expect(harmless("b\bbo\bold")).toBe("bold");
  expect(harmless("\ba\u001b[31mx\u001b[0m\by")).toBe("a\u001b[31m\u001b[0my");
});

test("a command line is shown with everything in it", () => {
  expect(visible("a\u001b[31mb\rc\u202ed\n\te")).toBe("a␛[31mb␍c⟨U+202E⟩d\n\te");
  expect(hiddenIn("a\u001b\u202eb\u202ec\t\nd")).toEqual(["␛", "⟨U+202E⟩"]);
  expect(hiddenIn("plain 한글 ü\t\n")).toEqual([]);
});

describe("colours", () => {
  test("names, 256 colours and true colours", () => {
    const [red, orange, exact] = pieces("\u001b[31ma\u001b[38;5;208mb\u001b[38;2;1;2;3mc", "");
    expect(red).toMatchObject({ text: "a", look: "ansi-red" });
    expect(orange).toMatchObject({ text: "b", color: "255, 135, 0" });
    expect(exact).toMatchObject({ text: "c", color: "1, 2, 3" });
  });

  test("styles continue on the next line until a reset", () => {
    const styles = stylesAfter("", "\u001b[1m\u001b[32mgreen");
    expect(pieces("still", styles)[0]).toMatchObject({ text: "still", look: "ansi-green bold" });
    expect(stylesAfter(styles, "end\u001b[0m")).toBe("");
    expect(stylesAfter(styles, "end\u001b[m")).toBe("");
    expect(stylesAfter(styles, "\u001b[0;31mred")).toBe("\u001b[0;31m");
  });

  test("styles without a reset stay short", () => {
    let styles = "";
    for (let line = 0; line < 1_000; line += 1) styles = stylesAfter(styles, `\u001b[3${line % 8}mx`);
    expect(styles.length).toBeLessThanOrEqual(512);
    expect(styles.startsWith("\u001b[")).toBe(true);
  });

  test("a tab and other scripts stay", () => {
    expect(harmless("a\tb ärger 한국어 🎉 ✓ │└─")).toBe("a\tb ärger 한국어 🎉 ✓ │└─");
  });
});
