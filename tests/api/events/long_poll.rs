//! A waiting request returns a result only if its credential is still valid and can still read the
//! command (contract 7.6).

use std::time::Duration;

use farhand_tests::agents::ScriptedAgent;
use farhand_tests::{Api, Person, Reply, Workspace, eventually, now};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const PATH: &str = "/api/events/commands/";
const TOKENS: &str = "/api/auth/tokens/";
/// Longer than a response may wait without a recheck of its credential.
const RECHECK_DELAY: Duration = Duration::from_millis(1_500);

/// A client with a new API token, and the token's path.
async fn create_token(workspace: &Workspace) -> (Api, String) {
    let made = workspace
        .session()
        .post(TOKENS, &json!({"name": "waits", "expires_at": null}))
        .await
        .expect(201);
    let path = format!("{TOKENS}{}/", made["id"].as_str().unwrap());
    (workspace.anonymous.with_token(made["key"].as_str().unwrap()), path)
}

/// Begins to read a command, and to wait until it is handled.
fn waiting_read(api: Api, command: &Value) -> JoinHandle<Reply> {
    let path = format!("{PATH}{}/?wait=30", command["id"].as_str().unwrap());
    tokio::spawn(async move { api.get(&path).await })
}

#[tokio::test]
async fn a_token_deleted_while_waiting_gets_no_result() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let command = json!({"server": "web-1", "line": "cat secret"});

    // First a command of another token, then a command of the same token.
    let (api, token_path) = create_token(&workspace).await;
    let made = workspace.admin.post(PATH, &command).await.expect(201);
    let waiting = waiting_read(api, &made);
    let id = agent.next_command().await["id"].as_str().unwrap().to_owned();
    tokio::time::sleep(RECHECK_DELAY).await;
    workspace.session().delete(&token_path).await.expect(204);
    agent.fin(&id, 0, "the secret").await;
    waiting.await.unwrap().expect_detail(403, Some("INVALID_TOKEN"));

    let (api, token_path) = create_token(&workspace).await;
    let body = command.clone();
    let waiting = tokio::spawn(async move {
        api.send(api.request("POST", PATH).header("Prefer", "wait=30").json(&body)).await
    });
    let id = agent.next_command().await["id"].as_str().unwrap().to_owned();
    tokio::time::sleep(RECHECK_DELAY).await;
    workspace.session().delete(&token_path).await.expect(204);
    agent.fin(&id, 0, "the secret").await;
    waiting.await.unwrap().expect_detail(403, Some("INVALID_TOKEN"));

    // A token that stays valid gets the result after any wait.
    let (api, _) = create_token(&workspace).await;
    let waiting = tokio::spawn(async move {
        api.send(api.request("POST", PATH).header("Prefer", "wait=30").json(&command)).await
    });
    let id = agent.next_command().await["id"].as_str().unwrap().to_owned();
    tokio::time::sleep(RECHECK_DELAY).await;
    agent.fin(&id, 0, "the result").await;
    assert_eq!(waiting.await.unwrap().expect(201)["result"], "the result");
}

#[tokio::test]
async fn a_token_expired_while_waiting_gets_no_result() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let command = json!({"server": "web-1", "line": "cat secret"});
    for case in ["read", "created"] {
        let made = match case {
            "read" => Some(workspace.admin.post(PATH, &command).await.expect(201)),
            _ => None,
        };
        let expires_at = now().plus_seconds(10);
        let token = json!({"name": "expires", "expires_at": expires_at.to_string()});
        let token = workspace.session().post(TOKENS, &token).await.expect(201);
        let api = workspace.anonymous.with_token(token["key"].as_str().unwrap());
        let waiting = match &made {
            Some(made) => waiting_read(api, made),
            None => {
                let request = api.request("POST", PATH).header("Prefer", "wait=30").json(&command);
                tokio::spawn(async move { api.send(request).await })
            }
        };
        let id = agent.next_command().await["id"].as_str().unwrap().to_owned();
        eventually("the token's expiry", || async {
            (now() > expires_at.plus_seconds(1)).then_some(())
        })
        .await;
        agent.fin(&id, 0, "the secret").await;
        waiting.await.unwrap().expect_detail(403, Some("INVALID_TOKEN"));
    }
}

#[tokio::test]
async fn a_caller_who_loses_access_while_waiting_gets_no_result() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let other = workspace.server("web-2").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let group = workspace.group("ops", &[&server]).await;
    let person = Person::new(&workspace, "mia").await;
    let command = json!({"server": "web-1", "line": "cat secret"});
    let not_found = Some("COMMAND_NOT_FOUND");

    // Their group loses access: for a read, and for a creation with and without a key.
    for case in ["read", "created", "created with a key"] {
        workspace.add_member(&group, &person, "member").await;
        let made = match case {
            "read" => Some(workspace.admin.post(PATH, &command).await.expect(201)),
            _ => None,
        };
        let request = match &made {
            Some(made) => person
                .api
                .request("GET", &format!("{PATH}{}/?wait=30", made["id"].as_str().unwrap())),
            None => person.api.request("POST", PATH).header("Prefer", "wait=30").json(&command),
        };
        let is_keyed = case == "created with a key";
        let request = if is_keyed { request.header("Idempotency-Key", "k") } else { request };
        let api = person.api.clone();
        let waiting = tokio::spawn(async move { api.send(request).await });
        let id = agent.next_command().await["id"].as_str().unwrap().to_owned();
        let twin = is_keyed.then(|| {
            let api = person.api.clone();
            let request = api.request("POST", PATH).header("Idempotency-Key", "k").json(&command);
            tokio::spawn(async move { api.send(request).await })
        });
        tokio::time::sleep(RECHECK_DELAY).await;
        workspace.remove_member(&group, &person).await;
        agent.fin(&id, 0, "the secret").await;
        waiting.await.unwrap().expect_detail(404, not_found);
        if let Some(twin) = twin {
            twin.await.unwrap().expect_detail(404, not_found);
        }
    }

    // The token's list loses the server, or the command.
    for acl in [json!({"servers": [other["id"]]}), json!({"commands": ["ls"]})] {
        let (api, token_path) = create_token(&workspace).await;
        let made = workspace.admin.post(PATH, &command).await.expect(201);
        let waiting = waiting_read(api, &made);
        let id = agent.next_command().await["id"].as_str().unwrap().to_owned();
        tokio::time::sleep(RECHECK_DELAY).await;
        workspace.session().patch(&token_path, &json!({"acl": acl})).await.expect(200);
        agent.fin(&id, 0, "the secret").await;
        waiting.await.unwrap().expect_detail(404, not_found);
    }
}
