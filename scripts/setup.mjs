// `npm run setup`: creates a deployment in the Cloudflare account that wrangler is logged in to:
// D1, KV, the environment in wrangler.toml, secrets, the Worker and the first workspace. The script
// uses resources that exist already, so it can be repeated after an error.
//
//   npm run setup -- --env eu1 --domain example.com --workspace acme --email admin@acme.example
//   npm run setup -- … --dry-run       prints the commands and the environment, and does nothing
//   npm run setup -- … --operator-url  the address of the operator API, if not https://<domain>
import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { parseArgs } from "node:util";
import { QUIET, wrangler } from "./instance.mjs";
import { fail, release, root, run, say } from "./lib.mjs";

const USAGE = "usage: npm run setup -- --env NAME --domain DOMAIN --workspace SLUG --email ADDRESS [--operator-url URL] [--dry-run]";
const NAME = /^[a-z][a-z0-9-]{0,30}$/;
const DOMAIN = /^([a-z0-9-]+\.)+[a-z]{2,}$/;
const EMAIL = /^[^\s@"]+@[^\s@"]+$/;
const SECRETS = ["SECRET_KEY", "OPERATOR_TOKEN"];
const file = join(root, "wrangler.toml");

/** Reads and checks the arguments. */
function readArguments() {
  const string = /** @type {const} */ ({ type: "string", multiple: false });
  const flag = /** @type {const} */ ({ type: "boolean" });
  const options = { env: string, domain: string, workspace: string, email: string, "operator-url": string, "dry-run": flag };
  let values;
  try {
    ({ values } = parseArgs({ options }));
  } catch (error) {
    fail(`${error.message}\n${USAGE}`);
  }
  for (const [name, pattern] of Object.entries({ env: NAME, domain: DOMAIN, workspace: NAME, email: EMAIL })) {
    if (values[name] === undefined) fail(`--${name} is missing\n${USAGE}`);
    if (!pattern.test(values[name])) fail(`--${name} ${values[name]} is not valid\n${USAGE}`);
  }
  return values;
}

const { env, domain, workspace, email, "operator-url": operatorUrl = `https://${domain}`, "dry-run": isDryRun = false } = readArguments();
const database = `farhand-${env}`;
const namespace = `LOGIN_TOKENS_${env.toUpperCase().replaceAll("-", "_")}`;
const secretsFile = join(root, ".wrangler", `${env}.secrets.json`);

/** Runs wrangler and returns its output. `input` is its standard input. */
function call(args, input = "") {
  say(`$ wrangler ${args.join(" ")}`);
  if (isDryRun) return null;
  const done = spawnSync(wrangler, args, { cwd: root, encoding: "utf8", input, env: { ...process.env, ...QUIET } });
  if (done.error) fail(`wrangler: ${done.error.message}`);
  if (done.status !== 0) fail(`wrangler ${args.join(" ")} ended with ${done.status}:\n${done.stdout}${done.stderr}`);
  return done.stdout;
}

/** Lists resources: the JSON array in wrangler's output. */
function list(args) {
  const printed = call(args) ?? "[]";
  try {
    return JSON.parse(printed.slice(printed.indexOf("[")));
  } catch {
    fail(`wrangler ${args.join(" ")} printed no list:\n${printed}`);
  }
}

/** Creates a resource unless it exists. `find` finds it in a list. Returns its id. */
function ensure(listing, creation, find) {
  const found = find(list(listing));
  if (found !== undefined) return found;
  call(creation);
  if (isDryRun) return `<from wrangler ${creation.slice(0, -1).join(" ")}>`;
  return find(list(listing)) ?? fail(`wrangler ${creation.join(" ")} created nothing that wrangler ${listing.join(" ")} shows`);
}

/**
 * Returns the environment for wrangler.toml. Environments do not inherit vars and bindings, so it
 * repeats those of the top level.
 */
async function environment(databaseId, namespaceId) {
  const { parse, stringify } = await import("smol-toml");
  const { vars, d1_databases, kv_namespaces, durable_objects, send_email } = /** @type {any} */ (parse(readFileSync(file, "utf8")));
  const settings = {
    routes: [
      { pattern: `*.${env}.${domain}/*`, zone_name: domain },
      { pattern: `${domain}/operator/*`, zone_name: domain },
    ],
    vars: { ...vars, REGION: env, SERVICE_DOMAIN: domain, DEFAULT_WORKSPACE: "", EDGE: "cloudflare", MAIL_FROM: `no-reply@${domain}` },
    send_email,
    d1_databases: d1_databases.map((item) => ({ ...item, database_name: database, database_id: databaseId })),
    kv_namespaces: kv_namespaces.map((item) => ({ ...item, id: namespaceId })),
    durable_objects,
  };
  return `\n# Created by \`npm run setup\`.\n${stringify({ env: { [env]: settings } })}`;
}

/** Adds the environment to wrangler.toml, unless it is there. */
async function addEnvironment() {
  const { parse } = await import("smol-toml");
  const existing = /** @type {any} */ (parse(readFileSync(file, "utf8"))).env?.[env];
  if (existing !== undefined) return say(`wrangler.toml has env.${env} already; it is not changed`);
  const databaseId = ensure(["d1", "list", "--json"], ["d1", "create", database], (all) => all.find(({ name }) => name === database)?.uuid);
  // Some versions of wrangler put the name of the Worker in front of the title.
  const isOurs = ({ title }) => title === namespace || title.endsWith(`-${namespace}`);
  const namespaceId = ensure(["kv", "namespace", "list"], ["kv", "namespace", "create", namespace], (all) => all.find(isOurs)?.id);
  const text = await environment(databaseId, namespaceId);
  if (isDryRun) return console.log(text);
  writeFileSync(file, readFileSync(file, "utf8") + text);
  say(`wrangler.toml: added env.${env}`);
}

/** Sets the secrets. They are kept in a file, because a rotation needs the previous values. */
function setSecrets() {
  const kept = existsSync(secretsFile) ? JSON.parse(readFileSync(secretsFile, "utf8")) : {};
  const values = Object.fromEntries(SECRETS.map((name) => [name, kept[name] ?? randomBytes(32).toString("base64url")]));
  if (!isDryRun) {
    mkdirSync(join(root, ".wrangler"), { recursive: true });
    writeFileSync(secretsFile, `${JSON.stringify(values, null, 2)}\n`, { mode: 0o600 });
    chmodSync(secretsFile, 0o600);
  }
  for (const name of SECRETS) call(["secret", "put", name, "--env", env], values[name]);
  return values;
}

/** Creates the first workspace, unless it exists. Returns its superuser's password, or null. */
async function createWorkspace(operatorToken) {
  const password = randomBytes(12).toString("base64url");
  const body = { slug: workspace, admin: { username: "admin", email, password } };
  const headers = { Authorization: `Bearer ${operatorToken}`, "Content-Type": "application/json" };
  const url = `${operatorUrl}/operator/workspaces/`;
  const response = await fetch(url, { method: "POST", headers, body: JSON.stringify(body) }).catch((error) =>
    fail(`${url}: ${error.cause?.message ?? error.message}. The Worker is deployed. Create the DNS records and the certificate of docs/deploying.md, and repeat this command.`),
  );
  const text = await response.text();
  if (response.status === 201) return password;
  if (response.status === 400 && (await exists(headers))) return null;
  fail(`POST ${url}: ${response.status} ${text}`);
}

async function exists(headers) {
  for (let url = `${operatorUrl}/operator/workspaces/?page_size=100`; url; ) {
    const response = await fetch(url, { headers });
    if (!response.ok) return false;
    const { results, next } = /** @type {{results: {slug: string}[], next: string | null}} */ (await response.json());
    if (results.some(({ slug }) => slug === workspace)) return true;
    url = next;
  }
  return false;
}

if (release === null) await (await import("./toolchain.mjs")).npmPackages();
if (!isDryRun && call(["whoami"]).includes("not authenticated")) fail("wrangler is not logged in; run `npx wrangler login`");
await addEnvironment();
const { OPERATOR_TOKEN: operatorToken } = setSecrets();
if (isDryRun) {
  say(`$ npm run deploy -- --env ${env}`);
  say(`$ POST ${operatorUrl}/operator/workspaces/, for the workspace ${workspace} with the superuser admin`);
  process.exit(0);
}
run(process.execPath, [join(root, "scripts", "deploy.mjs"), "--env", env]);
const password = await createWorkspace(operatorToken);
console.log(`
The workspace ${workspace} is at https://${workspace}.${env}.${domain}

  user      admin
  password  ${password ?? "as before, because the workspace exists"}
  secrets   ${relative(root, secretsFile)}; keep a copy of this file elsewhere

It needs the DNS records and the certificate of docs/deploying.md.`);
