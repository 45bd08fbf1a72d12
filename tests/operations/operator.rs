//! The operator API (contract 2).

use std::time::Duration;

use farhand_tests::agents::{ScriptedAgent, credential, dial};
use farhand_tests::client::{PASSWORD, new_workspace, unique};
use farhand_tests::instance::{change_d1, change_objects};
use farhand_tests::{Api, Instance, Workspace, eventually, eventually_within, now};
use serde_json::{Value, json};

const PATH: &str = "/operator/workspaces/";

#[tokio::test]
async fn the_operator_creates_a_workspace_with_a_superuser() {
    let slug = unique("op");
    let mut body = new_workspace(&slug);
    body["name"] = json!("Acme & Sons");
    let made = Api::operator().post(PATH, &body).await.expect(201);
    let port =
        farhand_tests::instance_setting("FARHAND_URL").rsplit(':').next().unwrap().to_owned();
    assert_eq!(
        (&made["slug"], &made["region"], &made["name"]),
        (&json!(slug), &json!("local"), &json!("Acme & Sons"))
    );
    // The base URL comes from the configuration, whatever the `Host` header says.
    assert_eq!(made["base_url"], format!("http://{slug}.local.localhost:{port}"));
    let with_port = Api::operator().with_host("127.0.0.1:1");
    let other = with_port.post(PATH, &new_workspace(&unique("op"))).await.expect(201);
    assert!(
        other["base_url"].as_str().unwrap().ends_with(&format!(".local.localhost:{port}")),
        "{other}"
    );
    assert_eq!(
        (&made["admin"]["username"], &made["admin"]["email"]),
        (&json!("boss"), &json!("boss@example.com"))
    );

    let api = Api::at(&format!("{slug}.local.localhost"));
    let login = api
        .post("/api/auth/login/", &json!({"username": "boss", "password": PASSWORD}))
        .await
        .expect(200);
    let me =
        api.with_token(login["token"].as_str().unwrap()).get("/api/iam/users/-/").await.expect(200);
    assert_eq!((&me["id"], &me["is_superuser"]), (&made["admin"]["id"], &json!(true)));
}

#[tokio::test]
async fn a_taken_slug_changes_nothing() {
    let workspace = Workspace::new().await;
    let mut body = new_workspace(&workspace.slug);
    body["admin"]["username"] = json!("other");
    Api::operator().post(PATH, &body).await.expect_fields(400, &["slug"]);
    let login = json!({"username": "other", "password": PASSWORD});
    workspace
        .anonymous
        .post("/api/auth/login/", &login)
        .await
        .expect_fields(403, &["non_field_errors"]);
    workspace.session().get("/api/status/").await.expect(200);
}

#[tokio::test]
async fn bad_input_is_reported_by_field() {
    let operator = Api::operator();
    let good = new_workspace(&unique("op"));
    operator.post(PATH, &json!({})).await.expect_fields(400, &["admin", "slug"]);
    operator.post(PATH, &json!({"slug": "x", "admin": []})).await.expect_fields(400, &["admin"]);
    let all = operator.post(PATH, &json!({"slug": "X", "admin": {}})).await;
    all.expect_fields(400, &["email", "password", "slug", "username"]);
    let too_long = "a".repeat(64);
    let reserved = ["api", "localhost", "operator", "www", "xn--a"];
    for slug in
        ["", "1a", "-a", "a-", "A", "a.b", "a_b", "ä", &too_long].into_iter().chain(reserved)
    {
        let mut body = good.clone();
        body["slug"] = json!(slug);
        operator.post(PATH, &body).await.expect_fields(400, &["slug"]);
    }
    for (field, bad) in
        [("username", "root"), ("username", "Boss"), ("email", "nobody"), ("password", "12345")]
    {
        let mut body = good.clone();
        body["admin"][field] = json!(bad);
        operator.post(PATH, &body).await.expect_fields(400, &[field]);
    }
    let mut body = good.clone();
    body["admin"]["password"] = json!("12345");
    let messages =
        operator.post(PATH, &body).await.expect_fields(400, &["password"])["password"].to_string();
    for word in ["at least 8 characters", "too common", "entirely numeric"] {
        assert!(messages.contains(word), "{messages}");
    }
    let mut body = good.clone();
    body["admin"]["password"] = json!("boss@example.com");
    operator.post(PATH, &body).await.expect_fields(400, &["password"]);
    // None of these requests created anything.
    operator.post(PATH, &good).await.expect(201);
}

#[tokio::test]
async fn only_operators_get_in_and_only_on_the_bare_domain() {
    let workspace = Workspace::new().await;
    let operator = Api::operator();
    let single = format!("{PATH}{}/", workspace.slug);
    let named = operator.with_host(&workspace.anonymous.host);
    for (method, path) in [("GET", PATH), ("POST", PATH), ("DELETE", single.as_str())] {
        named.call(method, path).await.expect_detail(404, None);
        operator.anonymous().call(method, path).await.expect_detail(401, None);
        operator
            .with_authorization("Bearer wrong")
            .call(method, path)
            .await
            .expect_detail(403, Some("INVALID_TOKEN"));
        operator
            .with_authorization("Basic eDp5")
            .call(method, path)
            .await
            .expect_detail(403, Some("INVALID_AUTHORIZATION"));
        let user = workspace.admin.with_host("127.0.0.1");
        user.call(method, path).await.expect_detail(403, Some("INVALID_AUTHORIZATION"));
    }
    workspace.admin.get("/api/status/").await.expect(200);
    // The operator token is not a user's credential.
    operator
        .with_host(&workspace.anonymous.host)
        .get("/api/status/")
        .await
        .expect_detail(403, Some("INVALID_AUTHORIZATION"));
}

#[tokio::test]
async fn the_operator_lists_workspaces() {
    let workspace = Workspace::new().await;
    let mut path = format!("{PATH}?page_size=100");
    let found: Value = loop {
        let page = Api::operator().get(&path).await.expect(200);
        let results = page["results"].as_array().unwrap();
        if let Some(found) = results.iter().find(|item| item["slug"] == workspace.slug) {
            break found.clone();
        }
        path = page["next"]
            .as_str()
            .expect("the workspace must be in the list")
            .split_once("127.0.0.1")
            .unwrap()
            .1
            .to_owned();
    };
    assert_eq!((&found["name"], &found["region"]), (&json!(workspace.slug), &json!("local")));
    Api::operator().get(&format!("{PATH}?page=0")).await.expect_fields(400, &["page"]);
}

/// Without a grace period, a deletion purges immediately.
const NO_GRACE: [(&str, &str); 1] = [("WORKSPACE_GRACE_DAYS", "0")];

#[tokio::test]
async fn a_workspace_deleted_now_is_refused_and_purged() {
    let (instance, _state) = Instance::new_with(&NO_GRACE).await;
    let operator = instance.operator();
    let workspace = Workspace::create_with(&operator, "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let command = workspace
        .admin
        .post("/api/events/commands/", &json!({"server": "web-1", "line": "id"}))
        .await
        .expect(201);
    agent.next_command().await;
    let session = workspace.session();
    session.get("/api/status/").await.expect(200);

    let single = format!("{PATH}{}/", workspace.slug);
    let deleted = operator.call("DELETE", &single).await;
    assert_eq!((deleted.status, deleted.text.as_str()), (204, ""));
    operator.call("DELETE", &single).await.expect_detail(404, None);
    let now = format!("{single}?now=true&confirm=acme");
    operator.call("DELETE", &now).await.expect_detail(404, None);
    operator.call("POST", &format!("{single}undelete/")).await.expect_detail(404, None);
    for api in [&workspace.admin, &session, &workspace.anonymous] {
        api.get("/api/status/").await.expect_detail(404, None);
        api.get("/api/events/commands/").await.expect_detail(404, None);
    }
    let login = workspace
        .anonymous
        .post("/api/auth/login/", &json!({"username": "boss", "password": PASSWORD}))
        .await;
    login.expect_detail(404, None);
    // The agent is disconnected and cannot connect again.
    assert_eq!(agent.next().await, Err(Some(1000)));
    agent.report(command["id"].as_str().unwrap(), "ack", None).await.expect_detail(404, None);
    assert_eq!(dial(&agent.api, "/ws/servers/backhaul/").await.err(), Some(404));

    // The slug is free immediately, and the new workspace contains nothing of the old one.
    let again = Workspace::create_with(&operator, &workspace.slug).await;
    assert_eq!(again.admin.get("/api/servers/").await.expect(200)["count"], 0);
    assert_eq!(again.admin.get("/api/events/commands/").await.expect(200)["count"], 0);
    for old in [&workspace.admin, &session] {
        old.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    }
    let old_agent = again.anonymous.with_authorization(&credential(&server));
    old_agent.get("/api/servers/servers/-/").await.expect_detail(403, Some("INVALID_TOKEN"));
    assert_eq!(dial(&old_agent, "/ws/servers/backhaul/").await.err(), Some(403));
}

#[tokio::test]
async fn a_purge_deletes_the_last_row_and_key() {
    let (instance, _state) = Instance::new_with(&NO_GRACE).await;
    let kept = Workspace::create_with(&instance.operator(), "kept").await;
    let gone = Workspace::create_with(&instance.operator(), "gone").await;
    for workspace in [&kept, &gone] {
        for number in 0..3 {
            let server = workspace.server(&format!("web-{number}")).await;
            let mut agent = ScriptedAgent::connect(workspace, &server).await;
            let command = json!({"server": server["id"], "line": "id"});
            workspace.admin.post("/api/events/commands/", &command).await.expect(201);
            agent.next_command().await;
        }
        workspace.session().get("/api/status/").await.expect(200);
    }
    // More rows than one step of the purge deletes.
    let gone_id = "(SELECT id FROM workspaces WHERE slug = 'gone')";
    let many = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900)";
    instance
        .d1(&format!(
            "{many} INSERT INTO sessions SELECT 'x' || i, {gone_id}, 0, 'hash' || i, '', '', '', '', '' FROM n;
             {many} INSERT INTO commands (seq, id, workspace_id, server_id, server_name, shell, line, username, groupname, timeout,
                added_at, scheduled_at, expires_at, state, status_message)
             SELECT ({gone_id} << 40) + 1000 + i, 'x' || i, {gone_id}, 'x' || (i % 10), '', '', '', '', '', 1, '', '', '', 'success', '' FROM n"
        ));
    // Tables that a later migration may add.
    instance.tamper_with_d1(&format!(
        "CREATE TABLE things (id TEXT PRIMARY KEY, workspace_id INTEGER NOT NULL) STRICT;
         CREATE TABLE thing_pairs (
            workspace_id INTEGER NOT NULL REFERENCES workspaces (id), a TEXT NOT NULL, b TEXT NOT NULL,
            PRIMARY KEY (workspace_id, a, b)
         ) STRICT, WITHOUT ROWID;
         INSERT INTO things SELECT slug, id FROM workspaces;
         {many} INSERT INTO things SELECT i, {gone_id} FROM n;
         INSERT INTO thing_pairs SELECT id, 'a', 'b' FROM workspaces;
         {many} INSERT INTO thing_pairs SELECT {gone_id}, i % 2, i FROM n"
    ));
    let gone_number = instance.read_d1(&format!("SELECT CAST({gone_id} AS TEXT)")).remove(0);
    // Records how many rows of the table without a rowid each step deletes. Their number differs
    // from the number of commands.
    instance.tamper_with_d1(&format!(
        "{many} INSERT INTO audit_expired SELECT {gone_id}, i, i, 'x' FROM n;
         CREATE TABLE steps (commands INTEGER PRIMARY KEY, expired INTEGER NOT NULL);
         CREATE TRIGGER audit_expired_out AFTER DELETE ON audit_expired BEGIN
            INSERT INTO steps SELECT count(*), 1 FROM commands WHERE workspace_id = old.workspace_id
            ON CONFLICT DO UPDATE SET expired = expired + 1;
         END"
    ));
    instance.operator().call("DELETE", &format!("{PATH}gone/")).await.expect(204);
    let left = async || {
        let tables = [
            "workspaces",
            "users",
            "sessions",
            "api_tokens",
            "servers",
            "commands",
            "command_counts",
            "command_servers",
            "audit_expired",
            "things",
            "thing_pairs",
        ];
        let counts = tables.map(|table| format!("(SELECT count(*) FROM {table}) AS {table}"));
        instance.d1(&format!("SELECT {}", counts.join(", ")))[0].clone()
    };
    let expected = json!({"workspaces": 1, "users": 1, "sessions": 1, "api_tokens": 1, "servers": 3, "commands": 3,
        "command_counts": 0, "command_servers": 3, "audit_expired": 0, "things": 1, "thing_pairs": 1});
    eventually_within(Duration::from_secs(120), "the purge", || async {
        (left().await == expected).then_some(())
    })
    .await;
    assert_eq!(instance.d1("SELECT expired FROM steps WHERE expired > 200"), json!([]));
    let tables = instance.read_d1(
        "SELECT t.name FROM sqlite_master t JOIN pragma_table_info(t.name) c WHERE t.type = 'table' AND c.name = 'workspace_id'",
    );
    assert!(tables.len() > 20, "{tables:?}");
    for table in tables {
        let rows = instance
            .read_d1(&format!("SELECT 'x' FROM {table} WHERE workspace_id = {gone_number}"));
        assert_eq!(rows.len(), 0, "{table}");
    }
    assert!(instance.kv_entries("gone").is_empty());
    assert_eq!(instance.kv_entries("kept").len(), 1);
    assert_eq!(kept.admin.get("/api/events/commands/").await.expect(200)["count"], 3);
}

#[tokio::test]
async fn an_interrupted_deletion_continues_after_a_restart() {
    let (mut instance, state) = Instance::new_with(&NO_GRACE).await;
    // Killed immediately, during the deletion, and just after the response.
    for (number, delay) in [0, 4, 30].into_iter().enumerate() {
        let slug = format!("gone{number}");
        let workspace = Workspace::create_with(&instance.operator(), &slug).await;
        let server = workspace.server("web-1").await;
        let _agent = ScriptedAgent::connect(&workspace, &server).await;
        let operator = instance.operator();
        let request = operator.request("DELETE", &format!("{PATH}{slug}/"));
        let deletion = tokio::spawn(async move { request.send().await.map(drop) });
        tokio::time::sleep(Duration::from_millis(delay)).await;
        instance.kill().await;
        // The request was sent, and may have got no response.
        deletion.await.unwrap().ok();
        instance = Instance::restart_with(state.path(), &NO_GRACE).await;
        // The first deletion may have succeeded or not. A repetition is valid in both cases.
        let again = instance.operator().call("DELETE", &format!("{PATH}{slug}/")).await;
        assert!([204, 404].contains(&again.status), "{}", again.text);
        workspace.admin.with_url(&instance.url).get("/api/status/").await.expect_detail(404, None);
    }
    eventually_within(Duration::from_secs(120), "the purges", || async {
        let left = instance
            .d1("SELECT (SELECT count(*) FROM workspaces) + (SELECT count(*) FROM servers) AS n");
        (left[0]["n"] == 0).then_some(())
    })
    .await;
}

/// A workspace's entry in the operator's list, or `None`.
async fn listed_workspace(operator: &Api, slug: &str) -> Option<Value> {
    let page = operator.get(&format!("{PATH}?page_size=100")).await.expect(200);
    page["results"].as_array().unwrap().iter().find(|item| item["slug"] == slug).cloned()
}

#[tokio::test]
async fn a_workspace_can_be_undeleted_in_its_grace_period() {
    let (instance, state) = Instance::new().await;
    let operator = instance.operator();
    let workspace = Workspace::create_with(&operator, "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let tomorrow = now().plus_seconds(86_400).to_string();
    let waiting = json!({"server": "web-1", "line": "id", "scheduled_at": tomorrow});
    let waiting = workspace.admin.post("/api/events/commands/", &waiting).await.expect(201);
    let single = format!("{PATH}acme/");

    operator.call("POST", &format!("{single}undelete/")).await.expect_detail(404, None);
    operator.call("DELETE", &format!("{single}?now=maybe")).await.expect_fields(400, &["now"]);
    operator.delete(&single).await.expect(204);
    operator.delete(&single).await.expect_detail(404, None);
    for api in [&workspace.admin, &workspace.session(), &workspace.anonymous] {
        api.get("/api/status/").await.expect_detail(404, None);
        api.post("/api/events/commands/", &json!({"server": "web-1", "line": "id"}))
            .await
            .expect_detail(404, None);
    }
    workspace.anonymous.log_in("boss", PASSWORD).await.expect_detail(404, None);
    assert_eq!(agent.next().await, Err(Some(1000)));
    assert_eq!(dial(&agent.api, "/ws/servers/backhaul/").await.err(), Some(404));
    // The slug is still taken, and the list shows when the purge begins.
    operator.post(PATH, &new_workspace("acme")).await.expect_fields(400, &["slug"]);
    let item = listed_workspace(&operator, "acme").await.unwrap();
    assert!(
        item["deleted_at"].is_string() && item["purge_at"].as_str() > item["deleted_at"].as_str(),
        "{item}"
    );
    // A restart looks for due purges, and this one is not due.
    instance.stop().await;
    let instance = Instance::restart(state.path()).await;
    let operator = instance.operator();

    let undeleted = operator.call("POST", &format!("{single}undelete/")).await.expect(200);
    assert_eq!(undeleted, json!({"slug": "acme"}));
    operator.call("POST", &format!("{single}undelete/")).await.expect_detail(404, None);
    let item = listed_workspace(&operator, "acme").await.unwrap();
    assert_eq!((&item["deleted_at"], &item["purge_at"]), (&Value::Null, &Value::Null));
    let admin = workspace.admin.with_url(&instance.url);
    workspace.session().with_url(&instance.url).get("/api/status/").await.expect(200);
    let path = format!("/api/events/commands/{}/", waiting["id"].as_str().unwrap());
    assert_eq!(admin.get(&path).await.expect(200)["status"]["text"], "Scheduled");
    // The agent can connect again, and runs commands.
    let again = Workspace {
        admin: admin.clone(),
        anonymous: workspace.anonymous.with_url(&instance.url),
        ..workspace
    };
    let mut agent = ScriptedAgent::connect(&again, &server).await;
    let made = admin
        .post("/api/events/commands/", &json!({"server": "web-1", "line": "id"}))
        .await
        .expect(201);
    assert_eq!(agent.next_command().await["id"], made["id"]);

    // A deleted workspace can be purged before the grace period ends, but not in the first ten
    // minutes, and never with one request.
    let purge = format!("{single}?now=true&confirm=acme");
    operator.delete(&purge).await.expect_detail(409, Some("CONFLICT"));
    admin.get("/api/status/").await.expect(200);
    operator.delete(&single).await.expect(204);
    let deleted_at = |seconds: i64| {
        let moment = now().plus_seconds(-seconds);
        instance.tamper_with_d1(&format!("UPDATE workspaces SET deleted_at = '{moment}'"));
    };
    for (query, seconds) in [("", 0), ("&confirm=", 601), ("&confirm=acm", 601)] {
        deleted_at(seconds);
        let refused = operator.delete(&format!("{single}?now=true{query}")).await;
        refused.expect_fields(400, &["confirm"]);
    }
    for seconds in [0, 590] {
        deleted_at(seconds);
        operator.delete(&purge).await.expect_detail(409, Some("CONFLICT"));
    }
    assert!(listed_workspace(&operator, "acme").await.is_some());
    let nothing = format!("{PATH}nothing/?now=true&confirm=nothing");
    operator.delete(&nothing).await.expect_detail(404, None);
    deleted_at(601);
    operator.delete(&purge).await.expect(204);
    operator.call("POST", &format!("{single}undelete/")).await.expect_detail(404, None);
    assert_eq!(listed_workspace(&operator, "acme").await, None);
    operator.post(PATH, &new_workspace("acme")).await.expect(201);
    let events = operator.get("/operator/audit/events/?page_size=100").await.expect(200);
    let actions: Vec<_> =
        events["results"].as_array().unwrap().iter().map(|event| event["action"].clone()).collect();
    let expected = ["create", "delete", "delete", "undelete", "delete", "create"];
    assert_eq!(json!(actions), json!(expected.map(|action| format!("workspace.{action}"))));
}

#[tokio::test]
async fn delivery_stops_before_the_objects_are_suspended() {
    let (instance, _state) = Instance::new().await;
    let mut agents = Vec::new();
    let mut workspaces = Vec::new();
    for slug in ["acme", "other"] {
        let workspace = Workspace::create_with(&instance.operator(), slug).await;
        let server = workspace.server("web-1").await;
        agents.push(ScriptedAgent::connect(&workspace, &server).await);
        workspaces.push(workspace);
    }
    let mut made = Vec::new();
    for (workspace, seconds) in workspaces.iter().zip([10, 12]) {
        let at = now().plus_seconds(seconds).to_string();
        let body = json!({"server": "web-1", "line": "id", "scheduled_at": at});
        made.push(workspace.admin.post("/api/events/commands/", &body).await.expect(201));
    }
    // Changes D1 only, as if the response had been sent before the object was suspended.
    let delete = |moment: &str| {
        format!(
            "UPDATE workspaces SET deleted_at = {moment}, purge_at = {moment} WHERE slug = 'acme'"
        )
    };
    instance.tamper_with_d1(&delete("'2999-01-01T00:00:00.000000+00:00'"));
    assert_eq!(agents[1].next_command().await["id"], made[1]["id"]);
    assert!(agents[0].stays_silent().await);
    // The command was not cancelled: after an undeletion it is delivered.
    instance.tamper_with_d1(&delete("NULL"));
    assert_eq!(agents[0].next_command().await["id"], made[0]["id"]);
}

#[tokio::test]
async fn a_failing_object_does_not_block_the_deletion() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let servers = [workspace.server("web-1").await, workspace.server("web-2").await];
    for server in &servers {
        ScriptedAgent::connect(&workspace, server).await;
    }
    instance.stop().await;
    // The object of the first server cannot store yet that it is suspended.
    let broken = servers[0]["id"].as_str().unwrap();
    let trigger = format!(
        "CREATE TRIGGER broken BEFORE INSERT ON server
            WHEN new.document ->> '$.is_suspended' AND new.document ->> '$.identity.server' = '{broken}'
         BEGIN SELECT RAISE(ABORT, 'broken for a test'); END"
    );
    change_objects(state.path(), "ServerLink", &trigger);
    let instance = Instance::restart(state.path()).await;
    let api = workspace.anonymous.with_url(&instance.url);
    let mut agent = ScriptedAgent::connect_to(
        &api.with_authorization(&credential(&servers[1])),
        "/ws/servers/backhaul/",
    )
    .await;
    instance.operator().delete(&format!("{PATH}acme/")).await.expect(204);
    assert_eq!(agent.next().await, Err(Some(1000)));
    eventually("the log line of the failing object", || async {
        let log = std::fs::read_to_string(instance.state.join("worker.log")).unwrap();
        log.lines()
            .any(|line| line.contains("object_not_called") && line.contains(broken))
            .then_some(())
    })
    .await;
    // The service retries until the object succeeds.
    instance.tamper_with_objects("ServerLink", "DROP TRIGGER IF EXISTS broken");
    let suspended = || {
        instance.read_objects(
            "ServerLink",
            "SELECT CAST(document ->> '$.is_suspended' AS TEXT) FROM server",
        )
    };
    eventually_within(Duration::from_secs(180), "both objects to be suspended", || async {
        (suspended() == ["1", "1"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_purge_begins_after_the_grace_period() {
    let (instance, state) = Instance::new_with(&[("WORKSPACE_GRACE_DAYS", "a week")]).await;
    for slug in ["due", "not-due", "live"] {
        Workspace::create_with(&instance.operator(), slug).await.server("web-1").await;
    }
    // With an invalid setting, data is kept as well.
    for slug in ["due", "not-due"] {
        instance.operator().delete(&format!("{PATH}{slug}/")).await.expect(204);
    }
    instance.stop().await;
    let past =
        "UPDATE workspaces SET purge_at = '2026-01-01T00:00:00.000000+00:00' WHERE slug = 'due'";
    change_d1(state.path(), past);
    let instance = Instance::restart_with(state.path(), &[("WORKSPACE_GRACE_DAYS", "0")]).await;
    let slugs = || {
        instance.read_d1(
            "SELECT w.slug FROM workspaces w JOIN servers s ON s.workspace_id = w.id ORDER BY 1",
        )
    };
    eventually("the purge", || async { (slugs() == ["live", "not-due"]).then_some(()) }).await;
    // Without a grace period, a deletion purges immediately.
    instance.operator().delete(&format!("{PATH}live/")).await.expect(204);
    eventually("the purge", || async { (slugs() == ["not-due"]).then_some(()) }).await;
}

#[tokio::test]
async fn wrong_operator_tokens_are_counted_and_recorded() {
    let (instance, _state) = Instance::new().await;
    let operator = instance.operator();
    let guess = |number: usize| {
        let guess =
            operator.with_authorization(&format!("Bearer {}", format!("guess-{number}").repeat(6)));
        guess.from_address(&format!("192.0.2.{number}"))
    };
    for number in 0..10 {
        guess(number).get(PATH).await.expect_detail(403, Some("INVALID_TOKEN"));
    }
    for number in 10..15 {
        let refused = guess(number).delete(&format!("{PATH}acme/")).await;
        refused.expect_detail(429, Some("THROTTLED"));
        assert!((1..=60).contains(&refused.header("Retry-After").parse::<u64>().unwrap()));
    }
    // Wrong tokens do not lock out the operator.
    operator.get(PATH).await.expect(200);
    let path = "/operator/audit/events/?page_size=100&action=operator.refuse";
    let events = eventually("the events", || async {
        let events = operator.get(path).await.expect(200)["results"].as_array().unwrap().clone();
        (events.len() >= 11).then_some(events)
    })
    .await;
    assert_eq!(events.len(), 11, "requests beyond the limit share one event");
    assert!(
        events
            .iter()
            .all(|event| event["outcome"] == "denied" && event["actor"]["type"] == "anonymous")
    );
    let has = |ip: &str, code: &str| {
        events.iter().any(|event| event["remote_ip"] == ip && event["details"]["code"] == code)
    };
    assert!(has("192.0.2.0", "INVALID_TOKEN") && has("192.0.2.10", "THROTTLED"), "{events:?}");
}
