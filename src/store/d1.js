// Calls D1 for `database.rs`. Each call between wasm and JavaScript costs time, so one call makes a whole
// round trip: the texts of the statements are one string, and their parameters and results are
// JSON.

/** The D1 database with the rows of a `Database`: a cell has one, so all have the same binding. */
const bound = ({ DB }) => DB;

/**
 * Prepares the statements of `texts`, which are separated by NUL. `parameters` is a JSON array with
 * an array for each statement.
 */
function prepare(database, texts, parameters) {
  const values = JSON.parse(parameters);
  return texts.split("\0").map((text, index) => database.prepare(text).bind(...values[index]));
}

/** The part of a result that `db.rs` reads. */
const outcome = ({ rows_read, rows_written, changes, size_after }, rows) => ({ rows_read, rows_written, changes, size_after, rows });

/** Runs statements in one round trip and one transaction. Returns their outcomes as a JSON array. */
export async function run(env, texts, parameters) {
  const database = bound(env);
  const statements = prepare(database, texts, parameters);
  const results = statements.length === 1 ? [await statements[0].all()] : await database.batch(statements);
  return JSON.stringify(results.map(({ meta, results }) => outcome(meta, results)));
}

/**
 * Runs the statement of a list's page. Its rows have one or several items as JSON in the column
 * `body`. Returns the outcome with the other columns of the first row, as JSON, and the items as a
 * JSON array, which remains a JavaScript string.
 */
export async function runList(env, text, parameters) {
  const [statement] = prepare(bound(env), text, parameters);
  const { meta, results } = await statement.all();
  const [{ body: _, ...first }] = results;
  const items = results.map(({ body }) => body).filter((body) => body !== null);
  return { outcome: JSON.stringify(outcome(meta, [first])), items: `[${items.join()}]` };
}
