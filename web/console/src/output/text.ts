// Output of commands as harmless text. A program, or whoever controls what it prints, must not be
// able to hide, reorder or fake what the console shows.
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
 * sequences such as moves of the cursor, and short escapes. An unfinished string is dropped to the
 * end of its line, as terminals do.
 */
const OTHER_SEQUENCES =
  /(?:\u001b[\]PX^_]|[\u009d\u0090\u0098\u009e\u009f])[^\u0007\u001b\u009c]*(?:\u0007|\u001b\\|\u009c|$)|(?:\u001b\[|\u009b)(?![0-9;:]*m)[0-?]*[ -/]*[@-~]?|\u001b(?!\[)[ -/]*[0-~]?/g;
/** Carriage returns and backspaces as a terminal shows them at the end: progress bars, bold by overstriking. */
function overwritten(line: string) {
  const trimmed = line.replace(/\r+$/, "");
  const last = trimmed.slice(trimmed.lastIndexOf("\r") + 1);
  let text = last;
  while (text.includes("\u0008")) {
    const shorter = text.replace(/[^\u0008]\u0008|^\u0008+/g, "");
    if (shorter === text) break;
    text = shorter;
  }
  return text;
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

/** The pieces of a line, with the styles in force at its start. */
export function pieces(line: string, styles: string): Piece[] {
  return Anser.ansiToJson(styles + harmless(line), { json: true, use_classes: true, remove_empty: true }).map((part) => ({
    text: part.content.replaceAll(ESC, "␛"),
    look: [part.fg, part.bg && `${part.bg}-bg`, ...(part.decorations ?? [])].filter((name) => name && !/truecolor|palette/.test(name)).join(" "),
    color: rgbOf(part.fg, part.fg_truecolor),
    ground: rgbOf(part.bg, part.bg_truecolor),
  }));
}

const LEVELS = [0, 95, 135, 175, 215, 255];

/** The colour of a name such as `ansi-palette-196`, as `r, g, b`. */
function rgbOf(name: string | null, truecolor: string | null): string | null {
  if (truecolor) return truecolor;
  const index = Number(/^ansi-palette-(\d+)$/.exec(name ?? "")?.[1] ?? -1);
  if (index >= 232) return Array(3).fill((index - 232) * 10 + 8).join(", ");
  if (index >= 16) {
    const cube = index - 16;
    return [Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6].map((level) => LEVELS[level]).join(", ");
  }
  return null;
}
