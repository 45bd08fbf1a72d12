//! Cancelling and killing commands (contract 7.7 and 7.8).

use farhand_tests::agents::{ScriptedAgent, own_account};
use farhand_tests::{Api, Person, RealAgent, Workspace, eventually, far_ahead};
use serde_json::{Value, json};

use super::commands::{PATH, assert_status, id_of, path_of, read, time_of, workspace_with_agent};

const ALREADY_SENT: Option<&str> = Some("EVENT_COMMAND_ALREADY_SENT");
const ALREADY_HANDLED: Option<&str> = Some("COMMAND_ALREADY_HANDLED");
const CANNOT_KILL: Option<&str> = Some("AGENT_CANNOT_KILL");

async fn queue(api: &Api, line: &str) -> Value {
    api.post(PATH, &json!({"server": "web-1", "line": line, "on_offline": "queue"}))
        .await
        .expect(201)
}

fn action(command: &Value, name: &str) -> String {
    format!("{}{name}/", path_of(command))
}

#[tokio::test]
async fn a_waiting_command_can_be_cancelled() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let later = json!({"server": "web-1", "line": "later", "scheduled_at": far_ahead()});
    let later = workspace.admin.post(PATH, &later).await.expect(201);
    let queued = queue(&workspace.admin, "queued").await;
    for command in [&later, &queued] {
        let cancelled = workspace.admin.call("POST", &action(command, "cancel")).await.expect(200);
        assert_status(&cancelled, "Cancelled", "secondary", false);
        assert_eq!(cancelled["success"], false);
        for field in
            ["delivered_at", "acked_at", "result", "exit_code", "elapsed_time", "response_delay"]
        {
            assert_eq!(cancelled[field], json!(null), "{field}");
        }
        assert!(time_of(&cancelled, "handled_at") >= time_of(&cancelled, "added_at"));
        assert!(
            cancelled["status"]["message"].as_str().unwrap().starts_with("Cancelled by boss at "),
            "{cancelled}"
        );
        assert_eq!(read(&workspace, command).await, cancelled);
        // A repetition is accepted and changes nothing.
        assert_eq!(
            workspace.admin.call("POST", &action(command, "cancel")).await.expect(200),
            cancelled
        );
        assert_eq!(workspace.admin.delete(&path_of(command)).await.expect(204), json!(null));
        workspace
            .admin
            .call("POST", &action(command, "kill"))
            .await
            .expect_detail(409, ALREADY_HANDLED);
        assert_eq!(read(&workspace, command).await, cancelled);
    }
    let deleted = queue(&workspace.admin, "deleted").await;
    assert_eq!(workspace.admin.delete(&path_of(&deleted)).await.expect(204), json!(null));
    assert_status(&read(&workspace, &deleted).await, "Cancelled", "secondary", false);
    let killed = queue(&workspace.admin, "killed").await;
    let shown = workspace.admin.call("POST", &action(&killed, "kill")).await.expect(200);
    assert_status(&shown, "Cancelled", "secondary", false);
    let kept = queue(&workspace.admin, "kept").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert_eq!(agent.next_command().await["id"], kept["id"]);
    assert!(agent.stays_silent().await);
    assert_eq!(workspace.admin.get(PATH).await.expect(200)["count"], 5);
}

#[tokio::test]
async fn a_delivered_command_cannot_be_cancelled() {
    let (workspace, _, agent) = workspace_with_agent().await;
    let made =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    let refused = async || {
        let before = read(&workspace, &made).await;
        workspace
            .admin
            .call("POST", &action(&made, "cancel"))
            .await
            .expect_detail(409, ALREADY_SENT);
        workspace.admin.delete(&path_of(&made)).await.expect_detail(409, ALREADY_SENT);
        assert_eq!(read(&workspace, &made).await, before);
    };
    refused().await;
    agent.ack(id_of(&made)).await;
    refused().await;
    agent.fin(id_of(&made), 0, "x").await;
    refused().await;
    workspace.admin.call("POST", &action(&made, "kill")).await.expect_detail(409, ALREADY_HANDLED);
}

#[tokio::test]
async fn only_requesters_and_staff_can_cancel() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let owner = Person::new(&workspace, "owner").await;
    owner.own(&workspace, &server).await;
    let owner = owner.api;
    let (staff, outsider) = (workspace.staff("staff").await, workspace.user("outsider").await);
    let elsewhere = Workspace::new().await;

    let of_boss = queue(&workspace.admin, "boss").await;
    let of_owner = queue(&owner, "owner").await;
    let also_of_owner = queue(&owner, "owner").await;
    for name in ["cancel", "kill"] {
        owner
            .call("POST", &action(&of_boss, name))
            .await
            .expect_detail(403, Some("PERMISSION_DENIED"));
        for api in [&outsider, &elsewhere.admin] {
            api.call("POST", &action(&of_boss, name))
                .await
                .expect_detail(404, Some("COMMAND_NOT_FOUND"));
        }
        for id in ["01936d3e-7a00-7000-8000-000000000000", "nonsense", "-"] {
            let path = format!("{PATH}{id}/{name}/");
            workspace.admin.call("POST", &path).await.expect_detail(404, Some("COMMAND_NOT_FOUND"));
        }
    }
    owner.delete(&path_of(&of_boss)).await.expect_detail(403, Some("PERMISSION_DENIED"));
    outsider.delete(&path_of(&of_boss)).await.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    assert_status(&read(&workspace, &of_boss).await, "Queued", "warning", true);
    owner.call("POST", &action(&of_owner, "cancel")).await.expect(200);
    staff.call("POST", &action(&also_of_owner, "cancel")).await.expect(200);
    let shown = staff.call("POST", &action(&of_boss, "cancel")).await.expect(200);
    assert!(shown["status"]["message"].as_str().unwrap().contains("by staff at"), "{shown}");
}

#[tokio::test]
async fn a_command_is_delivered_or_cancelled_and_never_both() {
    for _ in 0..8 {
        let workspace = Workspace::new().await;
        let server = workspace.server("web-1").await;
        let made = queue(&workspace.admin, "id").await;
        let path = action(&made, "cancel");
        let connect = ScriptedAgent::connect(&workspace, &server);
        let (mut agent, cancelled) =
            futures_util::future::join(connect, workspace.admin.call("POST", &path)).await;
        match cancelled.status {
            200 => {
                assert_status(&cancelled.json(), "Cancelled", "secondary", false);
                assert!(agent.stays_silent().await);
            }
            _ => {
                cancelled.expect_detail(409, ALREADY_SENT);
                assert_eq!(agent.next_command().await["id"], made["id"]);
            }
        }
    }
}

#[tokio::test]
async fn an_agent_without_the_kill_feature_gets_no_kill() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let made =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    agent.next_command().await;
    let before = read(&workspace, &made).await;
    workspace.admin.call("POST", &action(&made, "kill")).await.expect_detail(409, CANNOT_KILL);
    assert!(agent.stays_silent().await);
    assert_eq!(read(&workspace, &made).await, before);
}

#[tokio::test]
async fn a_killed_command_ends_with_its_agents_report() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect_with_kill(&workspace, &server).await;
    let made = workspace
        .admin
        .post(PATH, &json!({"server": "web-1", "line": "sleep 600"}))
        .await
        .expect(201);
    agent.next_command().await;
    agent.ack(id_of(&made)).await;
    let kill = json!({"query": "kill", "id": made["id"]});
    let killed = workspace.admin.call("POST", &action(&made, "kill")).await.expect(202);
    assert_status(&killed, "Acked", "warning", false);
    assert!(
        killed["status"]["message"].as_str().unwrap().contains("boss asked to kill it"),
        "{killed}"
    );
    assert_eq!(agent.next().await, Ok(kill.clone()));
    assert_eq!(read(&workspace, &made).await, killed, "the command has not ended yet");
    // A second kill is sent too, but the command shows only the first requester.
    workspace.staff("alice").await.call("POST", &action(&made, "kill")).await.expect(202);
    assert_eq!(agent.next().await, Ok(kill.clone()));
    // A disconnected agent gets the kill when it reconnects.
    agent.close().await;
    let mut agent = ScriptedAgent::connect_with_kill(&workspace, &server).await;
    assert_eq!(agent.next().await, Ok(kill));
    agent.fin(id_of(&made), 143, "some output").await;
    let done = read(&workspace, &made).await;
    assert_status(&done, "Failed", "danger", false);
    assert_eq!(
        (&done["exit_code"], &done["success"], &done["result"]),
        (&json!(143), &json!(false), &json!("some output"))
    );
    assert!(done["status"]["message"].as_str().unwrap().ends_with("; killed by boss."), "{done}");
    workspace.admin.call("POST", &action(&made, "kill")).await.expect_detail(409, ALREADY_HANDLED);
    // Without a connected agent, a kill is impossible.
    let other = workspace
        .admin
        .post(PATH, &json!({"server": "web-1", "line": "sleep 600"}))
        .await
        .expect(201);
    agent.next_command().await;
    agent.close().await;
    eventually("the connection's end", || async {
        (workspace.admin.get("/api/servers/").await.expect(200)["results"][0]["is_connected"]
            == false)
            .then_some(())
    })
    .await;
    workspace.admin.call("POST", &action(&other, "kill")).await.expect_detail(409, CANNOT_KILL);
}

#[tokio::test]
async fn the_real_agent_kills_the_whole_process_group() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let _agent = RealAgent::start(&workspace, &server).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids");
    let line =
        format!("sleep 600 & echo $$ $! > {0}.new; mv {0}.new {0}; sleep 600", file.display());
    let body = json!({"server": "web-1", "line": line, "username": own_account()});
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    let pids =
        eventually("the command's processes", || async { std::fs::read_to_string(&file).ok() })
            .await;
    // A zombie has no command line. The test cannot wait for it, because it is not a child.
    let runs = |pid: &str| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
    };
    let pids: Vec<&str> = pids.split_whitespace().collect();
    assert!(pids.len() == 2 && pids.iter().all(|pid| runs(pid)), "{pids:?}");
    workspace.admin.call("POST", &action(&made, "kill")).await.expect(202);
    let done = workspace.admin.get(&format!("{}?wait=30", path_of(&made))).await.expect(200);
    assert_status(&done, "Failed", "danger", false);
    assert!(pids.iter().all(|pid| !runs(pid)), "no process is left after the end");
    assert_eq!(done["exit_code"], 143);
    assert!(done["status"]["message"].as_str().unwrap().ends_with("; killed by boss."), "{done}");
}
