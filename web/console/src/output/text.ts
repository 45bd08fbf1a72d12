// Output of commands as harmless text. A program, or an attacker who controls its output, must not
// be able to hide, reorder or fake what the console shows.
import Anser from "anser";
import { named } from "./visible";

/** A piece of a line with one look. */
export interface Piece {
  readonly text: string;
  /** Class names of colours and styles, or an empty string. */
  readonly look: string;
  /** A colour of the 256 or true-colour palette, as `r, g, b`. */
  readonly color: string | null;
  readonly ground: string | null;
}

const ESC = "\u001b";
/** Colours and styles: the only sequences with an effect. */
const STYLE = /\u001b\[[0-9;:]*m/g;
/**
 * All other sequences: strings up to their end (titles, links of OSC 8, clipboard, images), control
 * sequences such as moves of the cursor, and short escapes. An unfinished string ends with the next
 * escape or with its line, as in terminals. Every alternative matches where it begins, so nothing
 * is scanned twice.
 */
const OTHER_SEQUENCES =
  /(?:\u001b[\]PX^_]|[\u009d\u0090\u0098\u009e\u009f])[^\u0007\u001b\u009c]*(?:\u0007|\u001b\\|\u009c|(?=\u001b)|$)|(?:\u001b\[|\u009b)(?![0-9;:]*m)[0-?]*[ -/]*[@-~]?|\u001b(?!\[)[ -/]*[0-~]?/g;
/** The parts of a line: sequences of styles, and single characters. */
const TOKENS = /\u001b\[[0-9;:]*m|[^]/gu;

/** A line without its backspaces. Each of them removes a character, as in bold by overstriking. */
function withoutBackspaces(line: string) {
  if (!line.includes("\b")) return line;
  const tokens: string[] = line.match(TOKENS) ?? [];
  /** The positions of the characters that are not removed. */
  const kept: number[] = [];
  tokens.forEach((token, index) => {
    if (token === "\b") {
      tokens[index] = "";
      const removed = kept.pop();
      if (removed !== undefined) tokens[removed] = "";
    } else if (!token.startsWith(ESC) || token === ESC) {
      kept.push(index);
    }
  });
  return tokens.join("");
}

/**
 * Carriage returns and backspaces as a terminal shows them at the end: progress bars, bold by
 * overstriking.
 */
function overwritten(line: string) {
  let end = line.length;
  while (line[end - 1] === "\r") end -= 1;
  return withoutBackspaces(line.slice(line.lastIndexOf("\r", end - 1) + 1, end));
}

/** A line without sequences other than styles, with every other character visible. */
export function harmless(line: string): string {
  return named(overwritten(line.replace(OTHER_SEQUENCES, "")));
}

/** A line without any sequences, for searching and copying. */
export const plain = (line: string) => harmless(line).replace(STYLE, "").replaceAll(ESC, "␛");

/** The styles in force after a line, if `before` was in force at its start. A reset clears them. */
export function stylesAfter(before: string, line: string): string {
  let styles = before;
  for (const [sequence] of line.matchAll(STYLE)) {
    const codes = sequence.slice(2, -1);
    const reset = /(?:^|;)0?(?:;|$)/.test(codes);
    styles = reset ? (/^0?$/.test(codes) ? "" : sequence) : styles + sequence;
  }
  // A program that never resets would make this grow with every line.
  return styles.length > 512 ? styles.slice(styles.indexOf(ESC, styles.length - 512)) : styles;
}

/** Maximum number of styles in a line. More are ignored, because they slow down the page. */
const MAX_STYLES = 200;

/** The position of the first style beyond `MAX_STYLES`, or the length of the line. */
function endOfStyles(line: string): number {
  let count = 0;
  for (const { index } of line.matchAll(STYLE)) {
    count += 1;
    if (count > MAX_STYLES) return index;
  }
  return line.length;
}

/** The pieces of a line, with the styles in force at its start. */
export function pieces(line: string, styles: string): Piece[] {
  const text = harmless(line);
  const end = endOfStyles(text);
  const shown = Anser.ansiToJson(styles + text.slice(0, end), { json: true, use_classes: true, remove_empty: true }).map((part) => ({
    text: part.content.replaceAll(ESC, "␛"),
    // The parser lists a decoration as often as it was switched on.
    look: [...new Set([part.fg, part.bg && `${part.bg}-bg`, ...(part.decorations ?? [])])].filter((name) => name && !/truecolor|palette/.test(name)).join(" "),
    color: rgbOf(part.fg, part.fg_truecolor),
    ground: rgbOf(part.bg, part.bg_truecolor),
  }));
  const rest = text.slice(end).replace(STYLE, "").replaceAll(ESC, "␛");
  return rest === "" ? shown : [...shown, { text: rest, look: "", color: null, ground: null }];
}

const LEVELS = [0, 95, 135, 175, 215, 255];

/** The colour of a name such as `ansi-palette-196`, as `r, g, b`. */
function rgbOf(name: string | null, truecolor: string | null): string | null {
  if (truecolor) return truecolor;
  const index = Number(/^ansi-palette-(\d+)$/.exec(name ?? "")?.[1] ?? -1);
  if (index >= 232)
    return Array(3)
      .fill((index - 232) * 10 + 8)
      .join(", ");
  if (index >= 16) {
    const cube = index - 16;
    return [Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6].map((level) => LEVELS[level]).join(", ");
  }
  return null;
}
