// Shared set-up of the benches: a workspace with a superuser, and tokens of users.

const PASSWORD = "a long one, for the bench";

/** The header with a user's token. */
export const userToken = (token) => ({ Authorization: `token="${token}"` });

/** The body of a request that creates a user. */
export const person = (username) => ({ username, email: `${username}@example.com`, password: PASSWORD });

/**
 * Logs a user in and creates an API token. Returns the body of the login request and both tokens.
 * @param {import("./load.mjs").Client} client
 * @param {string} username of a user who was created with the body from `person`
 * @param {object} headers with the workspace's host, unless it is the default workspace
 */
export async function tokensOf(client, username, headers = {}) {
  const login = { username, password: PASSWORD };
  const { token: loginToken } = await client.json("POST", "/api/auth/login/", { headers, body: login });
  const body = { name: "bench", expires_at: null };
  const options = { headers: { ...headers, ...userToken(loginToken) }, body, expected: 201 };
  const { key: apiToken } = await client.json("POST", "/api/auth/tokens/", options);
  return { login, loginToken, apiToken };
}

/**
 * Creates a workspace. Returns the tokens of its superuser. `headers` must contain the workspace's
 * host, unless it is the default workspace.
 */
export async function makeWorkspace(client, operatorToken, slug, headers = {}) {
  const admin = person("boss");
  const operator = { Authorization: `Bearer ${operatorToken}` };
  await client.json("POST", "/operator/workspaces/", { headers: operator, body: { slug, admin }, expected: 201 });
  return tokensOf(client, admin.username, headers);
}
