//! `exec`, `exec logs` and `exec ls` of the command line.

use farhand_tests::agents::own_account;
use farhand_tests::alpacon::{Alpacon, Command, List, OutputChunk};
use farhand_tests::{Person, RealAgent, ScriptedAgent, Workspace, far_ahead, now};
use serde_json::{Value, json};

const COMMANDS: &str = "/api/events/commands/";

async fn chunks(cli: &Alpacon, command: &str, query: &str) -> List<OutputChunk> {
    let page = "ordering=seq&page=1&page_size=100";
    cli.get(&format!("{COMMANDS}{command}/chunks/?{page}&{query}")).await
}

#[tokio::test]
async fn exec_without_live_output_polls_to_the_end() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let _agent = RealAgent::start(&workspace, &server).await;
    let cli = Alpacon::cli(&workspace.admin);
    let id = cli.server_id("web").await;
    let account = own_account();
    for (line, code, output) in
        [("echo hi", 0, "hi\n"), ("echo out; exit 7", 7, "out\n"), ("true", 0, "")]
    {
        let started = cli.start(&id, line, &account).await;
        assert_eq!(started.server.unwrap().id.as_ref(), Some(&id));
        assert_eq!((started.data.as_deref(), started.run_after), (Some(""), Some(vec![])));
        assert_eq!(started.requested_by.unwrap().name.as_deref(), Some("boss"));
        let done = cli.wait(&started.id).await;
        let status = if code == 0 { "success" } else { "failed" };
        assert_eq!((done.status.as_deref(), done.exit_code), (Some(status), Some(code)));
        assert_eq!((done.result.as_deref(), done.success), (Some(output), Some(code == 0)));
        assert_eq!(done.cancellable, Some(false));
        let shown = chunks(&cli, &started.id, "seq__gte=0").await;
        let text: String = shown.results.into_iter().map(|chunk| chunk.content).collect();
        assert_eq!(text, output);
    }
    // Variables and a multi-line command.
    let mut body = Alpacon::command(&id, "echo $FOO\necho two", &account);
    body["env"] = json!({"FOO": "ä $x"});
    let started: Vec<Command> = cli.post(COMMANDS, &body).await;
    assert_eq!(cli.wait(&started[0].id).await.result.as_deref(), Some("ä $x\ntwo\n"));
}

#[tokio::test]
async fn an_empty_username_is_the_callers_own() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let cli = Alpacon::cli(&workspace.admin);
    let started = cli.start(&cli.server_id("web").await, "id", "").await;
    assert_eq!(
        (started.username.as_deref(), started.groupname.as_deref()),
        (Some("boss"), Some(""))
    );
    let received = agent.next_command().await;
    assert_eq!(received["user"], "boss");
}

#[tokio::test]
async fn a_purpose_is_a_description_only() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let cli = Alpacon::cli(&workspace.admin);
    let mut body = Alpacon::command(server["id"].as_str().unwrap(), "id", "");
    body["purpose"] = json!("find out who I am");
    body["purpose_demand_supported"] = json!(true);
    let _: Vec<Command> = cli.post(COMMANDS, &body).await;
    agent.next_command().await;
    // The native API does not know these fields.
    let native = workspace.admin.post(COMMANDS, &body).await;
    assert_eq!(native.status, 400);
}

#[tokio::test]
async fn fields_that_change_what_runs_are_refused() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let cli = Alpacon::cli(&workspace.admin);
    let id = server["id"].as_str().unwrap();
    for (field, value) in [
        ("data", json!("x")),
        ("run_after", json!([id])),
        ("work_session", json!(id)),
        ("file", json!({"path": "/tmp/x", "interpreter": "/bin/bash", "content": "id"})),
        ("sudo", json!(false)),
    ] {
        let mut body = Alpacon::command(id, "id", "");
        body[field] = value;
        let refused = cli.api.post(COMMANDS, &body).await;
        refused.expect_fields(400, &[field]);
        assert_eq!(refused.json()["code"], "INVALID_COMMAND");
    }
    let bad = cli.api.request("POST", COMMANDS).header("Content-Type", "application/json");
    cli.api.send(bad.body("{")).await.expect_fields(400, &["non_field_errors"]);
    let text = cli.api.request("POST", COMMANDS).header("Content-Type", "text/plain").body("{}");
    cli.api.send(text).await.expect_detail(415, None);
    let large = format!("{{\"line\": \"{}\"}}", "x".repeat(1 << 20));
    let large =
        cli.api.request("POST", COMMANDS).header("Content-Type", "application/json").body(large);
    cli.api.send(large).await.expect_detail(413, None);
    assert!(agent.stays_silent().await);
}

#[tokio::test]
async fn each_status_is_a_word_of_the_client() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let cli = Alpacon::cli(&workspace.admin);
    let id = cli.server_id("web").await;
    let show = async |command: &str| -> Command { cli.get(&format!("{COMMANDS}{command}/")).await };
    // Without an agent, nothing is stored.
    let refused = cli.api.post(COMMANDS, &Alpacon::command(&id, "id", "")).await;
    refused.expect_detail(503, Some("SERVER_NOT_CONNECTED"));
    let mut later = Alpacon::command(&id, "id", "");
    later["scheduled_at"] = json!(far_ahead());
    let later: Vec<Command> = cli.post(COMMANDS, &later).await;
    assert_eq!((later[0].status.as_deref(), later[0].cancellable), (Some("scheduled"), Some(true)));
    workspace.admin.delete(&format!("{COMMANDS}{}/", later[0].id)).await.expect(204);
    assert_eq!(show(&later[0].id).await.status.as_deref(), Some("cancelled"));

    let queue = json!({"server": id, "line": "id", "on_offline": "queue"});
    let queued = workspace.admin.post(COMMANDS, &queue).await.expect(201);
    let queued = queued["id"].as_str().unwrap();
    assert_eq!(show(queued).await.status.as_deref(), Some("queued"));
    let soon = json!({"server": id, "line": "id", "on_offline": "queue", "expires_at": now().plus_seconds(2)});
    let expiring = workspace.admin.post(COMMANDS, &soon).await.expect(201);
    let expired = cli.wait(expiring["id"].as_str().unwrap()).await;
    assert_eq!(
        (expired.status.as_deref(), expired.error_phase.as_deref()),
        (Some("error"), Some("agent_disconnected"))
    );

    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    agent.next_command().await;
    assert_eq!(show(queued).await.status.as_deref(), Some("delivered"));
    agent.ack(queued).await;
    assert_eq!(show(queued).await.status.as_deref(), Some("acked"));
    agent.fin(queued, 3, "no").await;
    let failed = cli.wait(queued).await;
    assert_eq!((failed.status.as_deref(), failed.exit_code), (Some("failed"), Some(3)));
}

#[tokio::test]
async fn lists_are_selected_by_the_segments_of_the_path() {
    let workspace = Workspace::new().await;
    let (web, db) = (workspace.server("web").await, workspace.server("db").await);
    let mut agents = Vec::new();
    for server in [&web, &db] {
        agents.push(ScriptedAgent::connect(&workspace, server).await);
    }
    let ann = Person::new(&workspace, "ann").await;
    let group = workspace.group("ops", &[&web]).await;
    workspace.add_member(&group, &ann, "member").await;
    let cli = Alpacon::cli(&workspace.admin);
    let (web, db) = (cli.server_id("web").await, cli.server_id("db").await);
    let boss = cli.user_id("boss").await;
    let of_boss = cli.start(&web, "echo boss", "").await.id;
    let on_db = cli.start(&db, "echo db", "").await.id;
    let of_ann = Alpacon::cli(&ann.api).start(&web, "echo ann", "").await.id;
    let list = async |path: &str| {
        let commands: Vec<Command> = cli.list(&format!("{COMMANDS}{path}"), "").await;
        let mut ids: Vec<String> = commands.into_iter().map(|command| command.id).collect();
        ids.sort_unstable();
        ids
    };
    let sorted = |ids: &[&String]| {
        let mut ids: Vec<String> = ids.iter().map(|id| (*id).clone()).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(list("").await, sorted(&[&of_boss, &on_db, &of_ann]));
    assert_eq!(list(&format!("{web}/")).await, sorted(&[&of_boss, &of_ann]));
    assert_eq!(list(&format!("{boss}/")).await, sorted(&[&of_boss, &on_db]));
    assert_eq!(list(&format!("{web}/{}/", ann.id)).await, sorted(&[&of_ann]));
    // Ann sees only the server of her group.
    let seen: Vec<Command> = Alpacon::cli(&ann.api).list(&format!("{COMMANDS}{db}/"), "").await;
    assert!(seen.is_empty());
    // Without `page_size`, the path is a command.
    let one: Command = cli.get(&format!("{COMMANDS}{of_ann}/")).await;
    assert_eq!(one.server.unwrap().name.as_deref(), Some("web"));
    cli.api.get(&format!("{COMMANDS}{web}/")).await.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    cli.api.get(&format!("{COMMANDS}x/y/?page_size=1")).await.expect_detail(404, None);
    // The native API has no such lists.
    workspace
        .admin
        .get(&format!("{COMMANDS}{web}/?page_size=5"))
        .await
        .expect_detail(404, Some("COMMAND_NOT_FOUND"));
}

#[tokio::test]
async fn chunks_have_page_numbers_and_an_upper_bound() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let cli = Alpacon::cli(&workspace.admin);
    let id = cli.start(&cli.server_id("web").await, "seq", "").await.id;
    agent.next_command().await;
    for seq in 0..103 {
        agent.chunk(&id, seq, &format!("{seq}\n")).await;
    }
    let first = chunks(&cli, &id, "seq__gte=0").await;
    assert_eq!((first.count, first.results.len(), first.next, first.last), (103, 100, Some(2), 2));
    let rest = chunks(&cli, &id, "seq__gte=100").await;
    assert_eq!((rest.results.len(), rest.next), (3, None));
    let bounded = chunks(&cli, &id, "seq__gte=2&seq__lte=4").await;
    let seqs: Vec<i64> = bounded.results.iter().map(|chunk| chunk.seq).collect();
    assert_eq!((seqs, bounded.next), (vec![2, 3, 4], None));
    let path = format!("{COMMANDS}{id}/chunks/?seq__lte=x");
    cli.api.get(&path).await.expect_fields(400, &["seq__lte"]);
}

#[tokio::test]
async fn a_repeated_request_with_a_key_starts_one_command() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let cli = Alpacon::cli(&workspace.admin);
    let body = Alpacon::command(&cli.server_id("web").await, "id", "");
    let send = async || -> Value {
        let request = cli.api.request("POST", COMMANDS).header("Idempotency-Key", "k").json(&body);
        cli.api.send(request).await.expect(201)
    };
    let (first, second) = (send().await, send().await);
    assert_eq!(first[0]["id"], second[0]["id"]);
    agent.next_command().await;
    assert!(agent.stays_silent().await);
}
