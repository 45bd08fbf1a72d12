// What every bench begins with: a workspace with a superuser, and the tokens of whoever calls.

const PASSWORD = "a long one, for the bench";

/** The header of a user's request. */
export const userToken = (token) => ({ Authorization: `token="${token}"` });

/** A person as the API takes one in. */
export const person = (username) => ({ username, email: `${username}@example.com`, password: PASSWORD });

/**
 * Logs somebody in, and makes an API token.
 * @param {import("./load.mjs").Client} client
 * @param {string} username of a person as `person` makes one
 * @param {object} headers that name the workspace, where it is not the default one
 */
export async function tokensOf(client, username, headers = {}) {
  const login = { username, password: PASSWORD };
  const { token: loginToken } = await client.json("POST", "/api/auth/login/", { headers, body: login });
  const body = { name: "bench", expires_at: null };
  const made = { headers: { ...headers, ...userToken(loginToken) }, body, expected: 201 };
  const { key: apiToken } = await client.json("POST", "/api/auth/tokens/", made);
  return { login, loginToken, apiToken };
}

/** Makes a workspace; gives the tokens of its superuser. `headers` name it, where it is not the default one. */
export async function makeWorkspace(client, operatorToken, slug, headers = {}) {
  const admin = person("boss");
  const operator = { Authorization: `Bearer ${operatorToken}` };
  await client.json("POST", "/operator/workspaces/", { headers: operator, body: { slug, admin }, expected: 201 });
  return tokensOf(client, admin.username, headers);
}
