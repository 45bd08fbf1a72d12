// The logic of the pages about batches, schedules, scripts, tokens and sessions.
import { describe, expect, test } from "vitest";
import { difference } from "../src/pages/batch/difference";
import { toggled } from "../src/pages/batch/outputs";
import { changed, countStates, reasonOf, type Target } from "../src/pages/batch/targets";
import { DEFAULTS, queryOf } from "../src/pages/history/query";
import { draftOf as scheduleDraft, emptyDraft, requestOf } from "../src/pages/schedule/draft";
import { draftOf, parameterOf } from "../src/pages/script/params";
import { deviceOf } from "../src/pages/sessions/device";
import { aclOf, limitsOf, NO_LIMITS } from "../src/pages/tokens/acl";
import { laterThan, weeksOf } from "../src/ui/calendar-days";
import { valuesOf } from "../src/ui/script-params";

const TARGET: Target = {
  server: "s",
  server_name: "web-1",
  command: null,
  state: "pending",
  exit_code: null,
  elapsed_time: null,
  started_at: null,
  handled_at: null,
  reason: null,
};

describe("batch", () => {
  const change = (state: Target["state"]) => ({ server: "s", command: "c", state, exit_code: null, at: "2026-11-01T00:00:00+00:00" });

  test("an earlier step does not replace a later one", () => {
    const running = changed(TARGET, change("running"));
    expect(running).toMatchObject({ state: "running", command: "c" });
    expect(changed(running, change("queued"))).toBe(running);
    expect(changed(changed(running, change("failed")), change("running")).state).toBe("failed");
    expect(countStates([running, TARGET])).toMatchObject({ running: 1, pending: 1, success: 0 });
  });

  test("a reason is shown only if it says more than the state", () => {
    expect(reasonOf({ ...TARGET, state: "failed", exit_code: 2, reason: "Failed with exit code 2." })).toBeNull();
    expect(reasonOf({ ...TARGET, state: "skipped", reason: "offline\u202e" })).toBe("offline⟨U+202E⟩");
  });

  test("at most two groups are compared, the newest click stays", () => {
    expect(toggled(["a"], "b")).toEqual(["a", "b"]);
    expect(toggled(["a", "b"], "c")).toEqual(["b", "c"]);
    expect(toggled(["a", "b"], "a")).toEqual(["b"]);
  });

  test("a difference has the lines around it, and no sequences", () => {
    const lines = Array.from({ length: 20 }, (_, index) => `line ${index + 1}`);
    const other = lines.with(9, "\u001b[31mother\u001b[0m\u0007");
    const found = difference(lines.join("\n"), other.join("\n"))!;
    expect(found[0]).toEqual({ kind: "gap", text: "line 7" });
    expect(found.filter(({ kind }) => kind === "same")).toHaveLength(6);
    expect(found.filter(({ kind }) => kind === "left")).toEqual([{ kind: "left", text: "line 10" }]);
    expect(found.filter(({ kind }) => kind === "right")).toEqual([{ kind: "right", text: "other␇" }]);
    expect(difference("same\n", "same")).toEqual([]);
  });
});

describe("history", () => {
  test("only filters that are set are sent", () => {
    expect(queryOf(DEFAULTS, undefined)).toEqual({ ordering: "-scheduled_at" });
    expect(queryOf({ ...DEFAULTS, exit: "0", only: "orphaned", state: "failed,stuck" }, 7)).toEqual({
      ordering: "-scheduled_at",
      exit_code: 0,
      requested_by: 7,
      requested_by_isnull: true,
      state: "failed,stuck",
    });
    // Half a number is not a filter yet.
    expect(queryOf({ ...DEFAULTS, exit: "-" }, undefined)).not.toHaveProperty("exit_code");
  });
});

describe("schedules", () => {
  const address = new URLSearchParams("line=uptime&selector=env=prod&groups=1,x,2&servers=a,b");

  test("a form is filled in from the address", () => {
    expect(emptyDraft(address)).toMatchObject({
      kind: "line",
      line: "uptime",
      targets: { servers: ["a", "b"], groups: [1, 2], selector: "env=prod", all: false },
    });
    expect(emptyDraft(new URLSearchParams("script=7")).kind).toBe("script");
  });

  test("a request has what was typed, and never says whether it is active", () => {
    const request = requestOf({ ...emptyDraft(address), name: " nightly ", cron: "@daily", concurrency: "20%", errors: "3", timeout: "" }, []);
    expect(request).toMatchObject({ name: "nightly", line: "uptime", max_concurrency: "20%", max_errors: 3, username: null });
    expect(request).not.toHaveProperty("enabled");
    expect(request).not.toHaveProperty("timeout");
    expect(request).not.toHaveProperty("script");
  });

  test("the words of a schedule without a shell are left as they are", () => {
    const schedule = {
      name: "n",
      cron: "@daily",
      timezone: "UTC",
      line: null,
      argv: ["ls", "-l"],
      script: null,
      script_version: null,
      targets: { all: true },
      username: null,
      timeout: 60,
      max_concurrency: 50,
      max_errors: null,
      ramp: false,
      on_offline: "skip",
      misfire: "skip",
      overlap: "skip",
      starts_at: null,
      ends_at: null,
    };
    const request = requestOf(scheduleDraft(schedule as unknown as Parameters<typeof scheduleDraft>[0]), []);
    expect(request).not.toHaveProperty("line");
    expect(request).not.toHaveProperty("argv");
  });

  test("weeks begin on Monday and end after the last run", () => {
    const now = new Date(2026, 10, 25, 12).getTime();
    const run = (day: number, month = 10) => ({ at: new Date(2026, month, day, 4).getTime(), name: "n", to: "/" });
    const weeks = weeksOf([run(26), run(8, 11)], now);
    expect(weeks).toHaveLength(3);
    expect(new Date(weeks[0]![0]!.start).getDate()).toBe(23);
    expect(weeks[0]![3]!.entries).toHaveLength(1);
    const late = [run(1, 11), run(20, 11)];
    expect(weeksOf(late, now, 2)).toHaveLength(2);
    expect(laterThan(weeksOf(late, now, 2), late)).toBe(1);
  });
});

describe("scripts", () => {
  test("declarations go back and forth", () => {
    const declared = { name: "DAYS", type: "integer", default: 30, required: false } as const;
    expect(parameterOf(draftOf(declared))).toEqual(declared);
    const choice = { name: "ENV", type: "choice", choices: ["prod", "test"], required: true } as const;
    expect(parameterOf(draftOf({ ...choice, choices: [...choice.choices] }))).toEqual(choice);
    // The service says what is wrong with it.
    expect(parameterOf({ ...draftOf(declared), preset: "many" }).default).toBe("many");
  });

  test("values have their types, and an empty one is none", () => {
    const parameters = [
      { name: "A", type: "integer" as const, required: false },
      { name: "B", type: "boolean" as const, required: false },
      { name: "C", type: "string" as const, required: false },
    ];
    expect(valuesOf(parameters, { A: "7", B: "true", C: "" })).toEqual({ A: 7, B: true });
    expect(valuesOf(parameters, { A: "9007199254740993" })).toEqual({ A: "9007199254740993" });
  });
});

describe("tokens", () => {
  test("nothing typed is no list", () => {
    expect(aclOf(NO_LIMITS)).toBeNull();
    expect(limitsOf(null)).toEqual(["everything that you can do"]);
  });

  test("lists are split at lines, words at blanks", () => {
    const acl = aclOf({
      ...NO_LIMITS,
      commands: "ls *\n\n df -h \n",
      argv: "df  -h ...",
      usernames: "deploy, www-data",
      networks: "192.0.2.0/24 2001:db8::/32",
      maxTargets: "5",
      isReadOnly: true,
    });
    expect(acl).toEqual({
      commands: ["ls *", "df -h"],
      argv: [["df", "-h", "..."]],
      usernames: ["deploy", "www-data"],
      networks: ["192.0.2.0/24", "2001:db8::/32"],
      max_targets: 5,
      read_only: true,
    });
    expect(limitsOf(acl).join("; ")).toBe(
      "only reads; lines like ls *, df -h; programs like df -h ...; as deploy, www-data; from 192.0.2.0/24, 2001:db8::/32; at most 5 targets in a batch",
    );
  });

  test("an empty list allows nothing", () => {
    expect(limitsOf({ commands: [], servers: [] })).toEqual(["no lines", "no servers"]);
  });
});

test("a device is named in two words", () => {
  expect(deviceOf("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/140.0.0.0 Safari/537.36")).toBe("Chrome on Linux");
  expect(deviceOf("farhand/0.2.0")).toBe("farhand/0.2.0");
  expect(deviceOf("")).toBe("unknown client");
});
