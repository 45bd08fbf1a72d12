// @ts-check
// Every page of the console with something to see: checked with axe and photographed.

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { eventually } from "./service.mjs";

/** Fills a workspace. Returns the facts that the addresses below need. */
export async function fill(workspace) {
  const web1 = await workspace.server("web-1", { labels: { env: "prod", role: "web" } });
  const web2 = await workspace.server("web-2", { labels: { env: "prod", role: "web" } });
  await workspace.server("db-1", { labels: { env: "prod", role: "db" }, isOffline: true });
  await workspace.server("build-1", { labels: { env: "test" }, isOffline: true });
  const gone = await workspace.server("old-1", { labels: { env: "test" }, isOffline: true });
  await workspace.admin.call("DELETE", `/api/servers/servers/${gone.id}/`);
  const upgrade = await upgraded(workspace, web1);
  await workspace.run(web2, "uptime");
  await workspace.run(web1, "systemctl reload nginx-that-is-missing; exit 3");
  await workspace.run(web2, "df -h /");
  const running = await workspace.admin.post("/api/events/commands/", { server: web2.id, line: "tail -f /dev/null" });
  return { web1, web2, upgrade, running, ...(await fillOthers(workspace, [web1, web2])) };
}

/** What the pages show that are not about servers and commands. */
async function fillOthers(workspace, servers) {
  const { admin, slug } = workspace;
  const ann = await workspace.user("ann", { first_name: "Ann" });
  await workspace.user("joe", { is_staff: true });
  const group = await admin.post("/api/iam/groups/", {
    name: "web",
    display_name: "Web team",
    description: "They run the web servers",
    servers: servers.map(({ id }) => id),
  });
  await admin.post("/api/iam/memberships/", { group: group.id, user: ann.id, role: "manager" });
  const script = await admin.post("/api/events/scripts/", {
    name: "clean up",
    description: "Deletes old files of a folder",
    body: CLEAN_UP,
    params: [
      { name: "FOLDER", type: "string", required: true },
      { name: "DAYS", type: "integer", default: 30 },
    ],
  });
  await admin.patch(`/api/events/scripts/${script.id}/`, { body: CLEAN_UP.replace("-delete", "-print -delete") });
  const schedule = await admin.post("/api/events/schedules/", {
    name: "nightly backup",
    cron: "30 2 * * mon-fri",
    timezone: "Asia/Seoul",
    targets: { selector: "role=db" },
    line: "backup.sh --all",
  });
  await admin.post("/api/events/schedules/", { name: "log rotation", cron: "0 4 * * sun", targets: { all: true }, line: "logrotate /etc/logrotate.conf" });
  const token = await admin.post("/api/auth/tokens/", {
    name: "deploy",
    expires_at: null,
    acl: { commands: ["systemctl restart -- app-*"], selector: "role=web" },
  });
  await admin.post("/api/auth/tokens/", { name: "dashboard", expires_at: new Date(Date.now() + 30 * 86_400_000).toISOString(), acl: { read_only: true } });
  await admin.post("/api/servers/registration-tokens/", { name: "rollout", uses: 20, name_pattern: "web-*", labels: { env: "prod" } });
  // The agents share a machine, so the first of them takes the folder and the other one fails.
  const folder = `/tmp/farhand-${slug}`;
  const line = `df -h --output=source,size,pcent / | sed 's/[0-9][0-9]*%/30%/'; if mkdir ${folder} 2>/dev/null; then sleep 1; rmdir ${folder}; else printf '\\033[31m/var is nearly full\\033[0m\\n'; exit 2; fi`;
  const { id } = await admin.post("/api/events/batches/", { name: "check disks", targets: { selector: "role=web" }, line });
  const batch = await eventually("the end of the batch", async () => {
    const found = await admin.get(`/api/events/batches/${id}/`);
    return found.finished_at && found;
  });
  return { ann, group, script, schedule, token, batch };
}

const CLEAN_UP = `#!/bin/sh
set -eu
find "$PARAM_FOLDER" -mtime +"$PARAM_DAYS" -delete
`;

/** Runs a program named `apt-get` that only prints what an upgrade prints. */
async function upgraded(workspace, server) {
  const folder = mkdtempSync(join(tmpdir(), "farhand-web-"));
  try {
    writeFileSync(join(folder, "apt-get"), `#!/bin/sh\n${UPGRADE}\n`, { mode: 0o755 });
    return await workspace.run(server, "apt-get upgrade -y", { env: { PATH: `${folder}:/usr/bin:/bin` } });
  } finally {
    rmSync(folder, { recursive: true });
  }
}

const UPGRADE = `printf 'Reading package lists... Done\\nBuilding dependency tree... Done\\nReading state information... Done\\n'; printf '\\033[1mCalculating upgrade...\\033[0m Done\\n'; for p in libssl3 openssl curl libcurl4 nginx nginx-common tzdata ca-certificates; do printf '\\033[32mGet\\033[0m: http://deb.debian.org/debian-security bookworm-security/main amd64 \\033[36m%s\\033[0m\\n' "$p"; done; for p in libssl3 openssl curl libcurl4 nginx nginx-common tzdata ca-certificates; do printf 'Setting up \\033[36m%s\\033[0m ... \\033[32mok\\033[0m\\n' "$p"; done; printf '\\033[33mW:\\033[0m Some services need a restart: \\033[1;33mnginx\\033[0m\\n'; printf '8 upgraded, 0 newly installed, \\033[31m0 to remove\\033[0m and 0 not upgraded.\\n'`;

/** Name, address, and what the page shows when it is ready. */
/** @type {[string, (facts: any) => string, { text: string | RegExp }][]} */
export const PAGES = [
  ["overview", () => "/", { text: "tail -f" }],
  ["servers", () => "/servers", { text: "web-2" }],
  ["servers-deleted", () => "/servers/deleted", { text: "old-1" }],
  ["server", ({ web1 }) => `/servers/${web1.id}`, { text: "success" }],
  ["run", () => "/run?selector=env%3Dprod&line=uptime", { text: "Runs now on 3 servers" }],
  ["command", ({ upgrade }) => `/commands/${upgrade.id}`, { text: "8 upgraded" }],
  ["running", ({ running }) => `/commands/${running.id}`, { text: "running" }],
  ["history", () => "/history", { text: "df -h" }],
  ["batches", () => "/batches", { text: "check disks" }],
  ["batch", ({ batch }) => `/batches/${batch.id}`, { text: "2 different outcomes" }],
  ["schedules", () => "/schedules", { text: "At 02:30, Monday through Friday" }],
  ["schedule-new", () => "/schedules?new=true&line=uptime&selector=env%3Dprod", { text: "It runs with your permissions" }],
  ["schedule", ({ schedule }) => `/schedules/${schedule.id}`, { text: "It has not run" }],
  ["scripts", () => "/scripts", { text: "clean up" }],
  ["script-new", () => "/scripts/new", { text: "Add a parameter" }],
  ["script", ({ script }) => `/scripts/${script.id}?run=true`, { text: "Version 1" }],
  ["tokens", ({ token }) => `/tokens?open=${token.id}`, { text: "Would this line be allowed?" }],
  ["token-new", () => "/tokens?new=true", { text: "It allows: everything" }],
  ["sessions", () => "/sessions", { text: "this session" }],
  ["users", ({ ann }) => `/users?open=${ann.id}`, { text: "joe@example.com" }],
  ["groups", () => "/groups", { text: "Web team" }],
  ["group", ({ group }) => `/groups/${group.id}`, { text: "ann" }],
  ["registration", () => "/registration", { text: "20 further servers" }],
  ["audit", () => "/audit?action=script.update", { text: "clean up" }],
  ["settings", () => "/settings", { text: "Current password" }],
  ["nowhere", () => "/servers/x/y/z", { text: "There is no page" }],
];
