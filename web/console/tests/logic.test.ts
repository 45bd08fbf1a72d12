import { describe, expect, test, vi } from "vitest";
import { asProblem, problemOf } from "../src/api/problem";
import type { Command } from "../src/api/queries";
import { timesOf } from "../src/pages/audit/event";
import { runAgain } from "../src/pages/run/address";
import { asFarhand } from "../src/pages/run/as-farhand";
import { requestOf, type Draft } from "../src/pages/run/request";
import { onlyServer, targetsInAddress } from "../src/pages/run/targets";
import { summary } from "../src/pages/run/preview";
import { labelsOf } from "../src/pages/server/edit";
import { queryOf } from "../src/pages/servers/query";
import { withPolicy } from "../src/pages/servers/policy";
import { complete } from "../src/ui/selector";
import { curl, quoted } from "../src/ui/same";
import { bytes, duration, leftOut, plural, relative } from "../src/ui/words";

vi.stubGlobal("location", { origin: "https://acme.example" });

const targets = { servers: [], groups: [], selector: "", all: false };
const draft: Draft = {
  what: "line",
  script: "",
  params: {},
  line: "uptime",
  targets,
  username: "",
  timeout: "",
  cwd: "",
  concurrency: "",
  errors: "",
  ramp: false,
  offline: "",
  at: "",
  name: "",
};

test("an audit event of several requests shows their number", () => {
  expect([{ count: 1_000 }, { count: 1 }, {}, { count: "x" }].map(timesOf)).toEqual([" × 1,000", "", "", ""]);
});

describe("words", () => {
  test("relative times", () => {
    const now = Date.parse("2026-11-23T12:00:00Z");
    const ago = (seconds: number) => relative(now - seconds * 1_000, now);
    expect([0, 4, 5, 59, 60, 3_599, 3_600, 86_400, -90].map(ago)).toEqual([
      "now",
      "now",
      "5 s ago",
      "59 s ago",
      "1 min ago",
      "59 min ago",
      "1 h ago",
      "1 d ago",
      "in 1 min",
    ]);
  });

  test("durations, sizes, plurals", () => {
    expect([0.412, 12, 75, 3_723].map(duration)).toEqual(["0.41 s", "00:12", "01:15", "1:02:03"]);
    expect([0, 1_023, 1_536, 25_232_932_864].map(bytes)).toEqual(["0 B", "1023 B", "1.5 KiB", "23.5 GiB"]);
    expect([0, 1_536].map(leftOut)).toEqual([null, "1.5 KiB of the output were left out."]);
    expect([plural(1, "server"), plural(2_000, "server")]).toEqual(["1 server", "2,000 servers"]);
  });
});

describe("selectors", () => {
  const labels = [
    ["env", "prod"],
    ["env", "test"],
    ["role", "web"],
  ] as const;
  test("the last term is completed", () => {
    expect(complete("", labels)).toEqual(["env", "env=prod", "env=test", "role", "role=web"]);
    expect(complete("env=", labels)).toEqual(["env=prod", "env=test"]);
    expect(complete("env=prod,ro", labels)).toEqual(["env=prod,role", "env=prod,role=web"]);
    expect(complete("env in (prod,te", labels)).toEqual([]);
  });
});

describe("policies", () => {
  test("an install line gets the variable, whatever is before its variables", () => {
    expect(withPolicy("curl -fsSL 'https://a.example/install.sh' | FARHAND_KEY=x sh", "accounts")).toBe(
      "curl -fsSL 'https://a.example/install.sh' | FARHAND_POLICY=accounts FARHAND_KEY=x sh",
    );
    expect(withPolicy("", "open")).toBe("");
  });

  test("a filter sends only a mode that exists", () => {
    const filter = { search: "", label: "", state: "", policy: "none", ordering: "name" };
    expect(queryOf(filter)).toEqual({ ordering: "name", policy: "none" });
    expect(queryOf({ ...filter, policy: "x" })).toEqual({ ordering: "name" });
  });
});

describe("errors", () => {
  test("fields, codes and what has neither", () => {
    expect(problemOf(400, { code: "INVALID_COMMAND", detail: "Invalid input: line.", line: ["Too long."] }, "r")).toMatchObject({
      code: "INVALID_COMMAND",
      fields: { line: ["Too long."] },
      requestId: "r",
    });
    expect(problemOf(403, { non_field_errors: ["No."] }, null).message).toBe("No.");
    expect(problemOf(502, "<html>", null).message).toBe("The service answered with 502.");
    expect(asProblem(new TypeError("Failed to fetch")).isOffline).toBe(true);
  });
});

describe("run", () => {
  test("one named server is a command, anything else is a batch", () => {
    const one = { ...targets, servers: ["web-1"] };
    expect(onlyServer(one)).toBe("web-1");
    expect(requestOf({ ...draft, targets: one, timeout: "60", concurrency: "5" })).toEqual({
      path: "/api/events/commands/",
      body: { server: "web-1", line: "uptime", timeout: 60 },
    });
    expect(requestOf({ ...draft, targets: { ...targets, selector: " env=prod " }, concurrency: "25%", errors: "0", ramp: true })).toEqual({
      path: "/api/events/batches/",
      body: { line: "uptime", targets: { selector: "env=prod" }, max_concurrency: "25%", max_errors: 0, ramp: true },
    });
  });

  test("the same with curl and with farhand is quoted for a shell", () => {
    expect(quoted("it's")).toBe(`'it'\\''s'`);
    expect(quoted("$(id)")).toBe("'$(id)'");
    expect(asFarhand({ ...draft, line: "echo $HOME", targets: { ...targets, servers: ["a", "b"], selector: "env=prod" }, timeout: "60" })).toBe(
      "farhand run a,b -l env=prod --timeout 60s -- 'echo $HOME'",
    );
    expect(asFarhand({ ...draft, targets: { ...targets, groups: [1] } })).toBeNull();
    expect(asFarhand({ ...draft, what: "script", params: { DAYS: 3, NAME: "a b" }, targets: { ...targets, all: true } }, "clean up")).toBe(
      "farhand run --all --script 'clean up' --param DAYS=3 --param 'NAME=a b'",
    );
    expect(curl({ method: "POST", path: "/api/x/", body: { line: "it's" } })).toContain(`-d '{"line":"it'\\''s"}'`);
  });

  test("a command runs again as what it was", () => {
    const command = { server_name: "web-1", username: "root" } as Command;
    expect(runAgain({ ...command, line: "echo a@1" })).toBe("/run?servers=web-1&line=echo+a%401&username=root");
    expect(runAgain({ ...command, line: "script:clean up@2" })).toBe("/run?servers=web-1&script=clean+up&username=root");
  });

  test("many servers do not go into the address", () => {
    expect(targetsInAddress(["a", "b"])).toBe("?servers=a,b");
    expect(targetsInAddress(Array(51).fill("x"))).toBe("");
  });

  test("the summary names accounts, concurrency and offline servers", () => {
    const target = (name: string, is_connected: boolean, username = "deploy") => ({ server: name, server_name: name, username, is_connected });
    const plan = { dry_run: true as const, total: 3, max_concurrency: 50, max_errors: 1, targets: [target("a", true), target("b", true), target("c", false)] };
    const all = { ...draft, targets: { ...targets, all: true } };
    expect(summary(all, plan)).toBe("Runs now on 3 servers as deploy, 3 at once. Stops when more than 1 failed. 1 server is offline and is skipped.");
    expect(summary({ ...all, offline: "queue" }, plan)).toContain("1 server is offline: the command waits for its agent, at most an hour.");
    expect(summary({ ...draft, targets: { ...targets, servers: ["c"] } }, { ...plan, total: 1, max_errors: null, targets: [target("c", false)] })).toBe(
      "Runs now on c as deploy. 1 server is offline, so the service will refuse it.",
    );
  });
});

test("labels are lines of key=value", () => {
  expect(labelsOf("env=prod\n role = web\n\nspare, a=b=c")).toEqual({ env: "prod", role: "web", spare: "", a: "b=c" });
});
