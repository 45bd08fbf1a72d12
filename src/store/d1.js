// D1, as `db.rs` calls it. One call from wasm makes a whole round trip, as each call between wasm and JavaScript costs something:
// the statements come as one text, their parameters and what came of them as JSON.

/** The statements of `texts`, which a NUL separates, bound to their `parameters`: a JSON array for each. */
function prepare({ DB }, texts, parameters) {
  const values = JSON.parse(parameters);
  return texts.split("\0").map((text, index) => DB.prepare(text).bind(...values[index]));
}

/** What `db.rs` reads of a result. */
const outcome = ({ rows_read, rows_written, changes }, rows) => ({ rows_read, rows_written, changes, rows });

/** Runs statements in one round trip and one transaction. Gives the outcome of each, as a JSON array. */
export async function run(env, texts, parameters) {
  const statements = prepare(env, texts, parameters);
  const results = statements.length === 1 ? [await statements[0].all()] : await env.DB.batch(statements);
  return JSON.stringify(results.map(({ meta, results }) => outcome(meta, results)));
}

/**
 * Runs the statement of a list's page, whose rows may have an item or several as JSON in the column `body`. Gives the outcome with
 * the other columns of the first row, as JSON; and the items as a JSON array, which stays a text of JavaScript.
 */
export async function runList(env, text, parameters) {
  const [statement] = prepare(env, text, parameters);
  const { meta, results } = await statement.all();
  const [{ body: _, ...first }] = results;
  const items = results.map(({ body }) => body).filter((body) => body !== null);
  return { outcome: JSON.stringify(outcome(meta, [first])), items: `[${items.join()}]` };
}
