// The demo's workspace, with a superuser, an API token and the server "this-machine". The file
// demo.json in the state folder has its address, names and secrets.
import { randomBytes } from "node:crypto";
import { chmodSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { userInfo } from "node:os";
import { join } from "node:path";

const userToken = (token) => `token="${token}"`;

function writePrivate(file, text) {
  writeFileSync(file, text, { mode: 0o600 });
  chmodSync(file, 0o600);
}

/** Returns the value of a key in the agent's config file. */
const setting = (config, name) => config.match(new RegExp(`^${name} = "(.*)"$`, "m"))?.[1];

export class Demo {
  #url;
  #operatorToken;
  #stateDir;
  /** The config file of the server's agent. */
  agentFile;

  constructor({ url, operatorToken }, stateDir) {
    this.#url = url;
    this.#operatorToken = operatorToken;
    this.#stateDir = stateDir;
    this.agentFile = join(stateDir, "agent.toml");
  }

  /** Calls the API. Throws an error for an error response. */
  async #api(method, path, authorization, body) {
    const response = await fetch(`${this.#url}${path}`, {
      method,
      headers: { Authorization: authorization, ...(body && { "Content-Type": "application/json" }) },
      body: body && JSON.stringify(body),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text === "" ? null : JSON.parse(text);
  }

  /** Creates the workspace, or uses the workspace of an earlier start. Returns its facts. */
  async prepare() {
    const factsFile = join(this.#stateDir, "demo.json");
    const earlier = existsSync(factsFile) ? JSON.parse(readFileSync(factsFile, "utf8")) : null;
    const facts = earlier && existsSync(this.agentFile) ? earlier : await this.#create(factsFile, earlier);
    facts.url = this.#url;
    // The port may have changed since the last start.
    const config = readFileSync(this.agentFile, "utf8").replace(/^url = .*$/m, `url = "${this.#url}"`);
    writePrivate(this.agentFile, config);
    facts.server = (await this.#serverOfAgent(config)) ?? (await this.#renewKey(config, facts));
    writePrivate(factsFile, `${JSON.stringify(facts, null, 2)}\n`);
    return facts;
  }

  /** Returns the name of the agent's server, or null if the agent's key is no longer valid. */
  async #serverOfAgent(config) {
    const Authorization = `id="${setting(config, "id")}", key="${setting(config, "key")}"`;
    const response = await fetch(`${this.#url}/api/servers/servers/-/`, { headers: { Authorization } });
    if (response.status !== 200) return null;
    const { name } = /** @type {{name: string}} */ (await response.json());
    return name;
  }

  /**
   * Gets a new key for the demo's agent after the user has rotated its key. If the user has deleted
   * the server, creates a new server. Returns the server's name.
   */
  async #renewKey(config, facts) {
    const [path, token] = [`/api/servers/servers/${setting(config, "id")}/`, userToken(facts.api_token)];
    const rotated = await this.#api("POST", `${path}rotate-key/`, token).catch(() => null);
    const create = () => this.#api("POST", "/api/servers/", token, { name: facts.server, default_username: userInfo().username });
    const lost = (error) => {
      throw new Error(`the demo has lost its server (${error.message}); delete ${this.#stateDir} to start over`);
    };
    const server = rotated ?? (await create().catch(lost));
    this.#writeAgentFile(server);
    return server.name;
  }

  #writeAgentFile(server) {
    writePrivate(this.agentFile, `url = "${this.#url}"\nid = "${server.id}"\nkey = "${server.key}"\n`);
  }

  /** Creates what an interrupted first start, which stored its password in `earlier`, did not create. */
  async #create(factsFile, earlier) {
    const slug = process.env.DEFAULT_WORKSPACE || "demo";
    const admin = { username: "admin", email: "admin@example.com", password: earlier?.password ?? randomBytes(12).toString("base64url") };
    if (!earlier) writePrivate(factsFile, JSON.stringify({ password: admin.password }));
    const logIn = () => this.#api("POST", "/api/auth/login/", "", { username: admin.username, password: admin.password });
    const create = () => this.#api("POST", "/operator/workspaces/", `Bearer ${this.#operatorToken}`, { slug, name: "Demo", admin });
    const { token } = (earlier && (await logIn().catch(() => null))) ?? (await create().then(logIn));
    const { key } = await this.#api("POST", "/api/auth/tokens/", userToken(token), { name: "demo", expires_at: null });
    const name = "this-machine";
    const { results } = await this.#api("GET", `/api/servers/?name=${name}`, userToken(key));
    const server = await (results.length > 0
      ? this.#api("POST", `/api/servers/servers/${results[0].id}/rotate-key/`, userToken(key))
      : this.#api("POST", "/api/servers/", userToken(key), { name, default_username: userInfo().username }));
    this.#writeAgentFile(server);
    return { url: this.#url, username: admin.username, password: admin.password, api_token: key, server: server.name };
  }

  /** Whether the agent of the server is connected. */
  async isConnected(facts) {
    const { results } = await this.#api("GET", "/api/servers/?page_size=100", userToken(facts.api_token));
    return results.some((server) => server.name === facts.server && server.is_connected);
  }
}
