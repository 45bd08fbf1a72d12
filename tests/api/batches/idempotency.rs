//! Repeated and concurrent requests for batches (contract 3.11).

use farhand_tests::client::{Api, Reply, Workspace};
use farhand_tests::eventually;
use farhand_tests::people::{BATCHES, item_path};
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{servers, waiting};

async fn post(api: &Api, path: &str, key: &str, body: &Value) -> Reply {
    api.send(api.request("POST", path).header("Idempotency-Key", key).json(body)).await
}

#[tokio::test]
async fn a_repeated_request_creates_one_batch() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a"]).await;
    let body = waiting(json!({"all": true}));
    let first = post(&workspace.admin, BATCHES, "one", &body).await;
    let batch = first.expect(201);
    // A server that is added later does not change the stored response.
    servers(&workspace, &["b"]).await;
    let again = post(&workspace.admin, BATCHES, "one", &body).await;
    assert_eq!(again.expect(201), batch);
    assert_eq!(again.header("Idempotent-Replayed"), "true");
    assert_eq!(again.header("Location"), first.header("Location"));
    let mut other = body.clone();
    other["line"] = json!("ls");
    let reused = post(&workspace.admin, BATCHES, "one", &other).await;
    reused.expect_detail(422, Some("IDEMPOTENCY_KEY_REUSED"));
    post(&workspace.admin, BATCHES, "two", &body).await.expect(201);
    assert_eq!(workspace.admin.get(BATCHES).await.expect(200)["count"], 2);
    // A token whose list does not allow the command gets no replay.
    let limited = workspace.limited(&json!({"commands": ["ls"]})).await;
    let refused = post(&limited, BATCHES, "one", &body).await;
    refused.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
}

#[tokio::test]
async fn concurrent_requests_with_one_key_create_one_batch() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a", "b"]).await;
    let body = waiting(json!({"all": true}));
    let requests = (0..8).map(|_| post(&workspace.admin, BATCHES, "one", &body));
    let replies = join_all(requests).await;
    let batches: Vec<Value> = replies.iter().map(|reply| reply.expect(201)).collect();
    assert!(batches.iter().all(|batch| batch["id"] == batches[0]["id"]));
    assert_eq!(workspace.admin.get(BATCHES).await.expect(200)["count"], 1);
    let targets = format!("{}targets/", item_path(BATCHES, &batches[0]));
    assert_eq!(workspace.admin.get(&targets).await.expect(200)["count"], 2);
}

#[tokio::test]
async fn a_refused_request_does_not_use_its_key() {
    let workspace = Workspace::new().await;
    let body = waiting(json!({"all": true}));
    post(&workspace.admin, BATCHES, "one", &body).await.expect_fields(400, &["targets"]);
    servers(&workspace, &["a"]).await;
    let mut dry_run = body.clone();
    dry_run["dry_run"] = json!(true);
    post(&workspace.admin, BATCHES, "one", &dry_run).await.expect(200);
    post(&workspace.admin, BATCHES, "one", &body).await.expect(201);
}

#[tokio::test]
async fn a_replay_of_a_retry_needs_the_permission() {
    let workspace = Workspace::new().await;
    servers(&workspace, &["a"]).await;
    let body = json!({"targets": {"all": true}, "line": "id", "on_offline": "skip"});
    let batch = workspace.admin.post(BATCHES, &body).await.expect(201);
    let path = item_path(BATCHES, &batch);
    eventually("the batch's end", || async {
        let batch = workspace.admin.get(&path).await.expect(200);
        batch["finished_at"].is_string().then_some(())
    })
    .await;
    let path = format!("{path}retry-failed/");
    let retry = async |api: &Api, key: &str| {
        api.send(api.request("POST", &path).header("Idempotency-Key", key)).await
    };
    let made = retry(&workspace.admin, "one").await.expect(201);
    assert_eq!(retry(&workspace.admin, "one").await.expect(201)["id"], made["id"]);
    let limited = workspace.limited(&json!({"usernames": ["nobody"], "read_all": true})).await;
    for key in ["one", "two"] {
        let refused = retry(&limited, key).await;
        refused.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
    }
    assert_eq!(workspace.admin.get(BATCHES).await.expect(200)["count"], 2);
}
