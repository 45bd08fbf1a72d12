// @ts-check
// Who may do what: API tokens, sessions, the own account, users, groups.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, Visit } from "./browser.mjs";
import { eventually, fetch, PASSWORD, Workspace } from "./service.mjs";

/** @type {import("playwright-core").Browser} */
let browser;
/** @type {Workspace} */
let workspace;
/** @type {any} */
let server;
before(async () => {
  browser = await launch();
  workspace = await Workspace.create();
  server = await workspace.server("web-1", { labels: { env: "prod" }, isOffline: true });
});
after(() => browser?.close());

/** The status of a request with a credential. */
const statusOf = async (token, path = "/api/status/") => (await fetch(`${workspace.url}${path}`, { headers: { Authorization: `token="${token}"` } })).status;
const userOf = async (username) => (await workspace.admin.get(`/api/iam/users/?username=${username}`)).results[0];

test("a token is limited, tried out, used, disabled and revoked", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/tokens");
  await visit.signIn();
  await page.getByRole("heading", { name: "You have no tokens" }).waitFor();
  await page.getByRole("button", { name: "Create a token" }).click();
  await page.getByLabel("Name", { exact: true }).fill("deploy");
  await page.getByLabel("Lines", { exact: true }).fill("systemctl restart -- app-*");
  await page.getByLabel("Server", { exact: true }).fill("web-1");
  await page.getByLabel("Server", { exact: true }).press("Enter");
  await page.getByText("It allows: lines like systemctl restart -- app-*; on 1 server.").waitFor();
  const check = page.getByRole("group", { name: "Would this line be allowed?" });
  await check.getByLabel("On server").fill("web-1");
  await check.getByLabel("Line").fill("systemctl restart -- app-web");
  await page.keyboard.press("Enter");
  await check.getByText("Allowed").waitFor();
  await check.getByLabel("Line").fill("systemctl restart -- app-web sshd");
  await check.getByRole("button", { name: "Check" }).click();
  await check.getByText(/^Refused: .*touches another character matches no blank/).waitFor();
  await page.getByLabel("From networks").fill("not-a-network");
  await visit.isAccessible("form of a token");
  await page.getByRole("button", { name: "Create the token" }).click();
  await page
    .locator(".action-error")
    .getByText(/networks/)
    .waitFor();
  assert.equal((await workspace.admin.get("/api/auth/tokens/")).count, 0);
  await page.getByLabel("From networks").fill("");
  await page.getByRole("button", { name: "Create the token" }).click();
  const key = await page.getByLabel("Key of the token").innerText();
  assert.match(key, /^[A-Za-z0-9]{128}$/);
  assert.equal(await statusOf(key), 200);
  assert.equal(await statusOf(key, "/api/iam/users/"), 403);
  await page.getByRole("button", { name: "I have copied the key" }).click();
  await page.getByRole("button", { name: "deploy" }).click();
  assert.ok(!(await page.content()).includes(key), "the key is shown once");
  await visit.isAccessible("an open token");
  await page.getByRole("button", { name: "Disable" }).click();
  await page.getByText("disabled", { exact: true }).waitFor();
  assert.equal(await statusOf(key), 403);
  await page.getByRole("button", { name: "Enable" }).click();
  await page.getByText("valid", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Revoke" }).click();
  await page.getByRole("button", { name: "Revoke deploy" }).click();
  await page.getByRole("heading", { name: "You have no tokens" }).waitFor();
  assert.equal(await statusOf(key), 403);
  await visit.end();
});

test("a session is ended from another one", async () => {
  await workspace.user("sam");
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/sessions");
  await visit.signIn("sam");
  await page.getByText("this session").waitFor();
  assert.equal(await page.getByRole("button", { name: "Sign out everywhere" }).count(), 0);
  const other = await visit.tab();
  await other.goto("/sessions");
  await visit.signIn("sam", other);
  await page.getByRole("button", { name: /^End the session of Chrome on Linux/ }).click();
  await page.getByRole("dialog").getByText("Commands that wait in it are cancelled").waitFor();
  await page.getByRole("button", { name: "End the session", exact: true }).click();
  await page.getByText("The session of Chrome on Linux has ended.").waitFor();
  await other.getByText("Your session has ended").waitFor();
  await eventually("one session is left", async () => (await page.getByRole("list", { name: "Sessions" }).getByRole("listitem").count()) === 1);
  await visit.end();
});

test("the own names, address and password are changed", async () => {
  await workspace.user("ada");
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/settings");
  await visit.signIn("ada");
  const save = page.getByRole("button", { name: "Save" });
  assert.ok(await save.isDisabled());
  await page.getByLabel("First name").fill("Ada");
  await save.click();
  await page.getByText("Your account is changed.").waitFor();
  assert.equal((await userOf("ada")).first_name, "Ada");
  const account = page.getByRole("region", { name: "Account" });
  await account.getByLabel("E-mail address").fill("countess@example.com");
  await account.getByLabel("Current password").fill("wrong");
  await save.click();
  await account.locator(".field .error").waitFor();
  assert.equal((await userOf("ada")).email, "ada@example.com");
  await account.getByLabel("Current password").fill(PASSWORD);
  await save.click();
  await eventually("the address is changed", async () => (await userOf("ada")).email === "countess@example.com");
  const next = "staple-battery-correct-7";
  const password = page.getByRole("region", { name: "Password" });
  await password.getByLabel("Current password").fill(PASSWORD);
  await password.getByLabel("New password", { exact: true }).fill("password");
  await password.getByLabel("New password again").fill("passwort");
  await password.getByText("This is not the same password.").waitFor();
  await password.getByLabel("New password again").fill("password");
  await password.getByRole("button").click();
  await password.locator(".field .error").first().waitFor();
  await password.getByLabel("New password", { exact: true }).fill(next);
  await password.getByLabel("New password again").fill(next);
  await visit.isAccessible("settings");
  await password.getByRole("button").click();
  await page.getByText("Your password is changed. Your other sessions have ended.").waitFor();
  await page.getByRole("link", { name: "Your sessions" }).click();
  await page.getByText("this session").waitFor();
  const login = (candidate) =>
    fetch(`${workspace.url}/api/auth/login/`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ username: "ada", password: candidate }),
    });
  assert.deepEqual([(await login(PASSWORD)).status, (await login(next)).status], [403, 200]);
  await visit.end();
});

test("a user is created, given a rank, deactivated and deleted", async () => {
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/users");
  await visit.signIn();
  await page.getByRole("button", { name: "Create a user" }).click();
  const form = page.getByRole("region", { name: "Create a user" });
  await form.getByLabel("Username").fill("root");
  await form.getByLabel("E-mail address").fill("grace@example.com");
  await form.getByLabel("Password").fill(PASSWORD);
  await form.getByRole("button", { name: "Create the user" }).click();
  await form.locator(".field .error").waitFor();
  await visit.isAccessible("form of a user");
  await form.getByLabel("Username").fill("grace");
  await form.getByRole("button", { name: "Create the user" }).click();
  await page.getByText("grace can sign in.").waitFor();
  await page.getByRole("button", { name: "grace" }).click();
  const edit = page.getByRole("region", { name: "Change a user" });
  await edit.getByLabel("First name").fill("Grace");
  // What another user changes at the same time stays.
  const { id } = await userOf("grace");
  await workspace.admin.patch(`/api/iam/users/${id}/`, { last_name: "Hopper" });
  await edit.getByLabel("Rank").selectOption("staff");
  await edit.getByRole("button", { name: "Save" }).click();
  await page.getByText("grace is changed.").waitFor();
  const changed = await userOf("grace");
  assert.deepEqual([changed.first_name, changed.last_name, changed.is_staff, changed.is_superuser], ["Grace", "Hopper", true, false]);
  await page.getByRole("button", { name: "grace" }).click();
  await edit.getByRole("button", { name: "Deactivate" }).click();
  await page.getByRole("button", { name: "Deactivate grace" }).click();
  await edit.getByRole("button", { name: "Activate" }).waitFor();
  await assert.rejects(workspace.loggedIn("grace"));
  await edit.getByRole("button", { name: "Activate" }).click();
  await page.getByText("grace is active.").waitFor();
  await workspace.loggedIn("grace");
  await edit.getByRole("button", { name: "Delete" }).click();
  const confirm = page.getByRole("button", { name: "Delete grace" });
  assert.ok(await confirm.isDisabled());
  await page.getByLabel(/to confirm/).fill("grace");
  await confirm.click();
  await page.getByText("grace is deleted.").waitFor();
  assert.equal(await userOf("grace"), undefined);
  // The last superuser stays.
  await page.getByRole("table", { name: "Users" }).getByRole("button", { name: "boss" }).click();
  await edit.getByLabel("Rank").selectOption("user");
  await edit.getByRole("button", { name: "Save" }).click();
  await edit.locator(".action-error").waitFor();
  assert.equal((await userOf("boss")).is_superuser, true);
  await visit.end();
});

test("a group is created, gets members and servers, and is deleted", async () => {
  await workspace.user("ken");
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/groups");
  await visit.signIn();
  await page.getByRole("heading", { name: "There is no group" }).waitFor();
  await page.getByRole("button", { name: "Create a group" }).click();
  await page.getByLabel("Key").fill("Not a key");
  await page.getByRole("button", { name: "Create the group" }).click();
  await page.locator(".field .error").waitFor();
  await page.getByLabel("Key").fill("web");
  await page.getByLabel("Name", { exact: true }).fill("Web team");
  await page.getByRole("button", { name: "Create the group" }).click();
  await page.getByRole("heading", { name: "Web team" }).waitFor();
  const id = Number(new URL(page.url()).pathname.split("/")[2]);
  const group = () => workspace.admin.get(`/api/iam/groups/${id}/`);
  const members = page.getByRole("region", { name: "Members" });
  await members.getByLabel("Username").fill("nobody-here");
  await members.getByRole("button", { name: "Add" }).click();
  await members.getByText("There is no user nobody-here.").waitFor();
  await members.getByLabel("Username").fill("ken");
  await members.getByRole("button", { name: "Add" }).click();
  await members.getByLabel("Role of ken").selectOption("manager");
  await eventually("ken is a manager", async () =>
    (await workspace.admin.get(`/api/iam/memberships/?group=${id}`)).results.some(({ role }) => role === "manager"),
  );
  await members.getByRole("button", { name: "Leave the group" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Leave" }).click();
  await page.getByRole("dialog").getByRole("alert").waitFor();
  await page.keyboard.press("Escape");
  const servers = page.getByRole("region", { name: "Servers" });
  await servers.getByLabel("Server").fill("web-1");
  await servers.getByLabel("Server").press("Enter");
  await servers.getByRole("button", { name: "Remove web-1" }).waitFor();
  assert.deepEqual((await group()).servers, [server.id]);
  await page.getByRole("textbox", { name: "Description" }).fill("They run the web servers");
  await visit.isAccessible("group");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByText("The group is changed.").waitFor();
  assert.deepEqual([(await group()).description, (await group()).num_members], ["They run the web servers", 2]);

  const other = await Visit.start(browser, workspace);
  await other.page.goto(`/groups/${id}`);
  await other.signIn("ken");
  await other.page.getByText("They run the web servers").waitFor();
  // A manager adds members, and changes no servers, roles and texts.
  await other.page.getByRole("button", { name: "Add" }).waitFor();
  assert.equal(await other.page.getByRole("button", { name: /^(?:Remove web-1|Save|Delete)$/ }).count(), 0);
  assert.equal(await other.page.getByLabel("Role of ken").count(), 0);
  await other.end();

  await members.getByRole("button", { name: "Remove ken" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove ken" }).click();
  await eventually("ken is removed", async () => (await group()).num_members === 1);
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("button", { name: "Delete Web team" }).click();
  await page.getByRole("heading", { name: "There is no group" }).waitFor();
  await assert.rejects(group());
  await visit.end();
});

test("a user changes no users and no groups", async () => {
  await workspace.user("eve");
  const { id } = await userOf("boss");
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto(`/users?open=${id}&new=true`);
  await visit.signIn("eve");
  const table = page.getByRole("table", { name: "Users" });
  await table.getByText("boss", { exact: true }).waitFor();
  assert.equal(await table.getByRole("button").count(), 0);
  assert.equal(await page.getByRole("region", { name: /user$/ }).count(), 0);
  assert.equal(await page.getByRole("button", { name: "Create a user" }).count(), 0);
  await page.getByLabel("Search").fill("no-such-user");
  await page.getByRole("heading", { name: "No user matches" }).waitFor();
  await page.goto("/groups?new=true");
  await page.getByRole("heading", { name: "You are in no group" }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Create the group" }).count(), 0);
  const token = await page.evaluate(() => JSON.parse(sessionStorage.getItem("farhand.session") ?? "null").token);
  const headers = { Authorization: `token="${token}"`, "Content-Type": "application/json" };
  const forced = await fetch(`${workspace.url}/api/iam/users/${id}/`, { method: "PATCH", headers, body: JSON.stringify({ is_active: false }) });
  assert.equal(forced.status, 403);
  await visit.end();
});

test("staff change ordinary users only", async () => {
  await workspace.user("joe", { is_staff: true });
  await workspace.user("pat");
  const { id } = await userOf("boss");
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto(`/users?open=${id}`);
  await visit.signIn("joe");
  await page.getByRole("heading", { name: "Only superusers change boss" }).waitFor();
  await page.getByRole("button", { name: "pat" }).click();
  const edit = page.getByRole("region", { name: "Change a user" });
  await edit.getByLabel("First name").waitFor();
  assert.equal(await edit.getByLabel("Rank").count(), 0);
  assert.equal(await edit.getByLabel("New password").count(), 0);
  await visit.end();
});

test("a limited token is not offered what its list refuses", async () => {
  const { key } = await workspace.admin.post("/api/auth/tokens/", { name: "limited", expires_at: null, acl: { read_only: true } });
  const visit = await Visit.start(browser, workspace);
  const { page } = visit;
  await page.goto("/tokens");
  await page.getByRole("button", { name: "Use an API token" }).click();
  await page.getByLabel("API token").fill(key);
  await page.keyboard.press("Enter");
  await page.getByRole("navigation", { name: "Pages" }).waitFor();
  for (const address of ["/tokens", "/schedules?new=true", "/users", "/groups?new=true", "/registration"]) {
    await page.goto(address);
    await page.getByRole("heading", { name: "Not allowed" }).waitFor();
    await page.getByText("The access control list of the API token does not allow this.").waitFor();
    assert.equal(await page.getByRole("button", { name: /^(?:Create|Add)/ }).count(), 0, address);
  }
  await page.goto("/servers");
  await page.getByRole("link", { name: "web-1" }).waitFor();
  await visit.end();
});
