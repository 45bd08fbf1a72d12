// `npm run export -- FILE [options of wrangler d1 execute]`
//
// Exports D1 as SQL. Import the file into an empty D1 with all migrations applied. By default, the
// remote database is exported, also with `--env eu1`. For a stopped instance on this machine, use
// `--local --persist-to STATE_DIR`.
//
// D1's own export refuses databases with virtual tables, and the search index of command lines is a
// virtual table. So this script reads the tables page by page. It skips tables that triggers or
// Sealer objects fill, because these fill them again after the import. The result is not a snapshot
// of one moment (docs/operations.md).
import { closeSync, openSync, readSync, renameSync, rmSync, writeSync } from "node:fs";
import { QUIET, wrangler } from "./instance.mjs";
import { fail, output, release, say } from "./lib.mjs";

/**
 * The tables that the triggers of `batches` and `commands` fill, and the counters that a Sealer
 * object updates.
 */
const DERIVED = ["batch_counts", "counted_commands", "command_counts", "command_servers", "command_requesters", "command_texts", "quota_bytes"];
/** The tables that are read after all other tables. */
const LAST = ["users", "workspaces"];
/**
 * The maximum number of rows of a page, and its maximum size in bytes: a page ends with the row
 * that reaches this size. The first pages of tables are read together, so their maximum size is
 * smaller.
 */
const [ROWS, BYTES, FIRST_BYTES] = [2000, 4_000_000, 100_000];
/**
 * The maximum number of a text's characters in one statement. D1 accepts statements of 100 KB. A
 * character can have four bytes, and a byte has two characters in hexadecimal.
 */
const PIECE = 10_000;

const [file, ...given] = process.argv.slice(2);
if (!file || file.startsWith("-")) fail("name the file to write: npm run export -- FILE [--env NAME]");
const options = given.includes("--local") || given.includes("--remote") ? given : ["--remote", ...given];
if (release === null) await (await import("./toolchain.mjs")).npmPackages();
const environment = { ...process.env, ...QUIET, WRANGLER_LOG_PATH: "/dev/null" };

/**
 * Runs statements and returns the rows of each statement. It runs them with one call of wrangler,
 * because wrangler takes a second or two to start.
 */
function readAll(statements) {
  const sql = statements.join(";\n");
  const args = ["d1", "execute", "DB", ...options, "--json", "--command", sql];
  const text = output(wrangler, args, { env: environment, maxBuffer: 1 << 30 });
  if (text === null) fail(`wrangler could not read ${sql}; try: wrangler ${args.join(" ")}`);
  return JSON.parse(text.slice(text.indexOf("["))).map(({ results }) => results);
}
const read = (sql) => readAll([sql])[0];

/** Formats a value as an SQL literal. A string literal cannot contain NUL. */
function value(of) {
  if (of === null) return "NULL";
  if (typeof of === "number") return `${of}`;
  if (of.includes("\0")) return `CAST(X'${Buffer.from(of).toString("hex")}' AS TEXT)`;
  return `'${of.replaceAll("'", "''")}'`;
}

/** Splits a text into pieces that fit into one statement. Does not split surrogate pairs. */
const pieces = (text) => text.match(new RegExp(`[^]{1,${PIECE}}`, "gu")) ?? [""];

const isLongText = (of) => typeof of === "string" && of.length > PIECE;

/**
 * The statements that create a row. After the INSERT, UPDATE statements append the rest of long
 * texts.
 */
function* statements(table, keys, row) {
  const columns = Object.keys(row);
  const first = columns.map((column) => value(isLongText(row[column]) ? pieces(row[column])[0] : row[column]));
  yield `INSERT INTO ${table} (${columns.join(", ")}) VALUES (${first.join(", ")});\n`;
  const place = keys.map((key) => `${key} = ${value(row[key])}`).join(" AND ");
  for (const column of columns.filter((name) => isLongText(row[name]))) {
    for (const piece of pieces(row[column]).slice(1)) {
      yield `UPDATE ${table} SET ${column} = ${column} || ${value(piece)} WHERE ${place};\n`;
    }
  }
}

/**
 * SQL for a column's value that JavaScript does not round: an integer above 2^53, such as a key of
 * workspace 8,192, as text. SQLite converts it back when it writes or compares the column.
 */
const exact = (column) => `iif(typeof(${column}) = 'integer' AND abs(${column}) > ${Number.MAX_SAFE_INTEGER}, CAST(${column} AS TEXT), ${column})`;

/**
 * The statement that reads a page of a table in the order of the primary key: the first page, or
 * the page after the row `last`.
 */
function pageOf({ table, keys, columns }, bytes, last) {
  const [order, after] = [keys.join(", "), last && `WHERE (${keys.join(", ")}) > (${keys.map((key) => value(last[key])).join(", ")})`];
  const size = columns.map((name) => `coalesce(length(CAST(${name} AS BLOB)), 0)`).join(" + ");
  const page = `SELECT *, sum(${size}) OVER (ORDER BY ${order} ROWS UNBOUNDED PRECEDING) - (${size}) AS before__, count(*) OVER () AS of__
    FROM (SELECT * FROM ${table} ${after ?? ""} ORDER BY ${order} LIMIT ${ROWS})`;
  const all = columns.map((name) => `${exact(`p.${name}`)} AS ${name}`).join(", ");
  return `SELECT ${all}, p.before__, p.of__ FROM (${page}) p WHERE p.before__ < ${bytes} ORDER BY ${keys.map((key) => `p.${key}`).join(", ")}`;
}

/** All rows of a table whose first page was already read. */
function* rows(table, firstPage) {
  for (let found = firstPage; found.length > 0; found = read(pageOf(table, BYTES, found.at(-1)))) {
    for (const { before__, of__, ...row } of found) yield row;
    // The page was not cut by a limit, so it is the last page.
    if (found.length < ROWS && found.length === found[0].of__) return;
  }
}

const tables = read(
  `SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE '\\_cf\\_%' ESCAPE '\\'
   AND name <> 'd1_migrations' AND name NOT LIKE 'command\\_texts%' ESCAPE '\\' ORDER BY name`,
)
  .map(({ name }) => name)
  .filter((name) => !DERIVED.includes(name))
  // Tables that other rows refer to are read last: users, then workspaces. So the export contains
  // all referenced rows, even if they were created during the export.
  .sort((one, other) => LAST.indexOf(one) - LAST.indexOf(other));

const partial = `${file}.partial`;
for (const left of [partial, `${partial}.commands`]) rmSync(left, { force: true });
const target = openSync(partial, "wx", 0o600);
// The triggers of `commands` read users, so users come first in the file. References to rows that
// come later in the file are checked at the end.
const commands = openSync(`${partial}.commands`, "wx+", 0o600);
writeSync(target, "PRAGMA defer_foreign_keys = true;\n");
const columnsOf = readAll(tables.map((table) => `SELECT name, pk FROM pragma_table_info('${table}')`));
const described = tables.map((table, at) => {
  const keys = columnsOf[at].filter(({ pk }) => pk > 0).sort((one, other) => one.pk - other.pk).map(({ name }) => name);
  return { table, keys, columns: columnsOf[at].map(({ name }) => name) };
});
const firstPages = readAll(described.filter(({ table }) => !LAST.includes(table)).map((of) => pageOf(of, FIRST_BYTES)));
let total = 0;
for (const [at, of] of described.entries()) {
  const { table, keys } = of;
  let count = 0;
  for (const row of rows(of, firstPages[at] ?? read(pageOf(of, BYTES)))) {
    for (const statement of statements(table, keys, row)) writeSync(table === "commands" ? commands : target, statement);
    count += 1;
  }
  say(`${table}: ${count}`);
  total += count;
}
// Exports the counters of ids, so that ids of deleted workspaces are not used again. The counters
// for users and groups are in the rows of workspaces.
for (const { name, seq } of read("SELECT name, seq FROM sqlite_sequence")) {
  if (!tables.includes(name)) continue;
  writeSync(target, `DELETE FROM sqlite_sequence WHERE name = '${name}';\nINSERT INTO sqlite_sequence (name, seq) VALUES ('${name}', ${seq});\n`);
}
const block = Buffer.alloc(1 << 20);
for (let at = 0, length; (length = readSync(commands, block, 0, block.length, at)) > 0; at += length) writeSync(target, block, 0, length);
closeSync(commands);
closeSync(target);
rmSync(`${partial}.commands`);
renameSync(partial, file);
say(`${total} rows in ${file}`);
