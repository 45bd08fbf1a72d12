// The lines of a growing output. Appending is cheap, because styles and harmless text are computed
// only for visible lines.
import { plain, stylesAfter } from "./text";

/** Older lines are dropped from view. The download has all of the output. */
const MOST_LINES = 500_000;
const DROPPED_AT_ONCE = 50_000;
/** A longer line is broken for display, so that one line cannot fill the page. */
const MOST_CHARACTERS = 20_000;

export class Buffer {
  #lines: string[] = [];
  /** The styles in force at the start of each line. */
  #styles: string[] = [];
  #isOpen = false;
  #listeners = new Set<() => void>();
  #frame = 0;
  /** Changes with every append that listeners have seen. */
  version = 0;
  dropped = 0;

  /** Adds text. The last line stays open until a line break arrives. */
  append(text: string) {
    const parts = text.split("\n");
    parts.forEach((part, index) => {
      if (index > 0) this.#isOpen = false;
      if (index === parts.length - 1 && part === "") return;
      this.#add(part);
    });
    if (this.#lines.length > MOST_LINES) {
      this.#lines.splice(0, DROPPED_AT_ONCE);
      this.#styles.splice(0, DROPPED_AT_ONCE);
      this.dropped += DROPPED_AT_ONCE;
    }
    this.#notify();
  }

  #add(part: string) {
    const last = this.#lines.length - 1;
    if (this.#isOpen && last >= 0) {
      this.#lines[last] += part;
    } else {
      this.#styles.push(last < 0 ? "" : stylesAfter(this.#styles[last]!, this.#lines[last]!));
      this.#lines.push(part);
      this.#isOpen = true;
    }
    // Breaks long lines, wherever they arrived.
    let at = this.#lines.length - 1;
    while (this.#lines[at]!.length > MOST_CHARACTERS) {
      const line = this.#lines[at]!;
      this.#lines[at] = line.slice(0, MOST_CHARACTERS);
      this.#styles.push(stylesAfter(this.#styles[at]!, this.#lines[at]!));
      this.#lines.push(line.slice(MOST_CHARACTERS));
      at += 1;
    }
  }

  clear() {
    this.#lines = [];
    this.#styles = [];
    this.#isOpen = false;
    this.dropped = 0;
  }

  get count() {
    return this.#lines.length;
  }

  line(index: number) {
    return this.#lines[index] ?? "";
  }

  styles(index: number) {
    return this.#styles[index] ?? "";
  }

  /** The text without sequences, for the clipboard. */
  text() {
    return this.#lines.map(plain).join("\n");
  }

  /** The lines with a text from `first` on, ignoring case, at most `limit` of them. */
  find(text: string, first = 0, limit = 10_000): number[] {
    const wanted = text.toLowerCase();
    const found: number[] = [];
    for (let index = first; index < this.#lines.length && found.length < limit; index += 1) {
      if (plain(this.#lines[index]!).toLowerCase().includes(wanted)) found.push(index);
    }
    return found;
  }

  /** Notifies listeners once per frame, however often text arrives. */
  #notify() {
    if (this.#frame !== 0) return;
    const notify = () => {
      this.#frame = 0;
      this.version += 1;
      this.#listeners.forEach((listener) => listener());
    };
    // A hidden page has no frames.
    this.#frame = document.hidden ? window.setTimeout(notify, 250) : requestAnimationFrame(notify);
  }

  subscribe = (listener: () => void) => {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  };
}
