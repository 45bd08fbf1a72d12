// Shows the names of characters that are invisible or change the order of others.

/** Control characters without an effect here, besides the tab. */
const CONTROLS = /[\u0000-\u0008\u000b-\u001a\u001c-\u001f\u007f-\u009f]/g;
/**
 * Characters that are invisible or change the order of others: bidi controls, zero-width
 * characters, variation selectors, invisible operators, tags, and line separators.
 */
const INVISIBLE =
  /[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

/** All characters that are shown by their names, and the escape character. */
const HIDDEN = new RegExp(`${CONTROLS.source}|${INVISIBLE.source}|\u001b`, "gu");

const codePoint = (character: string) => `⟨U+${character.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟩`;

/** A control character as its picture: `␀`, `␛`. */
function picture(character: string) {
  const code = character.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  return code === 0x7f ? "␡" : codePoint(character);
}

/** A text with names in place of hidden characters, but with its line breaks, tabs and escapes. */
export const named = (text: string) => text.replace(CONTROLS, picture).replace(INVISIBLE, codePoint);

/** A text of another user, such as a command line or a name, in a form that is safe to show. */
export const visible = (text: string) => named(text).replaceAll("\u001b", "␛");

/** The names of the hidden characters in a text, each once. */
export const hiddenIn = (text: string) => [...new Set(text.match(HIDDEN) ?? [])].map(visible);
