// Completions of a selector of labels.

/** Maximum number of completions. */
const MAX_COMPLETIONS = 50;

/**
 * Whole selectors that continue `text`: its last term is replaced by the keys, and by the pairs of
 * key and value, that begin with it.
 */
export function complete(text: string, labels: readonly (readonly [string, string])[]): string[] {
  const open = text.lastIndexOf("(") > text.lastIndexOf(")");
  // Inside the list of `key in (a,b` there is nothing to complete.
  if (open) return [];
  const end = text.lastIndexOf(",") + 1;
  const before = text.slice(0, end);
  const term = text.slice(end).trimStart();
  const pairs = labels.map(([key, value]) => `${key}=${value}`);
  const keys = labels.map(([key]) => key);
  const options = term.includes("=") ? pairs : [...keys, ...pairs];
  return [...new Set(options)]
    .filter((option) => option.startsWith(term) && option !== term)
    .sort()
    .slice(0, MAX_COMPLETIONS)
    .map((option) => before + option);
}
