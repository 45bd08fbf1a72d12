//! The line that the Worker logs at the end of a request (`docs/contributing/performance.md`,
//! What lists cost).

use std::path::Path;

use farhand_tests::client::unique;
use farhand_tests::people::Person;
use farhand_tests::{Api, Workspace, eventually, instance_setting};
use serde_json::{Value, json};

/// Sends a request. Returns all log text with its id, and the line that ends the request.
async fn send_and_read_log(api: &Api, method: &str, path: &str) -> (String, Value) {
    let id = unique("log");
    let status = api.send(api.request(method, path).header("X-Request-Id", &id)).await.status;
    let log = Path::new(&instance_setting("FARHAND_STATE_DIR")).join("worker.log");
    let lines = eventually("the log's line", || async {
        let text = std::fs::read_to_string(&log).unwrap();
        let lines: Vec<String> =
            text.lines().filter(|line| line.contains(&id)).map(str::to_owned).collect();
        lines.iter().any(|line| line.contains("\"event\":\"request\"")).then_some(lines)
    })
    .await;
    let [line] = lines.as_slice() else { panic!("expected one line: {lines:?}") };
    let line = serde_json::from_str::<Value>(&line[line.find('{').unwrap()..]).unwrap();
    assert_eq!(
        (&line["request_id"], &line["method"], &line["status"]),
        (&json!(id), &json!(method), &json!(status))
    );
    (lines.concat(), line)
}

#[tokio::test]
async fn each_request_logs_one_line_with_costs_and_no_secret() {
    let workspace = Workspace::new().await;
    let (_, line) =
        send_and_read_log(&workspace.admin, "GET", "/api/events/commands/?search=confidential")
            .await;
    assert_eq!(
        (&line["workspace"], &line["route"]),
        (&json!(workspace.slug), &json!("/api/events/commands/"))
    );
    assert_eq!((&line["d1_calls"], &line["rows_written"]), (&json!(1), &json!(0)));
    assert!(line["rows_read"].as_u64().unwrap() > 0, "{line}");
    assert!(line["duration_ms"].is_u64(), "{line}");
    assert_eq!(line.as_object().unwrap().len(), 11, "{line}");
    // A path or a query may contain a secret key or private data, so neither is logged.
    for path in [
        "/api/auth/reset-password/confirm/confidential/",
        "/api/confidential/",
        "/api/status/?confidential=1",
    ] {
        let (text, line) = send_and_read_log(&workspace.anonymous, "GET", path).await;
        assert!(!text.contains("confidential"), "{text}");
        assert_eq!(line["d1_calls"], 0, "{path}");
    }
    // An open endpoint that needed no D1 call logs no line. Wait for the line of a later request,
    // then look for the id.
    let id = unique("log");
    let api = &workspace.anonymous;
    let open = api.request("GET", "/api/auth/is-authenticated/").header("X-Request-Id", &id);
    api.send(open).await.expect(200);
    send_and_read_log(api, "GET", "/api/status/").await;
    let log = Path::new(&instance_setting("FARHAND_STATE_DIR")).join("worker.log");
    assert!(!std::fs::read_to_string(log).unwrap().contains(&id));
    let (_, line) = send_and_read_log(&workspace.anonymous, "GET", "/api/nothing-here/").await;
    assert_eq!((&line["route"], &line["status"]), (&json!(null), &json!(404)));
}

#[tokio::test]
async fn a_list_falls_back_when_full_access_ends() {
    let workspace = Workspace::new().await;
    workspace.server("web-1").await;
    let body = json!({"server": "web-1", "line": "id", "on_offline": "queue"});
    workspace.admin.post("/api/events/commands/", &body).await.expect(201);
    let alice = Person::staff(&workspace, "alice").await;
    // An API token, because a change of rank ends sessions.
    let token = alice.with_api_token().await;
    let list = async || {
        let (_, line) = send_and_read_log(&token, "GET", "/api/events/commands/").await;
        let count = token.get("/api/events/commands/").await.expect(200)["count"].clone();
        (line["d1_calls"].clone(), count)
    };
    assert_eq!(list().await, (json!(1), json!(1)));
    alice.set(&workspace, json!({"is_staff": false})).await;
    assert_eq!(list().await, (json!(2), json!(0)));
    assert_eq!(list().await, (json!(1), json!(0)));
    alice.set(&workspace, json!({"is_staff": true})).await;
    assert_eq!(list().await, (json!(1), json!(1)));
}
