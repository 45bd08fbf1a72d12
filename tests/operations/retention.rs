//! Retention (docs/contributing/retention.md): a cron trigger deletes old commands in bounded
//! steps. In these tests, the trigger fires when an instance starts. Commands are created through
//! the API, and then their times are moved into the past, in D1 and in the object of their server.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use farhand_domain::id;
use farhand_domain::time::Timestamp;
use farhand_tests::agents::{ScriptedAgent, credential, wait_until_connected};
use farhand_tests::client::encoded;
use farhand_tests::instance::{change_d1, change_objects};
use farhand_tests::{Api, Instance, Workspace, eventually, eventually_within, now};
use serde_json::{Value, json};
use tempfile::TempDir;

const PATH: &str = "/api/events/commands/";
const DAYS_VARIABLE: &str = "COMMAND_RETENTION_DAYS";
/// Occurs in the log line of each step.
const STEP_EVENT: &str = "\"event\":\"retention\"";
/// Occurs in the log line at the end of a retention pass.
const PASS_END_EVENT: &str = "\"event\":\"retention_over\"";

/// Returns the same time at each call.
fn days_ago(days: i64) -> Timestamp {
    static NOW: LazyLock<Timestamp> = LazyLock::new(now);
    NOW.plus_seconds(-days * 24 * 60 * 60)
}

/// The first characters of the ids of commands that were created some days ago.
fn id_prefix(days: i64) -> String {
    id::new(days_ago(days), [0; 10]).to_string()[..13].to_owned()
}

/// The id that a command has after [`age`] or [`set_created`].
fn aged(id: &str, days: i64) -> String {
    format!("{}{}", id_prefix(days), &id[13..])
}

fn single(id: &str) -> String {
    format!("{PATH}{id}/")
}

/// The lines of the Worker's log that contain a text.
fn log_lines(state: &Path, text: &str) -> Vec<String> {
    let log = std::fs::read_to_string(state.join("worker.log")).unwrap();
    log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
}

/// Restarts an instance and waits until its retention pass is complete. Returns the instance, and
/// how many commands were deleted.
async fn run_retention(state: &TempDir, days: &str) -> (Instance, u64) {
    let before = log_lines(state.path(), PASS_END_EVENT).len();
    let instance = Instance::restart_with(state.path(), &[(DAYS_VARIABLE, days)]).await;
    let line =
        eventually_within(Duration::from_secs(120), "the end of the retention pass", || async {
            log_lines(state.path(), PASS_END_EVENT).get(before).cloned()
        })
        .await;
    let line: Value = serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap();
    (instance, line["deleted"].as_u64().unwrap())
}

/// Moves the creation and the end of commands into the past, in D1 and in the objects. `lines` is
/// how their lines start. Returns the number of changed rows in D1.
fn age(state: &TempDir, lines: &str, days: i64) -> u64 {
    let at = days_ago(days);
    let change = format!(
        "UPDATE commands SET document = json_set(document, '$.life.handled_at', '{at}')
         WHERE document ->> '$.command.line' LIKE '{lines}%' AND document ->> '$.life.handled_at' IS NOT NULL"
    );
    change_objects(state.path(), "ServerLink", &change);
    age_in_d1(state, lines, days)
}

/// Like [`age`], but the objects keep the true end.
fn age_in_d1(state: &TempDir, lines: &str, days: i64) -> u64 {
    let at = days_ago(days);
    set_created(state, lines, days, "NOT NULL");
    let sql = format!(
        "UPDATE commands SET handled_at = '{at}' WHERE line LIKE '{lines}%' AND handled_at IS NOT NULL"
    );
    change_d1(state.path(), &sql)
}

/// Moves the creation of commands into the past, by changing their ids. Returns the number of
/// changed rows in D1.
fn set_created(state: &TempDir, lines: &str, days: i64, handled_at: &str) -> u64 {
    let (added, id) =
        (days_ago(days), |column: &str| format!("'{}' || substr({column}, 14)", id_prefix(days)));
    let which = format!(
        "document ->> '$.command.line' LIKE '{lines}%' AND document ->> '$.life.handled_at' IS {handled_at}"
    );
    for change in [
        format!(
            "UPDATE chunks SET command = {} WHERE command IN (SELECT id FROM commands WHERE {which})",
            id("command")
        ),
        format!(
            "UPDATE commands SET id = {0}, document = json_set(document, '$.command.id', {0}) WHERE {which}",
            id("id")
        ),
    ] {
        change_objects(state.path(), "ServerLink", &change);
    }
    let (id, which) = (id("id"), format!("line LIKE '{lines}%' AND handled_at IS {handled_at}"));
    change_d1(
        state.path(),
        &format!("UPDATE commands SET id = {id}, added_at = '{added}' WHERE {which}"),
    )
}

/// Runs a command with some output to its end, and returns its id.
async fn run_command(api: &Api, agent: &mut ScriptedAgent, server: &Value, line: &str) -> String {
    let id = start_command(api, agent, server, line).await;
    agent.chunk(&id, 0, "some output").await;
    agent.fin(&id, 0, "some output").await;
    id
}

/// Starts a command, leaves it running, and returns its id.
async fn start_command(api: &Api, agent: &mut ScriptedAgent, server: &Value, line: &str) -> String {
    let body = json!({"server": server["id"], "line": line, "username": "root"});
    let id = api.post(PATH, &body).await.expect(201)["id"].as_str().unwrap().to_owned();
    assert_eq!(agent.next_command().await["id"], id);
    agent.ack(&id).await;
    id
}

/// The ids in a list. Asserts that its count matches.
async fn listed_ids(api: &Api, query: &[(&str, String)]) -> BTreeSet<String> {
    let mut query = query.to_vec();
    query.push(("page_size", "100".to_owned()));
    let list = api.get(&format!("{PATH}?{}", encoded(&query))).await.expect(200);
    let ids: BTreeSet<_> = list["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(list["count"], ids.len(), "{query:?}");
    ids
}

/// Asserts that the counters and search tables in D1 match the commands in D1, and that objects
/// hold no other commands.
async fn assert_consistent(instance: &Instance) {
    const COUNTED: &str = "FROM commands c JOIN counted_commands n ON n.workspace_id = c.workspace_id WHERE c.seq <= n.up_to";
    let sql = format!("SELECT
        (SELECT count(*) FROM command_counts WHERE total <= 0) AS empty_counts,
        (SELECT count(*) FROM command_servers n WHERE NOT EXISTS (SELECT 1 FROM commands c
            WHERE c.workspace_id = n.workspace_id AND c.server_id = n.server_id)) AS empty_servers,
        (SELECT count(*) FROM command_requesters q WHERE NOT EXISTS (SELECT 1 FROM commands c
            WHERE c.workspace_id = q.workspace_id AND c.server_id = q.server_id)
            OR NOT EXISTS (SELECT 1 FROM users u WHERE u.workspace_id = q.workspace_id AND u.id = q.user_id)) AS requesters,
        (SELECT count(*) FROM commands c WHERE c.requested_by IS NOT NULL AND NOT EXISTS (SELECT 1 FROM command_requesters q
            WHERE q.workspace_id = c.workspace_id AND q.user_id = c.requested_by AND q.server_id = c.server_id)) AS unnoted,
        (SELECT count(*) FROM deleted_servers_with_commands d WHERE NOT EXISTS (SELECT 1 FROM commands c
            WHERE c.workspace_id = d.workspace_id AND c.server_id = d.id)) AS deleted,
        (SELECT coalesce(sum(total), 0) FROM counted_commands) - (SELECT count(*) {COUNTED}) AS counted,
        (SELECT coalesce(sum(total), 0) FROM command_counts WHERE kind = 'requester')
            - (SELECT count(*) {COUNTED} AND c.requested_by IS NOT NULL) AS by_requester,
        (SELECT coalesce(sum(total), 0) FROM command_counts WHERE kind = 'server') - (SELECT count(*) {COUNTED}) AS by_server,
        (SELECT count(*) FROM command_texts WHERE command_texts MATCH 'line:\"old\"') - (SELECT count(*) FROM commands
            WHERE line LIKE '%old%') AS found,
        (SELECT json_group_array(id) FROM commands) AS ids");
    let row = instance.d1(&sql)[0].clone();
    for (name, value) in row.as_object().unwrap().iter().filter(|(name, _)| *name != "ids") {
        assert!(value.is_null() || *value == json!(0), "{name}: {row}");
    }
    let there: BTreeSet<String> = serde_json::from_str(row["ids"].as_str().unwrap()).unwrap();
    for column in ["id FROM commands", "command FROM chunks", "command FROM answers"] {
        for id in instance.read_objects("ServerLink", &format!("SELECT DISTINCT {column}")) {
            assert!(there.contains(&id), "{column} {id}");
        }
    }
}

/// How many objects of servers hold data.
fn used_objects(instance: &Instance) -> usize {
    instance
        .read_objects("ServerLink", "SELECT name FROM sqlite_master WHERE name = 'server'")
        .len()
}

#[tokio::test]
async fn old_batches_are_deleted_after_their_commands() {
    const BATCHES: &str = "/api/events/batches/";
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let boss = workspace.admin.clone();
    let (online, _) = (workspace.server("online").await, workspace.server("offline").await);
    let mut agent = ScriptedAgent::connect(&workspace, &online).await;
    wait_until_connected(&workspace, online["id"].as_str().unwrap(), true).await;
    for (server, name) in
        [("offline", "old"), ("online", "old"), ("online", "has commands"), ("offline", "young")]
    {
        let body = json!({"name": name, "line": name, "targets": {"servers": [server]}, "username": "root"});
        let batch = boss.post(BATCHES, &body).await.expect(201);
        if server == "online" {
            let id = agent.next_command().await["id"].as_str().unwrap().to_owned();
            agent.ack(&id).await;
            // All output arrives. Otherwise the hash of the output would follow after ten seconds,
            // and a command with news for D1 is kept until the next pass.
            agent.chunk(&id, 0, "done").await;
            agent.fin(&id, 0, "done").await;
        }
        let path = format!("{BATCHES}{}/", batch["id"].as_str().unwrap());
        eventually("the end of the batch", || async {
            let batch = boss.get(&path).await.expect(200);
            (batch["state"] == "finished").then_some(())
        })
        .await;
    }
    instance.stop_when_d1_is_current().await;
    assert_eq!(age(&state, "old", 31), 1);
    let at = days_ago(31);
    let sql =
        format!("UPDATE batches SET added_at = '{at}', finished_at = '{at}' WHERE name <> 'young'");
    assert_eq!(change_d1(state.path(), &sql), 3);

    let (instance, deleted) = run_retention(&state, "30").await;
    assert_eq!(deleted, 1, "{:#?}", log_lines(state.path(), "\"event\":"));
    let left = boss.with_url(&instance.url).get(BATCHES).await.expect(200);
    let left: BTreeSet<String> = left["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|batch| batch["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(left, BTreeSet::from(["has commands".to_owned(), "young".to_owned()]));
    let targets = instance.d1("SELECT count(*) AS count FROM batch_targets");
    assert_eq!(targets[0]["count"], 2);
}

#[tokio::test]
async fn old_commands_are_deleted_everywhere_and_no_others() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let other = Workspace::create_with(&instance.operator(), "other").await;
    let (boss, anna) = (workspace.admin.clone(), workspace.staff("anna").await);
    let mut servers = Vec::new();
    for name in ["web-1", "web-2", "half-gone", "gone"] {
        let server = workspace.server(name).await;
        let agent = ScriptedAgent::connect(&workspace, &server).await;
        servers.push((server, agent));
    }
    let [(one, on_one), (two, on_two), (half, on_half), (gone, on_gone)] = &mut servers[..] else {
        unreachable!()
    };
    let (mut old, mut young) = (BTreeSet::new(), BTreeSet::new());
    let is_old = |id: String| aged(&id, 31);
    let is_young = |id: String| aged(&id, 29);
    old.insert(is_old(run_command(&boss, on_one, one, "old boss").await));
    old.insert(is_old(run_command(&boss, on_one, one, "old with much output").await));
    old.insert(is_old(run_command(&anna, on_one, one, "old anna").await));
    old.insert(is_old(run_command(&anna, on_two, two, "old anna").await));
    old.insert(is_old(run_command(&boss, on_half, half, "old half").await));
    old.insert(is_old(run_command(&anna, on_gone, gone, "old gone").await));
    young.insert(is_young(run_command(&boss, on_one, one, "young boss").await));
    young.insert(is_young(run_command(&boss, on_two, two, "young boss").await));
    young.insert(is_young(run_command(&anna, on_half, half, "young half").await));
    // Created long ago, but ended just now.
    young.insert(aged(&run_command(&boss, on_one, one, "created long ago").await, 90));
    // D1 has an old end for this command, and the object has the true one.
    young.insert(is_old(run_command(&boss, on_one, one, "object knows better").await));
    // Running or waiting since long ago.
    let running = aged(&start_command(&anna, on_one, one, "old but running").await, 90);
    young.insert(running.clone());
    let later =
        json!({"server": one["id"], "line": "old but waiting", "scheduled_at": days_ago(-100)});
    young.insert(aged(boss.post(PATH, &later).await.expect(201)["id"].as_str().unwrap(), 90));
    let cancelled =
        json!({"server": one["id"], "line": "old cancelled", "scheduled_at": days_ago(-100)});
    let cancelled =
        boss.post(PATH, &cancelled).await.expect(201)["id"].as_str().unwrap().to_owned();
    boss.delete(&single(&cancelled)).await.expect(204);
    old.insert(is_old(cancelled));
    let elsewhere = other.server("web-1").await;
    let mut on_elsewhere = ScriptedAgent::connect(&other, &elsewhere).await;
    let others_old =
        is_old(run_command(&other.admin, &mut on_elsewhere, &elsewhere, "old boss").await);
    let others_young =
        is_young(run_command(&other.admin, &mut on_elsewhere, &elsewhere, "young boss").await);
    for server in [&*half, &*gone] {
        boss.delete(&format!("/api/servers/servers/{}/", server["id"].as_str().unwrap()))
            .await
            .expect(204);
    }
    let (one, two, half) = (one.clone(), two.clone(), half.clone());
    drop(servers);
    instance.stop_when_d1_is_current().await;
    assert_eq!(age(&state, "old", 31), 8);
    assert_eq!(age(&state, "young", 29), 4);
    assert_eq!(age_in_d1(&state, "object", 31), 1);
    assert_eq!(set_created(&state, "old but", 90, "NULL"), 2);
    assert_eq!(set_created(&state, "created", 90, "NOT NULL"), 1);
    // More output than one step deletes.
    let output = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
        INSERT INTO chunks (command, first, piece, next, bytes, kept, lengths, content)
        SELECT c.id, n.i, 0, n.i + 1, 1, 1, '1', 'x' FROM commands c CROSS JOIN n WHERE c.document ->> '$.command.line' = 'old with much output'";
    assert_eq!(change_objects(state.path(), "ServerLink", output), 20_000);

    let (instance, deleted) = run_retention(&state, "30").await;
    assert_eq!(deleted, 8);
    let (boss, anna) = (boss.with_url(&instance.url), anna.with_url(&instance.url));
    let all = listed_ids(&boss, &[]).await;
    assert_eq!(all, young);
    assert_consistent(&instance).await;
    // Five servers had commands. One of them was deleted and has no commands left, so its object
    // is empty.
    assert_eq!(used_objects(&instance), 4);
    let deleted = instance.d1("SELECT id FROM deleted_servers_with_commands");
    assert_eq!(deleted, json!([{"id": half["id"]}]));
    // Filters and the search still find the remaining commands.
    let mut shown = Vec::new();
    for id in &all {
        shown.push(boss.get(&single(id)).await.expect(200));
    }
    let of = |matches: &dyn Fn(&Value) -> bool| -> BTreeSet<String> {
        shown
            .iter()
            .filter(|item| matches(item))
            .map(|item| item["id"].as_str().unwrap().to_owned())
            .collect()
    };
    for (name, value) in [
        ("server", &one["id"]),
        ("server", &two["id"]),
        ("server", &half["id"]),
        ("server", &deleted[0]["id"]),
        ("shell", &json!("system")),
        ("shell", &json!("internal")),
    ] {
        let expected = of(&|item| item[name] == *value);
        assert_eq!(
            listed_ids(&boss, &[(name, value.as_str().unwrap().to_owned())]).await,
            expected,
            "{name} {value}"
        );
    }
    for id in [1, 2, 3] {
        let expected = of(&|item| item["requested_by"]["id"] == id);
        assert_eq!(listed_ids(&boss, &[("requested_by", id.to_string())]).await, expected);
    }
    for (name, value, expected) in [
        ("requested_by_isnull", "true", of(&|_| false)),
        ("requested_by_isnull", "false", of(&|_| true)),
        ("is_scheduled", "true", of(&|item| item["line"] == "old but waiting")),
        ("search", "old", of(&|item| item["line"].as_str().unwrap().contains("old"))),
        ("search", "young", of(&|item| item["line"].as_str().unwrap().contains("young"))),
        ("search", "much", of(&|_| false)),
        ("search", "web-2", of(&|item| item["server_name"] == "web-2")),
        ("ordering", "handled_at", of(&|_| true)),
    ] {
        assert_eq!(
            listed_ids(&boss, &[(name, value.to_owned())]).await,
            expected,
            "{name}={value}"
        );
    }
    assert_eq!(listed_ids(&anna, &[]).await, young);
    for id in &old {
        for (method, path) in [
            ("GET", single(id)),
            ("GET", format!("{}chunks/", single(id))),
            ("GET", format!("{}stream/", single(id))),
            ("POST", format!("{}cancel/", single(id))),
            ("POST", format!("{}kill/", single(id))),
            ("DELETE", single(id)),
        ] {
            boss.call(method, &path).await.expect_detail(404, Some("COMMAND_NOT_FOUND"));
        }
    }
    let others = other.admin.with_url(&instance.url);
    assert_eq!(listed_ids(&others, &[]).await, BTreeSet::from([others_young]));
    others.get(&single(&others_old)).await.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    // Remaining commands have their output. The running command and its server still work.
    for id in young
        .iter()
        .filter(|id| **id != running && of(&|item| item["output_bytes"] != 0).contains(*id))
    {
        assert_eq!(boss.get(&format!("{}chunks/", single(id))).await.expect(200)["count"], 1);
    }
    let api = workspace.anonymous.with_url(&instance.url).with_authorization(&credential(&one));
    let mut agent = ScriptedAgent::connect_to(&api, "/ws/servers/backhaul/").await;
    agent.fin(&running, 0, "done").await;
    assert_eq!(boss.get(&single(&running)).await.expect(200)["result"], "done");
    // This id is older than the server, so a report about it returns 404 and stores nothing.
    let is_gone = old.first().unwrap();
    agent.report(is_gone, "fin", Some(&json!({"success": true}))).await.expect_detail(404, None);
    boss.get(&single(is_gone)).await.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    run_command(&boss, &mut agent, &one, "old but new").await;

    // The object of a deleted server is empty after the deletion of its last command.
    instance.stop_when_d1_is_current().await;
    age(&state, "young half", 31);
    let (instance, deleted) = run_retention(&state, "30").await;
    assert_eq!(deleted, 1);
    assert_eq!(used_objects(&instance), 3);
    assert_eq!(instance.d1("SELECT id FROM deleted_servers_with_commands"), json!([]));
    assert_consistent(&instance).await;
}

#[tokio::test]
async fn commands_are_kept_for_the_configured_days() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let id = aged(&run_command(&workspace.admin, &mut agent, &server, "old").await, 400);
    instance.stop_when_d1_is_current().await;
    assert_eq!(age(&state, "old", 400), 1);
    for (setting, expected_warnings) in
        [("0", 0), ("", 0), ("a year", 1), ("1", 2), ("-365", 3), ("401", 3)]
    {
        let (instance, deleted) = run_retention(&state, setting).await;
        assert_eq!(deleted, 0, "{setting:?}");
        workspace.admin.with_url(&instance.url).get(&single(&id)).await.expect(200);
        let warnings_logged = || log_lines(state.path(), "COMMAND_RETENTION_DAYS is neither").len();
        eventually("the warning in the log", || async {
            (warnings_logged() == expected_warnings).then_some(())
        })
        .await;
        instance.stop().await;
    }
    let (instance, deleted) = run_retention(&state, "365").await;
    assert_eq!(deleted, 1);
    workspace
        .admin
        .with_url(&instance.url)
        .get(&single(&id))
        .await
        .expect_detail(404, Some("COMMAND_NOT_FOUND"));
    // Callers cannot use the runtime's own endpoints to fire the cron trigger.
    for path in ["/cdn-cgi/handler/scheduled", "/cdn-cgi/mf/scheduled"] {
        for host in [&workspace.anonymous.host, "127.0.0.1", "localhost"] {
            let reply = workspace.anonymous.with_url(&instance.url).with_host(host).get(path).await;
            assert!(
                [308, 403, 404].contains(&reply.status),
                "{path} of {host}: {} {}",
                reply.status,
                reply.text
            );
        }
    }
}

/// SQL that inserts commands of a server, which ended some days ago. Their objects do not have
/// them.
fn insert_commands_sql(workspace: &str, server: &str, range: (u32, u32), days: i64) -> String {
    let (from, to) = range;
    let (at, id_start) = (days_ago(days), id_prefix(days));
    format!(
        "WITH RECURSIVE n (i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i < {to})
         INSERT INTO commands (seq, workspace_id, id, server_id, server_name, requested_by, shell, line, username, groupname, timeout,
            added_at, scheduled_at, expires_at, delivered_at, acked_at, handled_at, state, status_message, success)
         SELECT (w.id << 40) + 1000 + i, w.id, printf('{id_start}-7000-%04x-%012x', 32768 + w.id, i), {server}, 'web', u.id, 'system', 'uptime ' || i, 'root', '',
            60, '{at}', '{at}', '{at}', '{at}', '{at}', '{at}', 'success', '', 1
         FROM workspaces w JOIN users u ON u.workspace_id = w.id CROSS JOIN n WHERE w.slug = '{workspace}';"
    )
}

#[tokio::test]
async fn a_step_costs_the_same_in_small_and_large_workspaces() {
    let (instance, state) = Instance::new().await;
    let small = Workspace::create_with(&instance.operator(), "small").await;
    let large = Workspace::create_with(&instance.operator(), "large").await;
    instance.stop().await;
    // As many commands on one server as on many servers. Many servers are the most expensive case
    // for a step.
    let one = "'00000000-0000-7000-8000-000000000001'";
    let each = "printf('%08x-0000-7000-9000-%012x', i, w.id)";
    change_d1(state.path(), &insert_commands_sql("small", one, (1, 130), 40));
    change_d1(state.path(), &insert_commands_sql("small", one, (131, 140), 1));
    change_d1(state.path(), &insert_commands_sql("large", one, (1, 130), 40));
    change_d1(state.path(), &insert_commands_sql("large", each, (131, 250), 40));
    change_d1(state.path(), &insert_commands_sql("large", one, (251, 30_000), 1));
    let before = log_lines(state.path(), STEP_EVENT).len();
    let (instance, deleted) = run_retention(&state, "30").await;
    assert_eq!(deleted, 130 + 250);
    for (workspace, left) in [(&small, 10), (&large, 29_750)] {
        let list = workspace.admin.with_url(&instance.url).get(PATH).await.expect(200);
        assert_eq!(list["count"], left);
    }
    assert_consistent(&instance).await;
    let steps: Vec<Value> = log_lines(state.path(), STEP_EVENT)[before..]
        .iter()
        .map(|line| serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap())
        .collect();
    let of = |name: &str| -> Vec<u64> {
        steps.iter().map(|step| step[name].as_u64().unwrap()).collect()
    };
    assert_eq!(of("deleted"), [100, 30, 100, 100, 50]);
    assert_eq!(of("found"), of("deleted"));
    assert_eq!(of("d1_calls"), [2; 5]);
    for ((deleted, read), written) in
        of("deleted").into_iter().zip(of("rows_read")).zip(of("rows_written"))
    {
        assert!(read <= 40 * deleted + 50, "{read} rows read for {deleted} commands");
        assert!(written <= 6 * deleted + 10, "{written} rows written for {deleted} commands");
    }
    // If all commands are of one server, each costs two rows: itself and its entry in the search
    // index.
    for (deleted, written) in of("deleted").into_iter().zip(of("rows_written")).take(3) {
        assert!(
            written <= 2 * deleted + 10,
            "{written} rows written for {deleted} commands of one server"
        );
    }
}

#[tokio::test]
async fn an_interrupted_retention_pass_continues() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    for _ in 0..3 {
        run_command(&workspace.admin, &mut agent, &server, "old").await;
    }
    let kept = run_command(&workspace.admin, &mut agent, &server, "young").await;
    instance.stop_when_d1_is_current().await;
    assert_eq!(age(&state, "old", 31), 3);
    // Interrupted between object and D1: the object has deleted the commands, and D1 rejects the
    // deletion.
    change_d1(
        state.path(),
        "CREATE TRIGGER fails BEFORE DELETE ON commands BEGIN SELECT raise(ABORT, 'broken'); END",
    );
    let instance = Instance::restart_with(state.path(), &[(DAYS_VARIABLE, "30")]).await;
    eventually("the object to forget", || async {
        (instance.read_objects("ServerLink", "SELECT id FROM commands") == [kept.clone()])
            .then_some(())
    })
    .await;
    assert_eq!(listed_ids(&workspace.admin.with_url(&instance.url), &[]).await.len(), 4);
    instance.kill().await;
    change_d1(state.path(), "DROP TRIGGER fails");
    let (instance, deleted) = run_retention(&state, "30").await;
    assert_eq!(deleted, 3);
    assert_eq!(
        listed_ids(&workspace.admin.with_url(&instance.url), &[]).await,
        BTreeSet::from([kept.clone()])
    );
    assert_consistent(&instance).await;
    // Interrupted at any point of many steps.
    instance.stop().await;
    change_d1(
        state.path(),
        &insert_commands_sql(
            "acme",
            "printf('%08x-0000-7000-9000-%012x', i % 7, w.id)",
            (1, 3_000),
            40,
        ),
    );
    for steps in [1, 3, 9] {
        let before = log_lines(state.path(), STEP_EVENT).len();
        let instance = Instance::restart_with(state.path(), &[(DAYS_VARIABLE, "30")]).await;
        eventually("some steps", || async {
            (log_lines(state.path(), STEP_EVENT).len() >= before + steps).then_some(())
        })
        .await;
        instance.kill().await;
    }
    let (instance, _) = run_retention(&state, "30").await;
    assert_eq!(
        listed_ids(&workspace.admin.with_url(&instance.url), &[]).await,
        BTreeSet::from([kept])
    );
    assert_consistent(&instance).await;
}

#[tokio::test]
async fn a_failing_object_does_not_block_others() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    for name in ["broken", "whole"] {
        let server = workspace.server(name).await;
        let mut agent = ScriptedAgent::connect(&workspace, &server).await;
        run_command(&workspace.admin, &mut agent, &server, &format!("old {name}")).await;
    }
    instance.stop_when_d1_is_current().await;
    age(&state, "old broken", 41);
    age(&state, "old whole", 40);
    // This trigger makes the object reject the deletion.
    let fails =
        "CREATE TRIGGER fails BEFORE DELETE ON commands WHEN old.document ->> '$.command.line' = 'old broken' BEGIN
        SELECT raise(ABORT, 'broken'); END";
    change_objects(state.path(), "ServerLink", fails);
    let (instance, deleted) = run_retention(&state, "30").await;
    assert_eq!(deleted, 1);
    let left = workspace.admin.with_url(&instance.url).get(PATH).await.expect(200);
    assert_eq!((&left["count"], &left["results"][0]["line"]), (&json!(1), &json!("old broken")));
    instance.stop().await;
    change_objects(state.path(), "ServerLink", "DROP TRIGGER fails");
    let (instance, deleted) = run_retention(&state, "30").await;
    assert_eq!(deleted, 1);
    assert_consistent(&instance).await;
}

#[tokio::test]
async fn late_reports_of_possibly_deleted_commands_are_accepted() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let mut server = workspace.server("web-1").await;
    instance.stop().await;
    // A server that was created before its commands.
    let made = |days: i64| id::new(days_ago(days), [7; 10]).to_string();
    let old = made(20);
    assert_eq!(change_d1(state.path(), &format!("UPDATE servers SET id = '{old}'")), 1);
    server["id"] = json!(old);
    let instance = Instance::restart(state.path()).await;
    let api = workspace.anonymous.with_url(&instance.url).with_authorization(&credential(&server));
    let agent = ScriptedAgent::connect_to(&api, "/ws/servers/backhaul/").await;
    let fin = json!({"success": true, "result": "", "exit_code": 0});
    let chunk = json!({"seq": 0, "content": "x"});
    for (days, expected) in [(3, 204), (19, 204), (1, 404), (21, 404)] {
        let command = made(days);
        for (kind, body) in [("ack", None), ("chunk", Some(&chunk)), ("fin", Some(&fin))] {
            let reply = agent.report(&command, kind, body).await;
            assert_eq!(
                reply.status, expected,
                "{kind} of a command {days} days old: {}",
                reply.text
            );
        }
        let shown = workspace.admin.with_url(&instance.url).get(&single(&command)).await;
        shown.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    }
    assert!(instance.read_objects("ServerLink", "SELECT id FROM commands").is_empty());
    assert!(instance.read_objects("ServerLink", "SELECT command FROM chunks").is_empty());
}

/// Rows are kept for a day, and as long as their user has a waiting command. Commands of the
/// session may still need them.
#[tokio::test]
async fn revoked_sessions_are_deleted_after_a_day() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    workspace.server("web-1").await;
    let (anna, bob) = (workspace.staff("anna").await, workspace.staff("bob").await);
    let queued = json!({"server": "web-1", "line": "id", "on_offline": "queue"});
    bob.post(PATH, &queued).await.expect(201);
    anna.delete(&single(anna.post(PATH, &queued).await.expect(201)["id"].as_str().unwrap()))
        .await
        .expect(204);
    let insert = |id: &str, user: &str, at: Timestamp| {
        format!(
            "INSERT INTO revoked_sessions (workspace_id, id, user_id, revoked_at, is_settled)
             SELECT workspace_id, '{id}', id, '{at}', 1 FROM users WHERE username = '{user}'"
        )
    };
    for sql in [
        insert("old", "anna", days_ago(1)),
        insert("young", "anna", now().plus_seconds(-23 * 3_600)),
        insert("needed", "bob", days_ago(100)),
    ] {
        instance.d1(&sql);
    }
    instance.stop().await;
    let (instance, _) = run_retention(&state, "0").await;
    // The previous instance may have started this pass.
    eventually("the cron trigger to delete old rows", || async {
        let left = instance.read_d1("SELECT id FROM revoked_sessions ORDER BY id");
        assert!(
            ["needed", "young"].iter().all(|id| left.iter().any(|left| left == id)),
            "{left:?}"
        );
        (left.len() == 2).then_some(())
    })
    .await;
}
