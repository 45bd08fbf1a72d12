// node migrate.mjs STATE_DIR PROJECT
//
// Applies the missing migrations of a project folder to the D1 of a state folder, and records them
// as `wrangler d1 migrations apply --local` does. wrangler is not used, because it opens ports that
// ask for no credential (private-miniflare.mjs).
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { parse } from "smol-toml";
import { callEntry, privateMiniflare } from "./private-miniflare.mjs";

const [stateDir, project] = process.argv.slice(2);
process.umask(0o077);

const config = /** @type {any} */ (parse(readFileSync(join(project, "wrangler.toml"), "utf8")));
const [database] = config.d1_databases;
const folder = join(project, database.migrations_dir);
const migrations = readdirSync(folder)
  .filter((name) => name.endsWith(".sql"))
  .sort()
  .map((name) => ({ name, sql: readFileSync(join(folder, name), "utf8") }));

const migrator = {
  name: "migrator",
  modules: true,
  script: `export default {
    async fetch(request, { DB }) {
      await DB.prepare(
        "CREATE TABLE IF NOT EXISTS d1_migrations(id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, " +
          "applied_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL)",
      ).run();
      const { results } = await DB.prepare("SELECT name FROM d1_migrations").all();
      const applied = new Set(results.map(({ name }) => name));
      for (const { name, sql } of await request.json()) {
        if (applied.has(name)) continue;
        const record = DB.prepare("INSERT INTO d1_migrations (name) VALUES (?)").bind(name);
        try {
          // A batch is one transaction.
          await DB.batch([DB.prepare(sql), record]);
        } catch (error) {
          return new Response(name + ": " + error.message, { status: 500 });
        }
      }
      return new Response();
    },
  };`,
  compatibilityDate: config.compatibility_date,
  d1Databases: { DB: { id: database.database_id } },
};
const miniflare = privateMiniflare({ workers: [migrator], defaultPersistRoot: join(stateDir, "v3") });
await miniflare.ready;
const { status, text } = await callEntry({ path: "/", method: "POST", body: JSON.stringify(migrations) });
await miniflare.dispose();
if (status !== 200) {
  process.stderr.write(`error: a migration failed: ${text}\n`);
  process.exitCode = 1;
}
