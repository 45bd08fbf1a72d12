//! Refused requests and reads of a member cost little of D1 (contract 18).

use farhand_tests::people::COMMANDS;
use farhand_tests::{Instance, Person, Workspace, eventually};
use futures_util::future;
use serde_json::{Value, json};

/// The maximum number of bytes of D1 that [`REQUESTS`] refused requests may cost.
const MAX_BYTES: i64 = 64 * 1024;
const REQUESTS: usize = 1_000;
/// The number of requests that the member sends at the same time, each with another credential.
const AT_ONCE: usize = 25;

/// The bytes of D1 that are in use.
fn used_bytes(instance: &Instance) -> i64 {
    let sql = "SELECT (SELECT page_count FROM pragma_page_count) - (SELECT freelist_count FROM pragma_freelist_count) AS pages,
        (SELECT page_size FROM pragma_page_size) AS size";
    let row = &instance.d1(sql)[0];
    row["pages"].as_i64().unwrap() * row["size"].as_i64().unwrap()
}

/// The number of counted refusals without an event.
fn pending(instance: &Instance) -> i64 {
    instance.d1("SELECT coalesce(sum(pending), 0) AS n FROM joined_events")[0]["n"]
        .as_i64()
        .unwrap()
}

#[tokio::test]
async fn refused_requests_of_a_member_are_one_event_with_their_number() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let member = Person::new(&workspace, "mia").await;
    let group = workspace.group("ops", &[&server]).await;
    workspace.add_member(&group, &member, "member").await;
    // The largest details that a member can cause.
    let env: serde_json::Map<_, _> =
        (0..100).map(|number| (format!("N{number:0127}"), json!("v"))).collect();
    let body = json!({
        "server": "web-1", "line": "é".repeat(2_000), "username": "root", "env": env, "cwd": format!("/{}", "c".repeat(4_000)),
        "on_offline": "queue",
    });
    // All credentials of a user count together.
    let mut credentials = vec![member.api.clone()];
    for _ in 1..AT_ONCE {
        credentials.push(member.with_api_token().await);
    }
    let before = used_bytes(&instance);
    for _ in 0..REQUESTS / AT_ONCE {
        let requests = credentials.iter().map(|api| api.post(COMMANDS, &body));
        for reply in future::join_all(requests).await {
            reply.expect_detail(403, Some("PERMISSION_DENIED"));
        }
    }
    let counted = (REQUESTS - 1) as i64;
    eventually("all refusals to be counted", || async {
        (pending(&instance) == counted).then_some(())
    })
    .await;
    let bytes = used_bytes(&instance) - before;
    assert!(bytes <= MAX_BYTES, "{bytes} bytes");

    // If no refusal follows in the next minute, the cron trigger writes the event.
    // A row whose event cannot be written does not stop the other rows.
    instance.d1("INSERT INTO joined_events (workspace_id, key, pending, written_at, event)
        SELECT workspace_id, 'broken', 1, '', 'no JSON' FROM joined_events LIMIT 1");
    instance.d1("UPDATE joined_events SET written_at = '2020-01-01T00:00:00.000000+00:00'");
    instance.stop().await;
    let instance = Instance::restart(state.path()).await;
    let (admin, member) =
        (workspace.admin.with_url(&instance.url), member.api.with_url(&instance.url));
    let denied = eventually("the event of the counted refusals", || async {
        let list = admin.get("/api/audit/events/?outcome=denied").await.expect(200);
        (list["count"] == 2).then(|| list["results"].as_array().unwrap().clone())
    })
    .await;
    let counts: Vec<&Value> = denied.iter().map(|event| &event["details"]["count"]).collect();
    assert_eq!(counts, [&json!(counted), &json!(1)]);
    instance.d1("DELETE FROM joined_events WHERE key = 'broken'");
    for event in &denied {
        let details = &event["details"];
        assert!(details.to_string().len() <= 1_024, "{details}");
        assert_eq!(
            (&event["action"], &event["actor"]["name"]),
            (&json!("command.create"), &json!("mia"))
        );
        assert_eq!(
            (&details["code"], &details["line_length"]),
            (&json!("PERMISSION_DENIED"), &json!(2_000))
        );
        assert_eq!((&details["env"], &details["env_total"]), (&Value::Null, &json!(100)));
        assert!(details["env_names_hmac"].is_string());
    }

    // The new isolate has counted nothing yet, and joins its refusals to those of the old one.
    member.post(COMMANDS, &body).await.expect(403);
    eventually("the refusal to be counted", || async { (pending(&instance) == 1).then_some(()) })
        .await;
    assert_eq!(admin.get("/api/audit/events/?outcome=denied").await.expect(200)["count"], 2);
    assert_eq!(admin.post("/api/audit/verify/", &json!({})).await.expect(200)["valid"], true);
}

#[tokio::test]
async fn reads_beyond_twenty_a_minute_are_joined() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    workspace.server("web-1").await;
    let body = json!({"server": "web-1", "line": "id", "on_offline": "queue"});
    for _ in 0..30 {
        let created = workspace.admin.post(COMMANDS, &body).await.expect(201);
        let path = format!("{COMMANDS}{}/", created["id"].as_str().unwrap());
        workspace.admin.get(&path).await.expect(200);
    }
    // The first read beyond the limit is written immediately, and the others wait for a minute.
    eventually("the other reads to be counted", || async {
        (pending(&instance) == 9).then_some(())
    })
    .await;
    let events = workspace.admin.get("/api/audit/events/?action=command.read").await.expect(200);
    assert_eq!(events["count"], 21);
    let joined: Vec<&Value> = events["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| &event["details"]["count"])
        .collect();
    assert_eq!(joined.iter().filter(|count| **count == &json!(1)).count(), 1, "{joined:?}");
}
