// Creates a million commands in SQLite within a minute or two. The rows are the same as if the
// Worker and the triggers had created them.
//
// `node bench/data.mjs` checks this: it creates a small data set with the triggers and without
// them, and compares the two databases.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { fail, root, say } from "../scripts/lib.mjs";
import { programs } from "../scripts/toolchain.mjs";

/** The number of servers of a workspace, and the number of its users who request commands. */
const SERVERS = 1_000;
const PEOPLE = 50;
/**
 * Search words. `SELDOM` is in 20 commands, `OFTEN` in every fifth command, `ONCE_OFTEN` in the
 * oldest fifth of the commands.
 */
export const SELDOM = "zookeeper";
export const OFTEN = "deploy";
export const ONCE_OFTEN = "legacy";
/**
 * A search word in 20 commands of the workspace with long lines. In each line, it comes after the
 * part that the search index contains.
 */
export const BEHIND = "omega";
/**
 * The number of servers that the restricted user can access: the servers with the lowest numbers.
 * The user owns one half, and accesses the other half through a group.
 */
export const ACCESSIBLE = 10;

const [program] = await programs(["sqlite3"], ["sqlite3"], "bench/data.mjs creates data with the sqlite3 command");

/** Runs SQL on a database. Returns its output. */
export function execute(file, sql) {
  const done = spawnSync(program, ["-bail", "-json", file], { input: sql, encoding: "utf8", maxBuffer: 1 << 30 });
  if (done.error || done.status !== 0) throw new Error(`sqlite3: ${done.error?.message ?? done.stderr}`);
  return done.stdout.trim();
}

/** Returns the rows that a statement selects. */
export const select = (file, sql) => JSON.parse(execute(file, sql) || "[]");

/** Returns the path of D1's file in an instance's state folder. */
export function d1File(stateDir) {
  const folder = join(stateDir, "v3", "d1", "miniflare-D1DatabaseObject");
  const names = readdirSync(folder).filter((name) => name.endsWith(".sqlite") && name !== "metadata.sqlite");
  if (names.length !== 1) throw new Error(`${folder} has ${names.length} databases`);
  return join(folder, names[0]);
}

/** SQL for a time: `seconds` after the beginning of 2025. */
export const moment = (seconds) => `strftime('%Y-%m-%dT%H:%M:%f000+00:00', '2025-01-01', (${seconds}) || ' seconds')`;
/** SQL for the id of the server with the number `number` in a workspace. */
export const serverId = (workspace, number) => `printf('%08x-0000-7000-8000-%012x', ${workspace}, ${number})`;
/** The id of the server with the number `number` in a workspace. */
export const serverOf = (workspace, number) =>
  `${workspace.toString(16).padStart(8, "0")}-0000-7000-8000-${number.toString(16).padStart(12, "0")}`;
/** SQL for the name of the server with the number `number`. */
const serverName = (number) =>
  `printf('%s-%04d', (json_array('web', 'db', 'app', 'cache', 'worker', 'build', 'mail') ->> ((${number}) % 7)), ${number})`;
/**
 * SQL for a pseudorandom integer from 0 to `below` - 1. It depends on the row number `i` and on
 * `salt`.
 */
const dice = (salt, below) =>
  `((i * 48271 + ${salt} * 7919) % 2147483647 * ((i * 48271 + ${salt} * 7919) % 2147483647) % 2147483647 >> 5) % ${below}`;

/** Typical command lines. `%` is replaced by a number. */
const LINES = [
  "uptime",
  "df -h /var/lib/postgresql",
  "systemctl restart nginx.service",
  "systemctl status postgresql@15-main --no-pager",
  "journalctl -u app-% --since '10 min ago' | tail -n 200",
  "docker ps --filter name=app-% --format '{{.Names}} {{.Status}}'",
  "docker pull registry.example.com/platform/app:2025.%",
  "kubectl -n prod rollout status statefulset/api-%",
  "apt-get update && apt-get install -y openssl",
  "tail -n 500 /var/log/nginx/error.log",
  "ls -la /srv/releases/%",
  "ps aux --sort=-%mem | head -20",
  "psql -c 'select count(*) from jobs where shard = %'",
  "curl -fsS http://127.0.0.1:8080/healthz",
  "certbot renew --cert-name host%.example.com",
  "rsync -a /srv/backup/% backup.example.com::daily/",
  "grep -c ERROR /var/log/app/app-%.log",
  "free -m",
  "ip addr show dev eth0",
  "echo 'Größe geprüft: %' >> /var/log/audit.log",
];
const RARE_TAIL = "' --quorum zookeeper-' || i";
/** SQL for a tail that makes a line long, by about 2,400 characters on average. */
const LONG_TAIL = (count) => `' # ' || substr(replace(printf('%.*c', 500, 'x'), 'x', 'and so on '), 1, 1100 + ${dice(9, 2_600)})
    || iif(i % ${count / 20} = ${count / 40}, ' --then ${BEHIND}', '')`;

/** SQL that creates servers, users, and the restricted user's access. */
const fleet = ({ workspace, user }) => `
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${SERVERS})
INSERT INTO servers (id, workspace_id, name, agent_key_hash, owner_id, commissioned, added_at, updated_at)
SELECT ${serverId(workspace, "i")}, ${workspace}, ${serverName("i")}, '', iif(i * 2 <= ${ACCESSIBLE}, ${user}, NULL), 1,
  ${moment("i")}, ${moment("i")} FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${PEOPLE})
INSERT INTO users (id, workspace_id, username, email, password, date_joined)
SELECT ${workspace} * 100000 + i, ${workspace}, 'person' || i, 'person' || i || '@example.com', '', ${moment("i")} FROM n;
INSERT INTO groups (workspace_id, id, name, display_name, description, folded_display_name, folded_description, added_at, updated_at)
VALUES (${workspace}, 1, 'bench', 'Bench', '', 'bench', '', ${moment("0")}, ${moment("0")});
INSERT INTO memberships (id, workspace_id, group_id, user_id, role)
SELECT ${serverId(workspace, "0")}, ${workspace}, id, ${user}, 'member' FROM groups WHERE workspace_id = ${workspace} AND name = 'bench';
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${ACCESSIBLE})
INSERT INTO server_groups (workspace_id, group_id, server_id)
SELECT ${workspace}, g.id, ${serverId(workspace, "i")} FROM n
CROSS JOIN groups g ON g.workspace_id = ${workspace} AND g.name = 'bench' WHERE i * 2 > ${ACCESSIBLE};
`;

/**
 * SQL that creates the commands. One in fifty commands is scheduled for the far future, one in
 * fifty ran an hour after it was created, and one in fifty is a built-in. About one in eleven has
 * no requester.
 */
const commands = ({ workspace, user, count, busy = SERVERS, isLong = false }) => {
  const lines = `('${JSON.stringify(LINES).replaceAll("'", "''")}' ->> (${dice(1, LINES.length)}))`;
  const isLater = dice(6, 50);
  const [server, took] = [`1 + ${dice(2, busy)}`, dice(3, 40)];
  return `
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${count}),
d AS (SELECT i, ${server} AS server, ${took} AS took, ${isLater} AS later, ${dice(4, PEOPLE + 5)} AS person,
  replace(${lines}, '%', ${dice(5, 1000)})
    || iif(i % 5 = 2, ' && deploy --release r' || (i % 977), '') || iif(i * 5 <= ${count}, ' --legacy', '')
    || iif(i % ${count / 20} = ${count / 40}, ${RARE_TAIL}, '')${isLong ? ` || ${LONG_TAIL(count)}` : ""} AS line FROM n)
INSERT INTO commands (seq, workspace_id, id, server_id, server_name, requested_by, shell, line, username, groupname, timeout,
  added_at, scheduled_at, expires_at, delivered_at, acked_at, handled_at, state, status_message, success, exit_code,
  response_delay, elapsed_time, output_bytes, result, revision)
SELECT (${workspace} << 40) + i, ${workspace}, printf('%08x-%04x-7%03x-8%03x-%012x', 26000000 + i / 20, i % 65536, ${dice(7, 4096)}, ${workspace}, i),
  ${serverId(workspace, "server")}, ${serverName("server")},
  CASE WHEN person >= ${PEOPLE} THEN NULL WHEN person = 0 THEN ${user} ELSE ${workspace} * 100000 + person END,
  iif(${dice(8, 50)} = 0, 'internal', 'system'), line, 'root', 'wheel', 60,
  ${moment("i * 50")},
  CASE later WHEN 0 THEN strftime('%Y-%m-%dT%H:%M:%f000+00:00', '2999-01-01', (i * 7) || ' seconds')
    WHEN 1 THEN ${moment("i * 50 + 3600")} ELSE ${moment("i * 50")} END,
  '2999-12-31T00:00:00.000000+00:00',
  iif(later = 0, NULL, ${moment("i * 50 + iif(later = 1, 3600, 0)")}), iif(later = 0, NULL, ${moment("i * 50 + iif(later = 1, 3601, 1)")}),
  iif(later = 0, NULL, ${moment("i * 50 + iif(later = 1, 3602, 2) + took")}),
  iif(later = 0, 'waiting', iif(took = 7, 'failed', 'success')), iif(later = 0, '', iif(took = 7, 'Failed', 'Success')),
  iif(later = 0, NULL, took <> 7), iif(later = 0, NULL, took = 7), iif(later = 0, NULL, 1.0), iif(later = 0, NULL, took + 1.0),
  iif(later = 0, 0, 80), iif(later = 0, NULL, printf('%s: line %d of what it printed, which is a little longer than a word', line, i)),
  iif(later = 0, 1, 4)
FROM d;
`;
};

/** SQL for the rows that the triggers would create for the commands of a new workspace. */
const derived = ({ workspace }) => `
INSERT INTO command_servers (workspace_id, server_id, name)
SELECT workspace_id, server_id, server_name FROM commands WHERE workspace_id = ${workspace} GROUP BY server_id, server_name ORDER BY min(seq);
INSERT INTO command_requesters (workspace_id, user_id, server_id)
SELECT DISTINCT workspace_id, requested_by, server_id FROM commands WHERE workspace_id = ${workspace} AND requested_by IS NOT NULL;
`;

/** SQL for the counters that a Sealer object updates. */
export const counted = ({ workspace }) => `
INSERT INTO counted_commands (workspace_id, up_to, total)
SELECT workspace_id, max(seq), count(*) FROM commands WHERE workspace_id = ${workspace} GROUP BY workspace_id;
INSERT INTO command_counts (workspace_id, kind, key, total)
SELECT workspace_id, 'server', server_id, count(*) FROM commands WHERE workspace_id = ${workspace} GROUP BY server_id;
INSERT INTO command_counts (workspace_id, kind, key, total)
SELECT workspace_id, 'requester', CAST(requested_by AS TEXT), count(*) FROM commands
WHERE workspace_id = ${workspace} AND requested_by IS NOT NULL GROUP BY requested_by;
`;

/** SQL that fills the search index of lines. */
const TEXTS = `
INSERT INTO command_texts (rowid, server, requester, line, wide)
SELECT seq, server, requester, line, wide FROM command_text_rows ORDER BY seq;
`;

/**
 * Fills workspaces that contain only a superuser and a restricted user. The database must contain
 * no other workspaces, and no other process may have it open.
 * @param {string} file the database
 * @param {{workspace: number, user: number, count: number, busy?: number, isLong?: boolean}[]} sets
 * for each workspace: its id, the id of its restricted user, the number of commands, the number of
 * servers that have commands, and whether all lines are long. `user` gets access to the servers
 * with the lowest numbers.
 */
export function fill(file, sets) {
  const parts = select(file, `SELECT type, name, sql FROM sqlite_master WHERE tbl_name = 'commands' AND type IN ('index', 'trigger') AND sql IS NOT NULL`);
  const drops = parts.map(({ type, name }) => `DROP ${type} ${name};`).join("\n");
  const made = (wanted) => parts.filter(({ type }) => type === wanted).map(({ sql }) => `${sql};`).join("\n");
  // Settings for speed. The file keeps only the journal mode, which is restored at the end.
  execute(file, `PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -1000000; PRAGMA temp_store = MEMORY;
    BEGIN; ${drops}
    ${sets.map((set) => fleet(set) + commands(set)).join("\n")}
    ${made("index")}
    ${sets.map(derived).join("\n")}
    ${TEXTS}
    ${made("trigger")}
    ${sets.map(counted).join("\n")}
    COMMIT; PRAGMA journal_mode = WAL;`);
}

/** All content that must be equal in both databases. */
function contents(file) {
  const tables = ["commands", "counted_commands", "command_counts", "command_servers", "command_requesters", "deleted_users", "servers", "users"];
  const all = new Map();
  for (const table of tables) all.set(table, select(file, `SELECT * FROM ${table}`));
  all.set("command_texts", select(file, `CREATE VIRTUAL TABLE temp.tokens USING fts5vocab(main, command_texts, instance);
    SELECT * FROM temp.tokens`));
  all.set("the schema", select(file, "SELECT type, name, tbl_name, sql FROM sqlite_master"));
  return all;
}

function check() {
  const folder = mkdtempSync(join(tmpdir(), "farhand-data-"));
  const migrations = join(root, "migrations");
  const schema = readdirSync(migrations).sort().map((name) => readFileSync(join(migrations, name), "utf8")).join("\n");
  const workspaces = `INSERT INTO workspaces (id, slug, name, added_at) VALUES (1, 'one', 'One', ''), (2, 'two', 'Two', ''), (3, 'long', 'Long', '');
    INSERT INTO users (id, workspace_id, username, email, password, date_joined)
    VALUES (1, 1, 'anna', 'anna@example.com', '', ''), (2, 2, 'anna', 'anna@example.com', '', ''),
      (3, 3, 'anna', 'anna@example.com', '', '');`;
  const sets = [{ workspace: 1, user: 1, count: 2_000 }, { workspace: 2, user: 2, count: 1_000, busy: 40 },
    { workspace: 3, user: 3, count: 1_000, isLong: true }];
  const [quick, slow] = ["quick.sqlite", "slow.sqlite"].map((name) => join(folder, name));
  try {
    for (const file of [quick, slow]) execute(file, `BEGIN; ${schema} ${workspaces} COMMIT;`);
    fill(quick, sets);
    execute(slow, `BEGIN; ${sets.map((set) => fleet(set) + commands(set) + counted(set)).join("\n")} COMMIT;`);
    const expected = contents(slow);
    for (const [what, rows] of contents(quick)) {
      const [found, wanted] = [rows, expected.get(what)].map((all) => all.map((row) => JSON.stringify(row)).sort().join());
      if (found !== wanted) fail(`${what} differ: ${rows.length} rows, but the triggers create ${expected.get(what).length}`);
      say(`${what}: ${rows.length} rows, equal`);
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) check();
