//! Deletions and key rotations that are interrupted. Afterwards, D1 and the server's object must
//! agree about what its agent may do.

use std::time::Duration;

use farhand_tests::agents::{ScriptedAgent, credential};
use farhand_tests::{Api, Instance, Workspace, eventually, eventually_within};
use futures_util::future::join_all;
use serde_json::{Value, json};

const COMMANDS: &str = "/api/events/commands/";
const OWN: &str = "/api/servers/servers/-/";

fn path_of(server: &Value) -> String {
    format!("/api/servers/servers/{}/", server["id"].as_str().unwrap())
}

/// The status of a request with a server's key.
async fn status_with(anonymous: &Api, id: &Value, key: &Value) -> u16 {
    anonymous.with_authorization(&credential(&json!({"id": id, "key": key}))).get(OWN).await.status
}

#[tokio::test]
async fn a_change_that_d1_rejects_can_be_repeated_later() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let lock = instance.lock_d1().await;
    workspace.admin.delete(&path_of(&server)).await.expect_detail(500, None);
    workspace
        .admin
        .call("POST", &format!("{}rotate-key/", path_of(&server)))
        .await
        .expect_detail(500, None);
    // The service does not know whether D1 has changed, so it reads D1, which shows no change.
    agent.api.get(OWN).await.expect(200);
    drop(lock);
    eventually("D1 to accept writes", || async {
        let body = json!({"server": "web-1", "line": "id"});
        (workspace.admin.post(COMMANDS, &body).await.status == 201).then_some(())
    })
    .await;
    agent.next_command().await;
    agent.api.get(OWN).await.expect(200);
    let rotate = format!("{}rotate-key/", path_of(&server));
    let rotated = workspace.admin.post(&rotate, &json!({"now": true})).await.expect(200);
    assert_eq!(agent.next().await, Err(Some(1000)), "the socket is closed without `quit`");
    agent.api.get(OWN).await.expect_detail(403, Some("INVALID_TOKEN"));
    assert_eq!(status_with(&workspace.anonymous, &server["id"], &rotated["key"]).await, 200);
    workspace.admin.delete(&path_of(&server)).await.expect(204);
    assert_eq!(status_with(&workspace.anonymous, &server["id"], &rotated["key"]).await, 403);
}

/// Sends a request. `None` if there is no response.
async fn send(api: &Api, method: &str, path: &str) -> Option<(u16, Value)> {
    let request = api.request(method, path);
    let request = if method == "POST" { request.json(&json!({"now": true})) } else { request };
    let response = request.send().await.ok()?;
    let status = response.status().as_u16();
    let text = response.text().await.ok()?;
    Some((status, serde_json::from_str(&text).unwrap_or(Value::Null)))
}

#[tokio::test]
async fn d1_and_object_agree_after_a_crash() {
    // If all requests got a response, the crash came too late, so try again.
    for _ in 0..5 {
        if crash_amid_changes().await > 0 {
            return;
        }
    }
    panic!("no request was interrupted in five attempts");
}

/// Kills the service during changes of servers, and checks the result. Returns how many requests
/// got no response.
async fn crash_amid_changes() -> usize {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let servers = join_all((0..24).map(|n| {
        let name = format!("web-{n}");
        let workspace = &workspace;
        async move { workspace.server(&name).await }
    }))
    .await;
    let queued = join_all(servers.iter().map(|server| {
        let body = json!({"server": server["id"], "line": "id", "on_offline": "queue"});
        let admin = &workspace.admin;
        async move { admin.post(COMMANDS, &body).await.expect(201) }
    }))
    .await;
    // Half of the servers are deleted, and half get a new key. The service is killed after the
    // first response.
    let requests = servers.iter().enumerate().map(|(n, server)| {
        let admin = &workspace.admin;
        async move {
            match n % 2 {
                0 => send(admin, "DELETE", &path_of(server)).await,
                _ => send(admin, "POST", &format!("{}rotate-key/", path_of(server))).await,
            }
        }
    });
    let mut pending: Vec<_> = requests.map(Box::pin).collect();
    let mut replies: Vec<Option<(u16, Value)>> = vec![None; servers.len()];
    let mut indexes: Vec<usize> = (0..servers.len()).collect();
    let (first, index, rest) = futures_util::future::select_all(pending.drain(..)).await;
    replies[indexes.swap_remove(index)] = first;
    let killed = instance.kill();
    let (others, ()) = futures_util::future::join(join_all(rest), killed).await;
    for (index, answer) in indexes.into_iter().zip(others) {
        replies[index] = answer;
    }

    let instance = Instance::restart(state.path()).await;
    let (admin, anonymous) =
        (workspace.admin.with_url(&instance.url), workspace.anonymous.with_url(&instance.url));
    let hashes = instance.d1("SELECT id, agent_key_hash FROM servers");
    let mut unanswered = 0;
    for (n, (server, answer)) in servers.iter().zip(&replies).enumerate() {
        let is_there = admin.get(&path_of(server)).await.status == 200;
        assert_eq!(
            is_there,
            hashes.as_array().unwrap().iter().any(|row| row["id"] == server["id"])
        );
        let old_key = status_with(&anonymous, &server["id"], &server["key"]).await;
        unanswered += usize::from(answer.is_none());
        match (n % 2, answer) {
            (0, Some((204, _))) => assert_eq!((is_there, old_key), (false, 403)),
            (0, _) => assert_eq!(old_key, if is_there { 200 } else { 403 }),
            (_, Some((200, rotated))) => {
                assert_eq!((is_there, old_key), (true, 403));
                assert_eq!(status_with(&anonymous, &server["id"], &rotated["key"]).await, 200);
            }
            // The key is the old one, or a new one that was lost with the response. In both cases
            // it can be rotated again.
            _ => {
                assert!(is_there && [200, 403].contains(&old_key), "{old_key}");
                let rotate = format!("{}rotate-key/", path_of(server));
                let rotated = admin.post(&rotate, &json!({"now": true})).await.expect(200);
                assert_eq!(status_with(&anonymous, &server["id"], &server["key"]).await, 403);
                assert_eq!(status_with(&anonymous, &server["id"], &rotated["key"]).await, 200);
            }
        }
    }
    // Each object resolves its unknown state without a call, and waiting commands of deleted
    // servers have ended.
    eventually_within(
        Duration::from_secs(120),
        "the confirmation of every object's server",
        || async {
            let unconfirmed =
                "SELECT document FROM server WHERE document ->> '$.unconfirmed' IS NOT NULL";
            instance.read_objects("ServerLink", unconfirmed).is_empty().then_some(())
        },
    )
    .await;
    for (server, command) in servers.iter().zip(&queued) {
        let expected =
            if admin.get(&path_of(server)).await.status == 200 { "Queued" } else { "Cancelled" };
        let path = format!("{COMMANDS}{}/", command["id"].as_str().unwrap());
        assert_eq!(admin.get(&path).await.expect(200)["status"]["text"], expected);
    }
    unanswered
}
