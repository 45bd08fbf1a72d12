// Every page of the console with something to see: checked with axe and photographed.

/** Fills a workspace. Returns the facts that the addresses below need. */
export async function fill(workspace) {
  const web1 = await workspace.server("web-1", { labels: { env: "prod", role: "web" } });
  const web2 = await workspace.server("web-2", { labels: { env: "prod", role: "web" } });
  await workspace.server("db-1", { labels: { env: "prod", role: "db" }, isOffline: true });
  await workspace.server("build-1", { labels: { env: "test" }, isOffline: true });
  const upgrade = await workspace.run(web1, UPGRADE);
  await workspace.run(web2, "uptime");
  await workspace.run(web1, "systemctl reload nginx-that-is-missing; exit 3");
  await workspace.run(web2, "df -h /");
  const running = await workspace.admin.post("/api/events/commands/", { server: web2.id, line: "tail -f /dev/null" });
  return { web1, web2, upgrade, running };
}

const UPGRADE = `printf 'Reading package lists... Done\\nBuilding dependency tree... Done\\nReading state information... Done\\n'; printf '\\033[1mCalculating upgrade...\\033[0m Done\\n'; for p in libssl3 openssl curl libcurl4 nginx nginx-common tzdata ca-certificates; do printf '\\033[32mGet\\033[0m: http://deb.debian.org/debian-security bookworm-security/main amd64 \\033[36m%s\\033[0m\\n' "$p"; done; for p in libssl3 openssl curl libcurl4 nginx nginx-common tzdata ca-certificates; do printf 'Setting up \\033[36m%s\\033[0m ... \\033[32mok\\033[0m\\n' "$p"; done; printf '\\033[33mW:\\033[0m Some services need a restart: \\033[1;33mnginx\\033[0m\\n'; printf '8 upgraded, 0 newly installed, \\033[31m0 to remove\\033[0m and 0 not upgraded.\\n'`;

/** Name, address, and what the page shows when it is ready. */
export const PAGES = [
  ["overview", () => "/", { text: "tail -f" }],
  ["servers", () => "/servers", { text: "web-2" }],
  ["server", ({ web1 }) => `/servers/${web1.id}`, { text: "success" }],
  ["run", () => "/run?selector=env%3Dprod&line=uptime", { text: "Runs now on 3 servers" }],
  ["command", ({ upgrade }) => `/commands/${upgrade.id}`, { text: "8 upgraded" }],
  ["running", ({ running }) => `/commands/${running.id}`, { text: "running" }],
  ["nowhere", () => "/servers/x/y/z", { text: "There is no page" }],
];
