//! Backup and restore (docs/operations.md). `npm run export` writes SQL that recreates the service
//! in an empty cell. After D1 was restored to an earlier time, a resync adds the missing commands
//! from the objects.

use std::path::Path;

use farhand_tests::agents::{ScriptedAgent, credential, dial};
use farhand_tests::people::{BATCHES, Person, item_path};
use farhand_tests::{Api, Instance, Workspace, eventually, now};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const COMMANDS: &str = "/api/events/commands/";
const BACKHAUL: &str = "/ws/servers/backhaul/";
/// The lists that are compared before and after.
const COMPARED_LISTS: &[&str] = &[
    "/api/iam/users/",
    "/api/iam/groups/",
    "/api/iam/memberships/",
    "/api/servers/",
    "/api/servers/registration-tokens/",
    "/api/auth/tokens/",
    "/api/events/commands/",
    "/api/events/commands/?search=backup",
    "/api/events/commands/?requested_by_isnull=true",
    "/api/events/commands/?is_scheduled=true",
    "/api/events/commands/?ordering=handled_at",
    BATCHES,
];
/// Tables that triggers maintain and an export leaves out. Counters are not here: comparing the
/// lists compares their counts.
const TRIGGER_TABLES_SQL: &[&str] = &[
    "SELECT workspace_id, server_id, name FROM command_servers ORDER BY workspace_id, server_id, name",
    "SELECT * FROM command_requesters ORDER BY workspace_id, user_id, server_id",
    "SELECT * FROM batch_counts ORDER BY workspace_id, batch_id",
];

pub async fn export(state: &Path, file: &Path) {
    let options = ["--local", "--persist-to", state.to_str().unwrap()];
    let mut command = Command::new("node");
    command.arg("scripts/export.mjs").arg(file).args(options).current_dir(ROOT);
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The SQL in `docs/operations.md` in the fence with this name.
fn documented_sql(name: &str) -> &'static str {
    let fence = format!("```sql {name}\n");
    let (_, rest) = include_str!("../../docs/operations.md").split_once(&fence).unwrap();
    rest.split_once("```").unwrap().0
}

async fn read_lists(api: &Api) -> Vec<Value> {
    let mut all = Vec::new();
    for list in COMPARED_LISTS {
        let and = if list.contains('?') { '&' } else { '?' };
        let mut page = api.get(&format!("{list}{and}page_size=100")).await.expect(200);
        // Links to pages contain the port, and `last_used_at` depends on the time.
        page["next"].take();
        for item in page["results"].as_array_mut().unwrap() {
            item["last_used_at"].take();
        }
        all.push(page);
    }
    all
}

async fn read_trigger_tables(instance: &Instance) -> Vec<Value> {
    let mut all = Vec::new();
    for sql in TRIGGER_TABLES_SQL {
        all.push(instance.d1(sql));
    }
    all
}

/// How many bytes the workspace `acme` has stored in 24 hours, output included.
async fn stored_bytes(instance: &Instance) -> i64 {
    farhand_tests::commands::stored_bytes(instance, "acme")
        + farhand_tests::commands::output_bytes(instance, "acme")
}

/// Replaces a folder by a copy of another one.
pub fn replace_folder(from: &Path, to: &Path) {
    std::fs::remove_dir_all(to).ok();
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A workspace with its clients directed to another instance.
fn workspace_on(instance: &Instance, workspace: &Workspace) -> Workspace {
    Workspace {
        slug: workspace.slug.clone(),
        anonymous: workspace.anonymous.with_url(&instance.url),
        admin: workspace.admin.with_url(&instance.url),
        login_token: workspace.login_token.clone(),
    }
}

/// A schedule that is later than any test.
fn next_year() -> String {
    now().plus_seconds(365 * 24 * 60 * 60).to_string()
}

async fn run(api: &Api, line: &str, more: Value) -> Value {
    let mut body = json!({"server": "web-1", "line": line});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    api.post(COMMANDS, &body).await.expect(201)
}

#[tokio::test]
async fn an_export_recreates_the_service_in_an_empty_cell() {
    let (instance, folder) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    Workspace::create_with(&instance.operator(), "other").await;
    let server = workspace.server("web-1").await;
    let alice = Person::staff(&workspace, "alice").await;
    let leaving = Person::staff(&workspace, "leaving").await;
    let group = workspace.group("operators", &[&server]).await;
    workspace.add_member(&group, &Person::new(&workspace, "bob").await, "manager").await;
    let body = json!({"name": "rack-1", "groups": [group["id"]], "expires_at": null, "uses": 3});
    workspace.admin.post("/api/servers/registration-tokens/", &body).await.expect(201);

    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    // Texts that exceed one statement, or contain characters that SQL quotes, cuts or splits at.
    let results = [
        "plain",
        "it's -- a; \"quote\"\n\nand\0more\u{1f980}",
        &"\u{1f980}ü'\0;\n".repeat(20_000),
        &"x".repeat(300_000),
    ];
    for (number, result) in results.iter().enumerate() {
        let requester = if number == 0 { &leaving.api } else { &alice.api };
        let command = run(requester, &format!("backup '{number}' \u{e4}; --"), json!({})).await;
        let path = format!("{COMMANDS}{}/", command["id"].as_str().unwrap());
        assert_eq!(agent.next_command().await["id"], command["id"]);
        let fin = json!({"success": true, "result": result, "elapsed_time": 0.5});
        agent.api.post(&format!("{path}fin/"), &fin).await.expect(204);
    }
    workspace.admin.delete(&leaving.path()).await.expect(204);
    let sent = run(&alice.api, "backup of what is sent", json!({})).await;
    agent.next_command().await;
    // Without an ack, the command would be stuck after a minute, and this machine may be slow.
    agent
        .api
        .post(&format!("{COMMANDS}{}/ack/", sent["id"].as_str().unwrap()), &json!({}))
        .await
        .expect(204);
    let planned =
        run(&alice.api, "backup of what is planned", json!({"scheduled_at": next_year()})).await;
    // One open batch has a command, the other one waits for the agent.
    let batch =
        json!({"targets": {"all": true}, "line": "backup of a batch", "on_offline": "queue"});
    workspace.admin.post(BATCHES, &batch).await.expect(201);
    let order = agent.next_command().await;
    agent.ack(order["id"].as_str().unwrap()).await;
    drop(agent);
    eventually("the closed connection, and the end of the user's deletion", || async {
        let is_detached = instance.d1("SELECT count(*) AS n FROM deleted_users")[0]["n"] == 0;
        let server = workspace.admin.get("/api/servers/").await.expect(200);
        (is_detached && server["results"][0]["is_connected"] == false).then_some(())
    })
    .await;
    let waiting = workspace.admin.post(BATCHES, &batch).await.expect(201);
    eventually("the batch to wait", || async {
        let batch = workspace.admin.get(&item_path(BATCHES, &waiting)).await.expect(200);
        (batch["counts"]["queued"] == 1).then_some(())
    })
    .await;
    instance.wait_until_d1_is_current().await;
    let (before, kept) = (read_lists(&workspace.admin).await, read_trigger_tables(&instance).await);
    instance.stop_when_d1_is_current().await;

    let files = TempDir::new().unwrap();
    let file = files.path().join("export.sql");
    export(folder.path(), &file).await;
    let sql = std::fs::read_to_string(&file).unwrap();
    assert!(
        sql.lines().all(|line| line.len() < 100_000),
        "D1 accepts statements of at most 100 KB"
    );

    let (cell, _state) = Instance::new().await;
    cell.wait_until_first_pass_is_over().await;
    cell.d1_through_wrangler(&sql).await;
    let here = |api: &Api| api.with_url(&cell.url);
    let (admin, alice) = (here(&workspace.admin), here(&alice.api));
    for ((list, found), expected) in
        COMPARED_LISTS.iter().zip(read_lists(&admin).await).zip(&before)
    {
        assert_eq!(&found, expected, "{list}");
    }
    assert_eq!(read_trigger_tables(&cell).await, kept);
    // Login tokens are valid, although the KV of the new cell is empty.
    alice.get("/api/status/").await.expect(200);

    // The documented statement ends commands that had not ended.
    cell.d1_through_wrangler(documented_sql("end")).await;
    for (command, text) in [(&sent, "Stuck"), (&planned, "Cancelled")] {
        let found =
            admin.get(&format!("{COMMANDS}{}/", command["id"].as_str().unwrap())).await.expect(200);
        assert_eq!((&found["status"]["text"], &found["success"]), (&json!(text), &json!(false)));
        assert!(found["handled_at"].is_string(), "{found}");
    }
    // The audit log is complete, and its chain is sealed again.
    let events =
        admin.get("/api/audit/events/?page_size=1").await.expect(200)["count"].as_u64().unwrap();
    eventually("the seals", || async {
        // Every new audit event makes the sealer run.
        run(&alice, "backup has a chain", json!({"on_offline": "queue"})).await;
        let found = admin.post("/api/audit/verify/", &json!({})).await.expect(200);
        assert_eq!(found["valid"], true, "{found}");
        (found["links"].as_u64().unwrap() > events).then_some(())
    })
    .await;
    // The new cell works: agents connect with their keys, commands run, and new users get new ids.
    let agent = here(&workspace.anonymous.with_authorization(&credential(&server)));
    let mut agent = ScriptedAgent::connect_to(&agent, BACKHAUL).await;
    let new = run(&alice, "backup goes on", json!({})).await;
    while agent.next_command().await["id"] != new["id"] {}
    let highest = before[0]["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|user| user["id"].as_i64().unwrap())
        .max();
    let body = json!({"username": "carol", "email": "carol@example.com", "password": "correct horse battery"});
    let carol = admin.post("/api/iam/users/", &body).await.expect(201);
    // The id of the deleted user is not used again either.
    assert!(carol["id"].as_i64() > highest.map(|id| id.max(leaving.id)), "{carol}");
}

#[tokio::test]
async fn a_resync_restores_lost_commands_to_an_older_database() {
    let (instance, folder) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let (server, other) = (workspace.server("web-1").await, workspace.server("web-2").await);
    let gone = workspace.server("web-3").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let path = |command: &Value| format!("{COMMANDS}{}/", command["id"].as_str().unwrap());
    let end = async |agent: &ScriptedAgent, command: &Value, result: &str| {
        let fin = json!({"success": true, "result": result, "elapsed_time": 0.5});
        agent.api.post(&format!("{}fin/", path(command)), &fin).await.expect(204);
    };
    let ended = run(&workspace.admin, "ended before", json!({})).await;
    agent.next_command().await;
    end(&agent, &ended, "early").await;
    let under_way = run(&workspace.admin, "under way then", json!({})).await;
    agent.next_command().await;
    instance.wait_until_d1_is_current().await;
    let stored_then = stored_bytes(&instance).await;
    instance.stop_when_d1_is_current().await;
    let (d1, copied) =
        (folder.path().join("v3/d1/miniflare-D1DatabaseObject"), TempDir::new().unwrap());
    replace_folder(&d1, copied.path());

    // Changes after the time to which D1 is restored.
    let instance = Instance::restart(folder.path()).await;
    let here = |api: &Api| api.with_url(&instance.url);
    let admin = here(&workspace.admin);
    let mut agent = ScriptedAgent::connect_to(&here(&agent.api), BACKHAUL).await;
    end(&agent, &under_way, "late").await;
    let later = run(&admin, "ended after", json!({})).await;
    agent.next_command().await;
    end(&agent, &later, &"x".repeat(20_000)).await;
    for line in ["planned", "planned, and cancelled"] {
        run(&admin, line, json!({"scheduled_at": next_year()})).await;
    }
    run(&admin, "queued", json!({"server": "web-2", "on_offline": "queue"})).await;
    run(&admin, "queued", json!({"server": "web-3", "on_offline": "queue"})).await;
    let delete = format!("/api/servers/servers/{}/", gone["id"].as_str().unwrap());
    admin.delete(&delete).await.expect(204);
    let late = Person::new(&workspace_on(&instance, &workspace), "late").await;
    let rotate = format!("/api/servers/servers/{}/rotate-key/", other["id"].as_str().unwrap());
    let new_key = admin.post(&rotate, &json!({"now": true})).await.expect(200);
    drop(agent);
    eventually("the end of the connection", || async {
        let list = admin.get("/api/servers/").await.expect(200);
        list["results"]
            .as_array()
            .unwrap()
            .iter()
            .all(|server| server["is_connected"] == false)
            .then_some(())
    })
    .await;
    // The list may show the end of a command a second after the agent's report was accepted.
    instance.wait_until_d1_is_current().await;
    let before = admin.get(&format!("{COMMANDS}?page_size=100")).await.expect(200);
    assert_eq!(before["count"], 7);
    let kept = read_trigger_tables(&instance).await;
    instance.stop_when_d1_is_current().await;
    replace_folder(copied.path(), &d1);

    let instance = Instance::restart(folder.path()).await;
    let here = |api: &Api| api.with_url(&instance.url);
    let admin = here(&workspace.admin);
    assert_eq!(admin.get(COMMANDS).await.expect(200)["count"], 2);
    admin.get(&path(&later)).await.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    let operator = instance.operator();
    instance.d1_through_wrangler(documented_sql("numbers")).await;
    operator.post("/operator/workspaces/nobody/resync/", &json!({})).await.expect_detail(404, None);
    let begun = operator.post("/operator/workspaces/acme/resync/", &json!({})).await.expect(202);
    assert_eq!(begun, json!({"slug": "acme"}));
    eventually("all commands", || async {
        let list = admin.get(&format!("{COMMANDS}?page_size=100")).await.expect(200);
        (list == before).then_some(())
    })
    .await;
    assert_eq!(read_trigger_tables(&instance).await, kept);
    // The output of restored commands does not count as new. Only the late output of a
    // command that D1 still had counts.
    assert_eq!(stored_bytes(&instance).await, stored_then + "late".len() as i64);
    let whole = admin.get(&path(&later)).await.expect(200);
    assert_eq!(whole["result"].as_str().unwrap().len(), 20_000);
    // A second resync changes nothing.
    operator.post("/operator/workspaces/acme/resync/", &json!({})).await.expect(202);
    // Waiting commands still wait, and can be cancelled.
    let planned = before["results"]
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["line"] == "planned, and cancelled")
        .unwrap();
    admin.post(&format!("{}cancel/", path(planned)), &json!({})).await.expect(200);
    // The key in D1 is valid.
    let mut replaced = other.clone();
    replaced["key"] = new_key["key"].clone();
    let dialed =
        dial(&here(&workspace.anonymous.with_authorization(&credential(&replaced))), BACKHAUL)
            .await;
    assert_eq!(dialed.err(), Some(403));
    let mut agent = ScriptedAgent::connect_to(
        &here(&workspace.anonymous.with_authorization(&credential(&other))),
        BACKHAUL,
    )
    .await;
    assert_eq!(agent.next_command().await["line"], "queued");
    eventually("the log's line", || async {
        let log = std::fs::read_to_string(instance.state.join("worker.log")).unwrap();
        let lines = log.lines().filter(|line| line.contains("\"event\":\"resync_over\"")).count();
        (lines == 2 && log.contains("\"servers\":3")).then_some(())
    })
    .await;
    // A server that was deleted after that time exists again until it is deleted again. Its history
    // is kept.
    admin.get(&delete).await.expect(200);
    admin.delete(&delete).await.expect(204);
    admin.get(&delete).await.expect_detail(404, None);
    assert_eq!(admin.get(COMMANDS).await.expect(200)["count"], 7);
    // The id of a lost user is not used again.
    let new = Person::new(&workspace_on(&instance, &workspace), "new").await;
    assert!(new.id > late.id, "{} {}", new.id, late.id);
}
