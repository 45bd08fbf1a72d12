//! Labels of servers, the filter by them, and access control lists with a selector (contract 12 and
//! 4.12).

use farhand_domain::fleet::labels::Labels;
use farhand_domain::fleet::selector::Selector;
use farhand_tests::agents::ScriptedAgent;
use farhand_tests::client::{encoded, unique};
use farhand_tests::commands::wait_for_status;
use farhand_tests::people::{COMMANDS, SERVERS, column, item_path, keys};
use farhand_tests::{Api, Dice, Instance, Person, Workspace};
use serde_json::{Value, json};

const TOKENS: &str = "/api/servers/registration-tokens/";
const REGISTER: &str = "/api/servers/servers/register/";
const API_TOKENS: &str = "/api/auth/tokens/";
const DENIED: Option<&str> = Some("PERMISSION_DENIED");
const REFUSED: Option<&str> = Some("API_TOKEN_ACL_NOT_ALLOWED");

async fn labelled(workspace: &Workspace, name: &str, labels: Value) -> Value {
    workspace.admin.post(SERVERS, &json!({"name": name, "labels": labels})).await.expect(201)
}

/// The latest successful event of an action.
async fn event(workspace: &Workspace, action: &str) -> Value {
    let path = format!("/api/audit/events/?action={action}&outcome=success");
    workspace.admin.get(&path).await.expect(200)["results"][0].clone()
}

/// The names of the servers that a filter finds.
async fn found(api: &Api, selector: &str) -> Vec<Value> {
    let query = encoded(&[("label", selector.to_owned()), ("ordering", "name".to_owned())]);
    let list = api.get(&format!("{SERVERS}?{query}")).await.expect(200);
    let names = column(&list, "name");
    assert_eq!(list["count"], names.len(), "{selector}");
    names
}

#[tokio::test]
async fn labels_are_shown_and_changed_as_a_whole() {
    let workspace = Workspace::new().await;
    let plain = workspace.server("plain").await;
    assert_eq!(plain["labels"], json!({}));
    assert_eq!(event(&workspace, "server.create").await["details"].get("labels"), None);
    let labels = json!({"env": "prod", "app.kubernetes.io/name": "web", "empty": ""});
    let server = labelled(&workspace, "web-1", labels.clone()).await;
    assert_eq!(server["labels"], labels);
    assert_eq!(event(&workspace, "server.create").await["details"]["labels"], labels);
    let path = item_path(SERVERS, &server);
    assert_eq!(workspace.admin.get(&path).await.expect(200)["labels"], labels);
    let list = workspace.admin.get("/api/servers/?name=web-1").await.expect(200);
    assert_eq!(list["results"][0]["labels"], labels);

    // A change replaces all labels, and its event has the old and the new labels.
    let changed = workspace.admin.patch(&path, &json!({"labels": {"env": "test"}})).await;
    assert_eq!(changed.expect(200)["labels"], json!({"env": "test"}));
    let details = event(&workspace, "server.update").await["details"].clone();
    assert_eq!(
        details,
        json!({"fields": ["labels"], "labels": {"env": "test"}, "old": {"labels": labels}})
    );
    // Changes of other fields keep the labels, and unchanged labels are no change.
    let same = json!({"name": "web-2", "labels": {"env": "test"}});
    let renamed = workspace.admin.patch(&path, &same).await.expect(200);
    assert_eq!(renamed["labels"], json!({"env": "test"}));
    assert_eq!(event(&workspace, "server.update").await["details"]["fields"], json!(["name"]));
    // PUT without labels removes the labels.
    let bare = workspace.admin.put(&path, &json!({"name": "web-2"})).await.expect(200);
    assert_eq!(bare["labels"], json!({}));
    let details = event(&workspace, "server.update").await["details"].clone();
    assert_eq!(
        (&details["labels"], &details["old"]["labels"]),
        (&json!({}), &json!({"env": "test"}))
    );
    let whole = json!({"name": "web-2", "labels": {"a": "1"}});
    assert_eq!(workspace.admin.put(&path, &whole).await.expect(200)["labels"], whole["labels"]);
    // A client can send back the server that it read.
    let shown = workspace.admin.get(&path).await.expect(200);
    assert_eq!(workspace.admin.put(&path, &shown).await.expect(200)["labels"], whole["labels"]);
}

#[tokio::test]
async fn bad_labels_change_nothing() {
    let workspace = Workspace::new().await;
    let server = labelled(&workspace, "web-1", json!({"env": "prod"})).await;
    let path = item_path(SERVERS, &server);
    let many: Value =
        (0..21).map(|n| (format!("k{n}"), json!(""))).collect::<serde_json::Map<_, _>>().into();
    for bad in [
        json!(null),
        json!("env=prod"),
        json!([{"env": "prod"}]),
        json!({"Env": "prod"}),
        json!({"": "prod"}),
        json!({"env-": "prod"}),
        json!({"a".repeat(64): "prod"}),
        json!({"env": "a b"}),
        json!({"env": "x".repeat(64)}),
        json!({"env": 1}),
        json!({"env": null}),
        many,
    ] {
        let body = json!({"name": "web-2", "labels": bad});
        workspace.admin.post(SERVERS, &body).await.expect_fields(400, &["labels"]);
        workspace.admin.put(&path, &body).await.expect_fields(400, &["labels"]);
        workspace.admin.patch(&path, &body).await.expect_fields(400, &["labels"]);
        workspace.admin.post(TOKENS, &body).await.expect_fields(400, &["labels"]);
    }
    let bad = json!({"labels": {"Env": "prod", "env": "a b"}});
    let errors = workspace.admin.patch(&path, &bad).await.expect_fields(400, &["labels"]);
    let errors: Vec<_> =
        errors["labels"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert!(
        errors.len() == 2 && errors[0].contains("Env") && errors[1].contains("env"),
        "{errors:?}"
    );
    let shown = workspace.admin.get(&path).await.expect(200);
    assert_eq!((&shown["name"], &shown["labels"]), (&json!("web-1"), &json!({"env": "prod"})));
    let most: Value =
        (0..20).map(|n| (format!("k{n}"), json!(""))).collect::<serde_json::Map<_, _>>().into();
    workspace.admin.patch(&path, &json!({"labels": most})).await.expect(200);
}

#[tokio::test]
async fn only_staff_and_superusers_change_them() {
    let workspace = Workspace::new().await;
    let server = labelled(&workspace, "web-1", json!({"env": "prod"})).await;
    let path = item_path(SERVERS, &server);
    let staff = Person::staff(&workspace, "steve").await;
    let (owner, member) =
        (Person::new(&workspace, "owner").await, Person::new(&workspace, "member").await);
    owner.own(&workspace, &server).await;
    workspace.add_member(&workspace.group("ops", &[&server]).await, &member, "owner").await;
    let other = json!({"labels": {"env": "test"}});
    let own = &owner.api;
    own.patch(&path, &other).await.expect_detail(403, DENIED);
    own.put(&path, &json!({"name": "web-1", "labels": {}})).await.expect_detail(403, DENIED);
    member.api.patch(&path, &other).await.expect_detail(403, DENIED);
    assert_eq!(own.get(&path).await.expect(200)["labels"], json!({"env": "prod"}));
    // An unchanged value is no change. A PUT without labels by the owner keeps the labels.
    let same = json!({"name": "web-2", "labels": {"env": "prod"}});
    assert_eq!(own.patch(&path, &same).await.expect(200)["name"], "web-2");
    let kept = own.put(&path, &json!({"name": "web-3"})).await.expect(200);
    assert_eq!(kept["labels"], json!({"env": "prod"}));
    assert_eq!(staff.api.patch(&path, &other).await.expect(200)["labels"], other["labels"]);
    // An agent's report does not change the labels.
    let agent = workspace.anonymous.with_authorization(&farhand_tests::agents::credential(&server));
    let report = json!({"version": "1", "labels": {"env": "mine"}});
    agent.send_json("PATCH", "/api/servers/servers/-/sync/", &report).await.expect(200);
    assert_eq!(own.get(&path).await.expect(200)["labels"], other["labels"]);
}

#[tokio::test]
async fn two_changes_at_once_have_the_right_old_values() {
    let workspace = Workspace::new().await;
    let server = labelled(&workspace, "web-1", json!({"n": "0"})).await;
    let path = item_path(SERVERS, &server);
    let change = |n: usize| {
        let (admin, path) = (workspace.admin.clone(), path.clone());
        async move { admin.patch(&path, &json!({"labels": {"n": n.to_string()}})).await }
    };
    let replies = futures_util::future::join_all((1..=5).map(change)).await;
    assert!(replies.iter().all(|reply| reply.status == 200));
    let path = format!(
        "/api/audit/events/?action=server.update&object={}",
        server["id"].as_str().unwrap()
    );
    let events = workspace.admin.get(&path).await.expect(200);
    let mut chain: Vec<_> = column(&events, "details")
        .into_iter()
        .map(|details| (details["old"]["labels"]["n"].clone(), details["labels"]["n"].clone()))
        .collect();
    chain.reverse();
    assert_eq!(chain.len(), 5);
    assert_eq!(chain[0].0, "0");
    for pair in chain.windows(2) {
        assert_eq!(pair[0].1, pair[1].0, "{chain:?}");
    }
}

#[tokio::test]
async fn the_filter_finds_what_a_selector_matches() {
    let workspace = Workspace::new().await;
    let mut dice = Dice(20_261_123);
    let (keys, values) = (["env", "a.b/c", "0", "in"], ["", "prod", "1", "X_y-z."]);
    let mut servers = Vec::new();
    for n in 0..12 {
        let labels: Labels = (0..dice.roll(4))
            .map(|_| ((*dice.pick(&keys)).to_owned(), (*dice.pick(&values)).to_owned()))
            .collect();
        servers.push((labelled(&workspace, &format!("web-{n:02}"), json!(labels)).await, labels));
    }
    let member = Person::new(&workspace, "member").await;
    let accessible: Vec<_> = servers.iter().step_by(2).map(|(server, _)| server).collect();
    workspace.add_member(&workspace.group("ops", &accessible).await, &member, "member").await;
    let mut filled = 0;
    for round in 0..40 {
        let terms: Vec<String> = (0..1 + dice.roll(2))
            .map(|_| {
                let (key, one) = (*dice.pick(&keys), *dice.pick(&values));
                let two = *dice.pick(&values[1..]);
                match dice.roll(6) {
                    0 => key.to_owned(),
                    1 => format!("!{key}"),
                    2 => format!("{key} = {one}"),
                    3 => format!("{key}!={one}"),
                    4 => format!("{key} in ({one},{two})"),
                    _ => format!("{key} notin ({two}, {one})"),
                }
            })
            .collect();
        let text = terms.join(",");
        let selector: Selector = text.parse().unwrap();
        for (api, step) in [(&workspace.admin, 1), (&member.api, 2)] {
            let expected: Vec<_> = servers
                .iter()
                .step_by(step)
                .filter(|(_, labels)| selector.matches(labels))
                .map(|(server, _)| server["name"].clone())
                .collect();
            filled += usize::from(!expected.is_empty());
            assert_eq!(found(api, &text).await, expected, "round {round}: {text}");
        }
    }
    assert!(filled > 30, "{filled}");
    // The filter works together with other filters, and the links to other pages keep it.
    let page = workspace.admin.get(&format!("{SERVERS}?label=%21x&page_size=5")).await.expect(200);
    assert_eq!(page["count"], 12);
    let next = page["next"].as_str().unwrap();
    assert!(next.contains("label=%21x"), "{next}");
    let one = workspace.admin.get(&format!("{SERVERS}?label=%21x&name=web-03")).await.expect(200);
    assert_eq!(column(&one, "name"), ["web-03"]);
}

#[tokio::test]
async fn a_selector_that_is_wrong_is_refused_with_its_position() {
    let workspace = Workspace::new().await;
    for (selector, message) in [
        ("", "At position 1: the selector is empty. Name a label, such as env or env=prod."),
        ("env=prod,", "At position 10: a term is missing at the end."),
        ("env,,x", "At position 5: a term is missing before the comma."),
        ("env in ()", "At position 9: the list has no value."),
        ("env > 1", "At position 5: < and > are not supported."),
        ("env prod", "At position 5: expected =, ==, !=, in, notin, a comma or the end."),
    ] {
        let query = encoded(&[("label", selector.to_owned())]);
        for path in ["/api/servers/", SERVERS] {
            let errors = workspace.admin.get(&format!("{path}?{query}")).await;
            assert_eq!(errors.expect_fields(400, &["label"])["label"], json!([message]));
        }
        let body = json!({"name": "x", "expires_at": null, "acl": {"selector": selector}});
        let errors = workspace.session().post(API_TOKENS, &body).await.expect_fields(400, &["acl"]);
        assert_eq!(errors["acl"], json!([format!("selector: {message}")]));
    }
}

#[tokio::test]
async fn the_filter_reads_each_server_a_bounded_number_of_times() {
    const MANY: u64 = 5_000;
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let session = workspace.session();
    let body = |acl: Value| json!({"name": "x", "expires_at": null, "acl": acl});
    let token = session.post(API_TOKENS, &body(json!({"selector": "env=prod"}))).await.expect(201);
    let limited = workspace.anonymous.with_token(token["key"].as_str().unwrap());
    instance.tamper_with_d1(&format!(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {MANY})
         INSERT INTO servers (id, workspace_id, name, agent_key_hash, added_at, updated_at, labels)
         SELECT printf('00000000-0000-7000-8000-%012x', n), (SELECT id FROM workspaces WHERE slug = 'acme'), 'web-' || n, '',
            '2026-01-01T00:00:00.000000+00:00', '2026-01-01T00:00:00.000000+00:00',
            json_object('env', iif(n % 10, 'test', 'prod'), 'team', 'a', 'role', 'web') FROM numbers"
    ));
    let rows = async |api: &Api, path: &str, count: u64| {
        let request = unique("reads");
        let reply =
            api.send(api.request("GET", path).header("X-Request-Id", &request)).await.expect(200);
        if count > 0 {
            assert_eq!(reply["count"], count, "{path}");
        }
        let line = instance.request_log_line(&request).await;
        println!("{path}: {line}");
        line["rows_read"].as_u64().unwrap()
    };
    let filtered = rows(&workspace.admin, &format!("{SERVERS}?label=env%3Dprod"), MANY / 10).await;
    assert!(filtered <= 5 * MANY, "{filtered}");
    let by_token = rows(&limited, SERVERS, MANY / 10).await;
    assert!(by_token <= 8 * MANY, "{by_token}");
    // One server costs the same in any workspace.
    let one = rows(&limited, &format!("{SERVERS}00000000-0000-7000-8000-00000000000a/"), 0).await;
    assert!(one <= 20, "{one}");
}

#[tokio::test]
async fn a_registration_token_gives_labels_and_allows_keys() {
    let workspace = Workspace::new().await;
    let body = json!({"name": "x", "labels": {"env": "prod"}, "label_keys": ["role", "b", "role"], "uses": 3});
    let token = workspace.admin.post(TOKENS, &body).await.expect(201);
    assert_eq!(token["labels"], body["labels"]);
    assert_eq!(token["label_keys"], json!(["b", "role"]));
    let details = event(&workspace, "registration_token.create").await["details"].clone();
    assert_eq!(
        (&details["labels"], &details["label_keys"]),
        (&token["labels"], &token["label_keys"])
    );
    let shown = workspace.admin.get(&item_path(TOKENS, &token)).await.expect(200);
    assert_eq!((&shown["labels"], &shown["label_keys"]), (&token["labels"], &token["label_keys"]));

    let host = workspace.anonymous.with_token(token["key"].as_str().unwrap());
    let register = async |name: &str, labels: Value| {
        host.post(REGISTER, &json!({"name": name, "platform": "debian", "labels": labels})).await
    };
    let labels_of = async |made: &Value| {
        workspace.admin.get(&item_path(SERVERS, made)).await.expect(200)["labels"].clone()
    };
    let made = register("web-1", json!({"role": "web", "b": ""})).await.expect(201);
    assert_eq!(keys(&made), ["id", "key", "name"]);
    let labels = json!({"env": "prod", "role": "web", "b": ""});
    assert_eq!(labels_of(&made).await, labels);
    assert_eq!(event(&workspace, "server.register").await["details"]["labels"], labels);
    // Staff can change these labels like all other labels. The event has the labels from the
    // registration as the old labels.
    let path = item_path(SERVERS, &made);
    workspace.admin.patch(&path, &json!({"labels": {"env": "test"}})).await.expect(200);
    assert_eq!(event(&workspace, "server.update").await["details"]["old"]["labels"], labels);
    let made = register("web-2", json!({})).await.expect(201);
    assert_eq!(labels_of(&made).await, json!({"env": "prod"}));

    // Other keys are refused, including keys that the token itself sets. A refused registration
    // does not count as a use of the token.
    for (labels, key) in [
        (json!({"env": "test"}), "env"),
        (json!({"env": "prod"}), "env"),
        (json!({"team": "a", "role": "web"}), "team"),
    ] {
        let refused = register("web-3", labels).await;
        let detail = format!("The registration token's label_keys do not allow the label {key}.");
        assert_eq!((refused.status, refused.json()["detail"].clone()), (403, json!(detail)));
    }
    for bad in [json!({"Role": "web"}), json!({"role": "a b"}), json!("role=web"), json!(null)] {
        register("web-3", bad).await.expect_fields(400, &["labels"]);
    }
    assert_eq!(workspace.admin.get(&item_path(TOKENS, &token)).await.expect(200)["uses"], 1);
    assert_eq!(workspace.admin.get(SERVERS).await.expect(200)["count"], 2);

    // By default, agents cannot set labels.
    let plain = workspace.admin.post(TOKENS, &json!({"name": "y"})).await.expect(201);
    let host = workspace.anonymous.with_token(plain["key"].as_str().unwrap());
    let body = json!({"name": "web-4", "labels": {"role": "web"}});
    host.post(REGISTER, &body).await.expect_detail(403, DENIED);
    let made = host.post(REGISTER, &json!({"name": "web-4", "labels": {}})).await.expect(201);
    assert_eq!(labels_of(&made).await, json!({}));
    assert_eq!(event(&workspace, "server.register").await["details"].get("labels"), None);
    for (body, field) in [
        (json!({"label_keys": ["A"]}), "label_keys"),
        (json!({"label_keys": "role"}), "label_keys"),
        (json!({"label_keys": null}), "label_keys"),
        (json!({"label_keys": ["env"], "labels": {"env": "x"}}), "label_keys"),
    ] {
        let mut body = body;
        body["name"] = json!("z");
        workspace.admin.post(TOKENS, &body).await.expect_fields(400, &[field]);
    }
}

/// Two servers, `web-1` with `env=prod` and `web-2` with `env=test`.
async fn two_servers(workspace: &Workspace) -> (Value, Value) {
    (
        labelled(workspace, "web-1", json!({"env": "prod"})).await,
        labelled(workspace, "web-2", json!({"env": "test"})).await,
    )
}

#[tokio::test]
async fn a_token_with_a_selector_reaches_the_servers_that_match() {
    let workspace = Workspace::new().await;
    let (one, two) = two_servers(&workspace).await;
    let owner = Person::new(&workspace, "owner").await;
    owner.own(&workspace, &one).await;
    owner.own(&workspace, &two).await;
    let queue = |server: &str| json!({"server": server, "line": "id", "on_offline": "queue"});
    let mut commands = Vec::new();
    for server in ["web-1", "web-2"] {
        commands.push(workspace.admin.post(COMMANDS, &queue(server)).await.expect(201));
    }
    let staff_token = workspace.limited(&json!({"selector": "env=prod"})).await;
    let both = workspace.limited(&json!({"selector": "env", "servers": [one["id"]]})).await;
    let body = json!({"name": "x", "expires_at": null, "acl": {"selector": "env in (prod)"}});
    let made = owner.api.post(API_TOKENS, &body).await.expect(201);
    assert_eq!(made["acl"], json!({"selector": "env=prod"}), "the canonical form");
    let owners = workspace.anonymous.with_token(made["key"].as_str().unwrap());
    for (who, token) in [("staff", &staff_token), ("both", &both), ("owner", &owners)] {
        let list = token.get(SERVERS).await.expect(200);
        assert_eq!(
            (column(&list, "name"), &list["count"]),
            (vec![json!("web-1")], &json!(1)),
            "{who}"
        );
        token.get(&item_path(SERVERS, &one)).await.expect(200);
        token.get(&item_path(SERVERS, &two)).await.expect_detail(404, None);
        let list = token.get(COMMANDS).await.expect(200);
        let shown = column(&list, "id");
        assert!(shown.contains(&commands[0]["id"]) && !shown.contains(&commands[1]["id"]), "{who}");
        assert_eq!(list["count"], shown.len(), "{who}");
        token.get(&item_path(COMMANDS, &commands[0])).await.expect(200);
        let hidden = item_path(COMMANDS, &commands[1]);
        token.get(&hidden).await.expect_detail(404, Some("COMMAND_NOT_FOUND"));
        for part in ["chunks/", "output/"] {
            token
                .get(&format!("{hidden}{part}"))
                .await
                .expect_detail(404, Some("COMMAND_NOT_FOUND"));
        }
        token
            .post(&format!("{hidden}cancel/"), &json!({}))
            .await
            .expect_detail(404, Some("COMMAND_NOT_FOUND"));
        token.post(COMMANDS, &queue("web-1")).await.expect(201);
        for server in ["web-2", "nowhere"] {
            token.post(COMMANDS, &queue(server)).await.expect_detail(403, REFUSED);
        }
    }
    // A change of labels takes effect at the next request.
    let path = item_path(SERVERS, &two);
    workspace.admin.patch(&path, &json!({"labels": {"env": "prod"}})).await.expect(200);
    staff_token.get(&path).await.expect(200);
    staff_token.get(&item_path(COMMANDS, &commands[1])).await.expect(200);
    workspace.admin.patch(&path, &json!({"labels": {}})).await.expect(200);
    staff_token.get(&path).await.expect_detail(404, None);
    // A deleted server has no labels, and matches no selector, not even `!env`.
    let without = workspace.limited(&json!({"selector": "!env"})).await;
    without.get(&item_path(COMMANDS, &commands[1])).await.expect(200);
    workspace.admin.delete(&path).await.expect(204);
    without
        .get(&item_path(COMMANDS, &commands[1]))
        .await
        .expect_detail(404, Some("COMMAND_NOT_FOUND"));
    assert_eq!(without.get(COMMANDS).await.expect(200)["count"], 0);
}

#[tokio::test]
async fn the_selector_is_checked_again_before_a_waiting_command_is_delivered() {
    let workspace = Workspace::new().await;
    let (server, other) = two_servers(&workspace).await;
    let token = workspace.limited(&json!({"selector": "env=prod"})).await;
    let queue = json!({"server": "web-1", "line": "id", "on_offline": "queue"});
    let first = token.post(COMMANDS, &queue).await.expect(201);
    let of_admin = workspace.admin.post(COMMANDS, &queue).await.expect(201);
    // While the commands wait, the server gets other labels.
    let path = item_path(SERVERS, &server);
    workspace.admin.patch(&path, &json!({"labels": {"env": "test"}})).await.expect(200);
    token.post(COMMANDS, &queue).await.expect_detail(403, REFUSED);
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let order = agent.next_command().await;
    assert_eq!(order["id"], of_admin["id"], "the token's command is not delivered");
    let ended = wait_for_status(&workspace.admin, first["id"].as_str().unwrap(), "Cancelled").await;
    assert_eq!(ended["delivered_at"], Value::Null);
    let message = ended["status"]["message"].as_str().unwrap();
    assert!(message.contains("access control list"), "{message}");

    // Commands are delivered if the server matches: after its labels are set back, and after a
    // label is added that the selector does not mention.
    workspace.admin.patch(&path, &json!({"labels": {"env": "prod"}})).await.expect(200);
    let made = token.post(COMMANDS, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    assert_eq!(agent.next_command().await["id"], made["id"]);
    let path = item_path(SERVERS, &other);
    workspace.admin.patch(&path, &json!({"labels": {"env": "prod", "a": "b"}})).await.expect(200);
    let queue = json!({"server": "web-2", "line": "id", "on_offline": "queue"});
    let made = token.post(COMMANDS, &queue).await.expect(201);
    let mut agent = ScriptedAgent::connect(&workspace, &other).await;
    assert_eq!(agent.next_command().await["id"], made["id"]);
}

#[tokio::test]
async fn a_check_says_that_the_selector_does_not_match() {
    let workspace = Workspace::new().await;
    let (one, _) = two_servers(&workspace).await;
    let check = async |api: &Api, acl: Value, server: &str| {
        let mut body = json!({"server": server, "line": "id"});
        if !acl.is_null() {
            body["acl"] = acl;
        }
        api.post("/api/auth/acl-check/", &body).await.expect(200)
    };
    let admin = workspace.session();
    let allowed = json!({"allowed": true, "reason": null});
    let prod = json!({"selector": "env=prod"});
    assert_eq!(check(&admin, prod.clone(), "web-1").await, allowed);
    let refused = check(&admin, prod.clone(), "web-2").await;
    let reason =
        "The access control list does not allow this: selector does not match the server's labels.";
    assert_eq!(refused, json!({"allowed": false, "reason": reason}));
    // With both fields, the server must match both.
    let both = json!({"selector": "env", "servers": [one["id"]]});
    assert_eq!(check(&admin, both.clone(), "web-1").await, allowed);
    let reason = check(&admin, both, "web-2").await["reason"].clone();
    assert!(reason.as_str().unwrap().contains("servers does not name"), "{reason}");
    // With the token's own list, a server that it cannot access is unknown.
    let token = workspace.limited(&prod).await;
    assert_eq!(check(&token, Value::Null, "web-1").await, allowed);
    let reason = check(&token, Value::Null, "web-2").await["reason"].clone();
    assert!(reason.as_str().unwrap().contains("no such server"), "{reason}");
}

#[tokio::test]
async fn a_changed_list_takes_its_selector_with_it() {
    let workspace = Workspace::new().await;
    two_servers(&workspace).await;
    let body = json!({"name": "x", "expires_at": null, "acl": {"selector": "env=prod"}});
    let made = workspace.session().post(API_TOKENS, &body).await.expect(201);
    let token = workspace.anonymous.with_token(made["key"].as_str().unwrap());
    let path = item_path(API_TOKENS, &made);
    let names =
        async || column(&token.get(&format!("{SERVERS}?ordering=name")).await.expect(200), "name");
    assert_eq!(names().await, ["web-1"]);
    for (change, expected) in [
        (json!({"acl": {"selector": "env!=prod"}}), &["web-2"][..]),
        (json!({"name": "y"}), &["web-2"]),
        (json!({"acl": {}}), &["web-1", "web-2"]),
        (json!({"acl": {"selector": "env in (prod,test)"}}), &["web-1", "web-2"]),
        (json!({"acl": {"selector": "none"}}), &[]),
        (json!({"acl": null}), &["web-1", "web-2"]),
    ] {
        workspace.session().patch(&path, &change).await.expect(200);
        assert_eq!(names().await, expected, "{change}");
    }
}
