//! The audit log (docs/audit.md): what leaves an event, what does not, and that whoever changes the log afterwards is found out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use farhand_domain::audit::{Head, Row, seal};
use farhand_tests::client::{PASSWORD, encoded, unique};
use farhand_tests::instance::{change_d1, change_objects, delay_alarms};
use farhand_tests::mail::{key_of, mails_to, reset_link};
use farhand_tests::people::{COMMANDS, GROUPS, MEMBERSHIPS, NO_UUID, SERVERS, USERS, at, group_path, keys};
use farhand_tests::{Api, Dice, Instance, Person, ScriptedAgent, Workspace, eventually, now};
use futures_util::future;
use serde_json::{Value, json};

use crate::api::events::commands::{id_of, path_of};
use crate::d1_calls::send;

const EVENTS: &str = "/api/audit/events/";
const VERIFY: &str = "/api/audit/verify/";
const TOKENS: &str = "/api/auth/tokens/";
/// How many rows of D1 are read for each event that is sealed.
const SEALING_READS: i64 = 5;
const REGISTRATION_TOKENS: &str = "/api/servers/registration-tokens/";

/// The events of a workspace that a query asks for, the oldest first, from all pages.
async fn events(api: &Api, path: &str, query: &[(&str, String)]) -> Vec<Value> {
    // One that comes meanwhile moves others to the next page.
    eventually("pages that fit together", || async {
        let found = events_of_pages(api, path, query).await?;
        let ids: BTreeSet<_> = found.iter().map(|event| event["id"].as_str().unwrap().to_owned()).collect();
        (ids.len() == found.len()).then_some(found)
    })
    .await
}

async fn events_of_pages(api: &Api, path: &str, query: &[(&str, String)]) -> Option<Vec<Value>> {
    let (mut found, mut page) = (Vec::new(), 1);
    loop {
        let mut query = query.to_vec();
        query.extend([("page_size", "100".to_owned()), ("page", page.to_string())]);
        let list = api.get(&format!("{path}?{}", encoded(&query))).await.expect(200);
        found.extend(list["results"].as_array().unwrap().clone());
        if list["next"].is_null() {
            found.reverse();
            return (list["count"] == found.len()).then_some(found);
        }
        page += 1;
    }
}

/// The events of some actions, once there are so many.
async fn events_of(api: &Api, actions: &[&str], number: usize) -> Vec<Value> {
    eventually("the events", || async {
        let mut found = events(api, EVENTS, &[]).await;
        found.retain(|event| actions.contains(&event["action"].as_str().unwrap()));
        assert!(found.len() <= number, "{found:#?}");
        (found.len() == number).then_some(found)
    })
    .await
}

/// Looks along a whole chain; the answers are put together.
async fn verify(api: &Api, path: &str) -> Value {
    let mut found = api.post(path, &json!({})).await.expect(200);
    while let Some(next) = found["next_link"].as_i64() {
        let mut more = api.post(path, &json!({"first_link": next})).await.expect(200);
        more["links"] = json!(more["links"].as_i64().unwrap() + found["links"].as_i64().unwrap());
        found = more;
    }
    found
}

/// Waits until all events are sealed, and asserts that the chain is good; returns how many links it has.
async fn sealed(api: &Api, path: &str) -> i64 {
    eventually("the seals", || async {
        let found = verify(api, path).await;
        assert_eq!((&found["valid"], &found["first_broken"]), (&json!(true), &json!(null)), "{found}");
        (found["unsealed"] == 0).then(|| found["links"].as_i64().unwrap())
    })
    .await
}

/// What an event says in short: `action outcome actor/credential`.
fn short(event: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let actor = event["actor"]["name"].as_str().or(event["actor"]["type"].as_str()).unwrap();
    let (action, outcome, credential) =
        (text(&event["action"]), text(&event["outcome"]), text(&event["credential"]["type"]));
    format!("{action} {outcome} {actor}/{credential}")
}

#[tokio::test]
async fn each_change_leaves_one_event_with_who_made_it() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let mut expected = vec![
        "workspace.create success operator/operator_token",
        "session.login success boss/session",
        "api_token.create success boss/session",
    ];

    let token = send(&session, "POST", TOKENS, json!({"name": "ci", "expires_at": null})).await;
    send(&session, "PUT", &at(TOKENS, &token), json!({"name": "ci-2", "expires_at": null})).await;
    send(&session, "PATCH", &at(TOKENS, &token), json!({"enabled": false})).await;
    send(&session, "DELETE", &at(TOKENS, &token), Value::Null).await;
    expected.extend([
        "api_token.create success boss/session",
        "api_token.update success boss/session",
        "api_token.update success boss/session",
        "api_token.delete success boss/session",
    ]);

    let admin = &workspace.admin;
    let email = format!("{}@example.com", unique("ann"));
    let ann = json!({"username": "ann", "email": email, "password": PASSWORD});
    let ann = send(admin, "POST", USERS, ann).await;
    let path_of_ann = format!("{USERS}{}/", ann["id"]);
    send(admin, "PATCH", &path_of_ann, json!({"is_staff": true})).await;
    let other = "another correct horse";
    let as_ann = workspace.anonymous.logged_in("ann", PASSWORD).await;
    let change = json!({"password": PASSWORD, "new_password": other});
    send(&as_ann, "POST", "/api/auth/change-password/", change).await;
    send(admin, "PUT", "/api/users/users/ann/", json!({"password": PASSWORD})).await;
    let asked = async { workspace.anonymous.post("/api/auth/reset-password/", &json!({"email": email})).await };
    let link = reset_link(&workspace, &email, asked).await;
    let confirm = format!("/api/auth/reset-password/confirm/{}/", key_of(&link));
    send(&workspace.anonymous, "POST", &confirm, json!({"new_password": other})).await;
    let as_ann = workspace.anonymous.logged_in("ann", other).await;
    send(&as_ann, "POST", "/api/auth/logout/", Value::Null).await;
    let as_ann = workspace.anonymous.logged_in("ann", other).await;
    let sessions = send(&as_ann, "GET", "/api/auth/sessions/", Value::Null).await;
    send(&as_ann, "DELETE", &at("/api/auth/sessions/", &sessions["results"][0]), Value::Null).await;
    expected.extend([
        "user.create success boss/api_token",
        "user.update success boss/api_token",
        "session.login success ann/session",
        "user.change_password success ann/session",
        "user.set_password success boss/api_token",
        "user.request_reset success anonymous/-",
        "user.reset_password success ann/reset_key",
        "session.login success ann/session",
        "session.logout success ann/session",
        "session.login success ann/session",
        "session.delete success ann/session",
    ]);

    let group = send(admin, "POST", GROUPS, json!({"name": "ops"})).await;
    send(admin, "PATCH", &group_path(&group), json!({"description": "all"})).await;
    let membership = json!({"group": group["id"], "user": ann["id"], "role": "member"});
    let membership = send(admin, "POST", MEMBERSHIPS, membership).await;
    send(admin, "PATCH", &at(MEMBERSHIPS, &membership), json!({"role": "manager"})).await;
    send(admin, "DELETE", &at(MEMBERSHIPS, &membership), Value::Null).await;
    send(admin, "DELETE", &group_path(&group), Value::Null).await;
    expected.extend([
        "group.create success boss/api_token",
        "group.update success boss/api_token",
        "membership.create success boss/api_token",
        "membership.update success boss/api_token",
        "membership.delete success boss/api_token",
        "group.delete success boss/api_token",
    ]);

    let server = send(admin, "POST", "/api/servers/", json!({"name": "web-1"})).await;
    send(admin, "PATCH", &at(SERVERS, &server), json!({"name": "web-2"})).await;
    send(admin, "POST", &format!("{}rotate-key/", at(SERVERS, &server)), Value::Null).await;
    send(admin, "DELETE", &at(SERVERS, &server), Value::Null).await;
    let registration = send(admin, "POST", REGISTRATION_TOKENS, json!({"name": "hosts"})).await;
    let registering = workspace.anonymous.with_token(registration["key"].as_str().unwrap());
    let host = json!({"name": "host", "platform": "debian"});
    let host = send(&registering, "POST", &format!("{SERVERS}register/"), host).await;
    let agent = workspace.anonymous.with(&farhand_tests::agents::credential(&host));
    send(&agent, "DELETE", &format!("{SERVERS}-/unregister/"), Value::Null).await;
    send(admin, "DELETE", &at(REGISTRATION_TOKENS, &registration), Value::Null).await;
    send(admin, "DELETE", &path_of_ann, Value::Null).await;
    expected.extend([
        "server.create success boss/api_token",
        "server.update success boss/api_token",
        "server.rotate_key success boss/api_token",
        "server.delete success boss/api_token",
        "registration_token.create success boss/api_token",
        "server.register success host/registration_token",
        "server.unregister success host/agent_key",
        "registration_token.delete success boss/api_token",
        "user.delete success boss/api_token",
    ]);

    let found = events(admin, EVENTS, &[]).await;
    assert_eq!(found.iter().map(short).collect::<Vec<_>>(), expected);
    let object = |action: &str| found.iter().rfind(|event| event["action"] == action).unwrap()["object"].clone();
    for (action, id, name) in [
        ("api_token.create", &token["id"], json!("ci")),
        ("api_token.delete", &token["id"], json!("ci-2")),
        ("server.delete", &server["id"], json!("web-2")),
        ("server.register", &host["id"], json!("host")),
        ("registration_token.delete", &registration["id"], json!("hosts")),
        ("group.create", &json!(group["id"].to_string()), json!("ops")),
        ("user.create", &json!(ann["id"].to_string()), json!("ann")),
        ("user.request_reset", &json!(ann["id"].to_string()), json!(null)),
        ("user.delete", &json!(ann["id"].to_string()), json!("ann")),
    ] {
        let kind = action.split('.').next().unwrap();
        assert_eq!(object(action), json!({"type": kind, "id": id, "name": name}), "{action}");
    }
    let enabled = &found[5];
    assert_eq!(enabled["details"], json!({"fields": ["enabled"]}));
    assert!(enabled["remote_ip"].is_string() && enabled["request_id"].is_string(), "{enabled}");
    assert_eq!(enabled["credential"]["id"], found[3]["credential"]["id"]);
    assert_eq!(
        keys(enabled),
        [
            "action",
            "actor",
            "credential",
            "details",
            "hash",
            "id",
            "link",
            "object",
            "occurred_at",
            "outcome",
            "remote_ip",
            "request_id"
        ]
    );
    assert_eq!(sealed(admin, VERIFY).await, expected.len() as i64);
    // It is the order of the chain, and each event is in it.
    let links: Vec<_> = events(admin, EVENTS, &[]).await.iter().map(|event| event["link"].as_i64().unwrap()).collect();
    assert_eq!(links, (1..=expected.len() as i64).collect::<Vec<_>>());
}

/// A change that ends what its caller calls with, or their right to it, leaves its event like any other.
#[tokio::test]
async fn who_disables_limits_or_demotes_themself_leaves_an_event() {
    let workspace = Workspace::new().await;
    let (session, admin) = (workspace.session(), &workspace.admin);
    let lists = json!({"commands": ["id"]});
    let changes = [
        ("PATCH", json!({"enabled": false})),
        ("PATCH", json!({"acl": lists})),
        ("PUT", json!({"name": "new", "expires_at": null, "enabled": false})),
        ("PUT", json!({"name": "new", "expires_at": null, "acl": lists})),
        ("DELETE", Value::Null),
    ];
    for (method, body) in changes {
        let token = send(&session, "POST", TOKENS, json!({"name": "self", "expires_at": null})).await;
        let own = workspace.anonymous.with_token(token["key"].as_str().unwrap());
        send(&own, method, &at(TOKENS, &token), body.clone()).await;
        own.get(TOKENS).await.expect(403);
        let told = events(admin, EVENTS, &[("object", token["id"].as_str().unwrap().to_owned())]).await;
        let told: Vec<_> = told.iter().map(|event| (short(event), event["object"]["name"].clone())).collect();
        let verb = if method == "DELETE" { "delete" } else { "update" };
        let expected = [
            ("api_token.create success boss/session".to_owned(), json!("self")),
            (format!("api_token.{verb} success boss/api_token"), json!("self")),
        ];
        assert_eq!(told, expected, "{method} {body}");
    }

    let email = |name: &str| format!("{}@example.com", unique(name));
    for (name, change) in [
        ("ann", json!({"is_superuser": false})),
        ("bea", json!({"is_staff": false, "is_superuser": false})),
        ("cid", json!({"is_active": false})),
        ("dan", Value::Null),
    ] {
        let user = json!({
            "username": name, "email": email(name), "password": PASSWORD, "is_staff": true, "is_superuser": true,
        });
        let user = send(admin, "POST", USERS, user).await;
        let own = workspace.anonymous.logged_in(name, PASSWORD).await;
        let method = if change.is_null() { "DELETE" } else { "PATCH" };
        send(&own, method, &format!("{USERS}{}/", user["id"]), change).await;
        let verb = if method == "DELETE" { "delete" } else { "update" };
        let action = format!("user.{verb}");
        let told = events(admin, EVENTS, &[("actor", name.to_owned()), ("action", action.clone())]).await;
        assert_eq!(told.iter().map(short).collect::<Vec<_>>(), [format!("{action} success {name}/session")]);
    }
    sealed(admin, VERIFY).await;
}

#[tokio::test]
async fn what_is_refused_and_what_fails_leaves_an_event_and_what_changes_nothing_leaves_none() {
    let workspace = Workspace::new().await;
    let admin = &workspace.admin;
    let server = workspace.server("web-1").await;
    let plain = Person::new(&workspace, "plain").await;
    let before = events(admin, EVENTS, &[]).await.len();

    // Nothing of this changes anything, or is refused for want of a right.
    admin.post("/api/servers/", &json!({"name": "web-1"})).await.expect_fields(400, &["name"]);
    admin.post(USERS, &json!({"username": "plain", "email": "x@example.com", "password": PASSWORD})).await.expect(400);
    admin.delete(&format!("{TOKENS}{NO_UUID}/")).await.expect(404);
    admin.patch(&format!("{TOKENS}{NO_UUID}/"), &json!({"name": "x"})).await.expect(404);
    admin.delete(&format!("/api/auth/sessions/{NO_UUID}/")).await.expect(404);
    admin.delete(&format!("{REGISTRATION_TOKENS}{NO_UUID}/")).await.expect(404);
    admin.post(COMMANDS, &json!({"server": "web-1", "line": "id"})).await.expect(503);
    plain.api.get(&at(SERVERS, &server)).await.expect(404);
    workspace.anonymous.with_token(&"A".repeat(128)).post(TOKENS, &json!({})).await.expect(403);

    workspace.anonymous.log_in("plain", "not the password").await.expect(403);
    workspace.anonymous.log_in("the password of somebody", "x").await.expect(403);
    let change = json!({"password": "not the password", "new_password": "another correct horse"});
    plain.api.post("/api/auth/change-password/", &change).await.expect(400);
    plain.api.post(USERS, &json!({})).await.expect(403);
    plain.api.get(EVENTS).await.expect(403);
    plain.api.post(VERIFY, &json!({"first_link": 0})).await.expect(403);
    admin.post("/api/auth/logout/", &json!({})).await.expect(403);
    let limited = workspace.limited(&json!({"commands": ["id"]})).await;
    for (method, path) in [("GET", EVENTS), ("POST", VERIFY), ("POST", TOKENS)] {
        limited.call(method, path).await.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
    }
    let refused = json!({"server": "web-1", "line": "reboot", "username": "root", "env": {"KEY": "confidential"}});
    limited.post(COMMANDS, &refused).await.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));

    let mut found = eventually("the events", || async {
        let found = events(admin, EVENTS, &[]).await;
        // With the token that is limited.
        (found.len() == before + 12).then(|| found[before..].to_vec())
    })
    .await;
    let mut told: Vec<_> = found.iter().map(short).collect();
    told.sort();
    let mut expected = [
        "api_token.create denied boss/api_token",
        "api_token.create success boss/session",
        "command.create denied boss/api_token",
        "endpoint.access denied boss/api_token",
        "endpoint.access denied boss/api_token",
        "endpoint.access denied plain/session",
        "endpoint.access denied plain/session",
        "session.login failure anonymous/-",
        "session.login failure anonymous/-",
        "session.logout denied boss/api_token",
        "user.change_password failure plain/session",
        "user.create denied plain/session",
    ];
    expected.sort_unstable();
    assert_eq!(told, expected);
    let mut take = |test: &dyn Fn(&Value) -> bool| found.remove(found.iter().position(test).unwrap());
    let denied = take(&|event| event["action"] == "command.create");
    assert_eq!((&denied["details"]["line"], &denied["details"]["username"]), (&json!("reboot"), &json!("root")));
    assert_eq!(denied["details"]["code"], "API_TOKEN_ACL_NOT_ALLOWED");
    let known = take(&|event| event["action"] == "session.login" && !event["object"].is_null());
    assert_eq!(known["object"], json!({"type": "user", "id": plain.id.to_string(), "name": "plain"}));
    let access = take(&|event| event["action"] == "endpoint.access" && event["details"]["method"] == "POST");
    assert_eq!(access["object"]["id"], VERIFY);
    // What somebody typed where the name belongs may be a password.
    let all = json!(events(admin, EVENTS, &[]).await).to_string();
    assert!(!all.contains("the password of somebody") && !all.contains("confidential"), "{all}");
    sealed(admin, VERIFY).await;
}

/// Whoever asks for it again and again does not fill the log.
#[tokio::test]
async fn the_same_refusal_is_told_of_once_a_minute() {
    let workspace = Workspace::new().await;
    let plain = Person::new(&workspace, "plain").await;
    for _ in 0..10 {
        plain.api.get(EVENTS).await.expect(403);
    }
    plain.api.post(VERIFY, &json!({})).await.expect(403);
    // What was to change something is told of each time.
    for _ in 0..3 {
        plain.api.post(USERS, &json!({})).await.expect(403);
    }
    let found = eventually("the events", || async {
        let found = events(&workspace.admin, EVENTS, &[("actor", "plain".to_owned())]).await;
        let changes = found.iter().filter(|event| event["action"] == "user.create").count();
        (changes == 3).then_some(found)
    })
    .await;
    let told: Vec<_> = found.iter().filter(|event| event["action"] == "endpoint.access").collect();
    let mut paths: Vec<_> = told.iter().map(|event| event["object"]["id"].as_str().unwrap()).collect();
    paths.sort_unstable();
    assert_eq!(paths, [EVENTS, VERIFY]);
}

#[tokio::test]
async fn a_command_is_told_of_from_its_request_to_its_end() {
    let workspace = Workspace::new().await;
    let admin = &workspace.admin;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::that_kills(&workspace, &server).await;
    let run = async |body: Value| {
        let mut whole = json!({"server": "web-1", "username": "root"});
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        admin.post(COMMANDS, &whole).await.expect(201)
    };
    let line = "x".repeat(2_000);
    let done = run(json!({"line": line, "env": {"KEY": "confidential"}})).await;
    agent.next_command().await;
    agent.ack(id_of(&done)).await;
    agent.fin(id_of(&done), 3, "secret output").await;
    agent.fin(id_of(&done), 0, "late").await;
    let killed = run(json!({"line": "sleep 100"})).await;
    agent.next_command().await;
    agent.ack(id_of(&killed)).await;
    admin.post(&format!("{}kill/", path_of(&killed)), &json!({})).await.expect(202);
    agent.fin(id_of(&killed), 143, "").await;
    let cancelled = run(json!({"line": "id", "scheduled_at": "2099-01-01T00:00:00Z"})).await;
    admin.post(&format!("{}cancel/", path_of(&cancelled)), &json!({})).await.expect(200);
    admin.post(&format!("{}cancel/", path_of(&cancelled)), &json!({})).await.expect(200);
    let left = run(json!({"line": "id", "scheduled_at": "2099-01-01T00:00:00Z"})).await;
    admin.delete(&at(SERVERS, &server)).await.expect(204);

    let actions = ["command.create", "command.kill", "command.finish", "command.cancel"];
    let found = events_of(admin, &actions, 9).await;
    let of = |command: &Value| -> Vec<String> {
        found.iter().filter(|event| event["object"]["id"] == command["id"]).map(short).collect()
    };
    let created = "command.create success boss/api_token";
    assert_eq!(of(&done), [created, "command.finish success web-1/agent_key"]);
    let kill = "command.kill success boss/api_token";
    assert_eq!(of(&killed), [created, kill, "command.finish success web-1/agent_key"]);
    assert_eq!(of(&cancelled), [created, "command.cancel success boss/api_token"]);
    assert_eq!(of(&left), [created, "command.cancel success service/-"]);
    let details = |command: &Value, action: &str| {
        let event =
            found.iter().find(|event| event["object"]["id"] == command["id"] && event["action"] == action).unwrap();
        event["details"].clone()
    };
    let of_server = json!({"id": server["id"], "name": "web-1"});
    assert_eq!(
        details(&done, "command.create"),
        json!({"server": of_server, "shell": "system", "line": "x".repeat(1_024), "username": "root", "groupname": "",
            "scheduled_at": null})
    );
    let finish = details(&done, "command.finish");
    assert_eq!(finish, json!({"state": "failed", "exit_code": 3, "server": of_server}));
    assert!(details(&left, "command.cancel")["reason"].as_str().unwrap().contains("server was deleted"));
    let all = json!(found).to_string();
    assert!(!all.contains("confidential") && !all.contains("secret output"), "{all}");
    sealed(admin, VERIFY).await;
}

#[tokio::test]
async fn the_list_is_filtered_and_costs_what_it_shows() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    let admin = &workspace.admin;
    for name in ["one", "two", "three"] {
        send(admin, "POST", TOKENS, json!({"name": name, "expires_at": null})).await;
    }
    let alice = workspace.staff("alice").await;
    send(&alice, "POST", "/api/servers/", json!({"name": "web-1"})).await;
    let all = events(&alice, EVENTS, &[]).await;
    let mut times: Vec<_> = all.iter().map(|event| event["occurred_at"].as_str().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    times.dedup();
    let middle = times[times.len() / 2].to_owned();
    let count = |test: &dyn Fn(&Value) -> bool| all.iter().filter(|event| test(event)).count();
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let object = text(&all.last().unwrap()["object"]["id"]);
    let queries: [(&[(&str, String)], usize); 8] = [
        (&[], all.len()),
        (&[("actor", "alice".into())], 2),
        (&[("action", "api_token.create".into())], 4),
        (&[("object", object.clone())], 1),
        (&[("actor", "boss".into()), ("action", "api_token.create".into())], 4),
        (&[("actor", "nobody".into())], 0),
        (&[("occurred_at__gte", middle.clone())], count(&|event| text(&event["occurred_at"]) >= middle)),
        (&[("occurred_at__lt", middle.clone())], count(&|event| text(&event["occurred_at"]) < middle)),
    ];
    for (query, expected) in queries {
        assert_eq!(events(&alice, EVENTS, query).await.len(), expected, "{query:?}");
    }
    let bad = format!("{EVENTS}?occurred_at__gte=today&object=%00&page=x");
    alice.get(&bad).await.expect_fields(400, &["object", "occurred_at__gte", "page"]);
    let other = Workspace::made_by(&instance.operator(), "other").await;
    let of_other = events(&other.admin, EVENTS, &[("object", object.clone())]).await;
    assert!(of_other.is_empty(), "{of_other:?}");

    // With many more of another action and object, the same is read for a page.
    sealed(admin, VERIFY).await;
    let read = async |query: &str| {
        let id = unique("audit");
        let path = format!("{EVENTS}?page_size=2{query}");
        admin.send(admin.request("GET", &path).header("X-Request-Id", &id)).await.expect(200);
        let line = instance.logged(&id).await;
        assert_eq!(line["d1_calls"], 1);
        line["rows_read"].as_u64().unwrap()
    };
    let queries = [
        String::new(),
        "&actor=alice".to_owned(),
        "&action=server.create".to_owned(),
        format!("&object={object}"),
        format!("&actor=alice&occurred_at__lt={}", encoded(&[("x", middle)]).split_once('=').unwrap().1),
    ];
    let mut before = Vec::new();
    for query in &queries {
        before.push(read(query).await);
    }
    let links = all.len();
    instance.tamper_with_d1(&format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
         INSERT INTO audit_events (id, workspace_id, occurred_at, actor_type, actor_name, action, object_type, object_id,
            outcome, details, link)
         SELECT format('00000000-0000-7000-8000-%012d', i), e.workspace_id, e.occurred_at, 'user', 'many', 'api_token.update', 'x', 'x' || i, 'success', '{{}}',
            {links} + i FROM n CROSS JOIN (SELECT workspace_id, occurred_at FROM audit_events WHERE link = {links}) e"
    ));
    for (query, before) in queries.iter().zip(before) {
        assert_eq!(read(query).await, before, "{query}");
    }
    let list = admin.get(EVENTS).await.expect(200);
    assert_eq!(list["count"], links + 2_000);
}

/// An instance with a workspace that has a chain of some links, all of it sealed.
async fn with_chain() -> (Instance, tempfile::TempDir, Workspace, i64) {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    for number in 0..9 {
        let name = format!("token {number}");
        send(&workspace.admin, "POST", TOKENS, json!({"name": name, "expires_at": null})).await;
    }
    let links = sealed(&workspace.admin, VERIFY).await;
    assert_eq!(links, 12);
    // Each row is looked up by its number, however many there are.
    let log = std::fs::read_to_string(instance.state.join("worker.log")).unwrap();
    let lines = log.lines().filter(|line| line.contains("\"event\":\"sealed\""));
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap()).collect();
    let sum = |name: &str| lines.iter().map(|line| line[name].as_i64().unwrap()).sum::<i64>();
    let (sealed, goes) = (sum("links"), lines.len() as i64);
    assert_eq!((sum("rows_written"), sum("d1_calls")), (2 * sealed, 2 * goes));
    assert!(sum("rows_read") <= SEALING_READS * sealed + 2 * goes, "{lines:?}");
    (instance, state, workspace, links)
}

/// The rows of a workspace, sealed anew from the first on, as SQL, and the end of their chain.
fn forged(instance: &Instance, workspace: i64) -> (String, Head) {
    let columns = farhand_domain::audit::COLUMNS.join(", ");
    let rows = instance.read_d1(&format!(
        "SELECT json_array(seq, NULL, NULL, json_array({columns})) FROM audit_events
         WHERE workspace_id = {workspace} ORDER BY seq"
    ));
    let rows: Vec<Row> = rows.iter().map(|row| serde_json::from_str(row).unwrap()).collect();
    let (seals, head) = seal(workspace, &Head::default(), &rows);
    let update = |seal: &farhand_domain::audit::Seal| {
        format!("UPDATE audit_events SET link = {}, hash = '{}' WHERE seq = {};", seal.link, seal.hash, seal.seq)
    };
    (seals.iter().map(update).collect(), head)
}

#[tokio::test]
async fn whoever_changes_the_log_underneath_is_found_out() {
    let (instance, _state, workspace, last) = with_chain().await;
    let admin = &workspace.admin;
    let id = instance.read_d1("SELECT CAST(id AS TEXT) FROM workspaces WHERE slug = 'acme'")[0].parse::<i64>().unwrap();
    let of = format!("workspace_id = {id} AND link");
    instance.tamper_with_d1("CREATE TABLE kept AS SELECT * FROM audit_events");
    let copied = |link: i64| {
        format!(
            "INSERT INTO audit_events SELECT (SELECT max(seq) + 1 FROM kept), k.id, k.workspace_id, k.occurred_at,
                k.actor_type, k.actor_id, k.actor_name, k.credential_type, k.credential_id, k.action, k.object_type,
                k.object_id, k.object_name, k.outcome, k.remote_ip, k.request_id, k.details, {link}, k.hash
             FROM kept k WHERE k.{of} = 3"
        )
    };
    let mut cases: Vec<(&str, String, i64, &str)> = vec![
        ("a name is changed", format!("UPDATE audit_events SET actor_name = 'eve' WHERE {of} = 4"), 4, "altered"),
        ("an outcome", format!("UPDATE audit_events SET outcome = 'denied' WHERE {of} = 1"), 1, "altered"),
        ("a time", format!("UPDATE audit_events SET occurred_at = '2026' WHERE {of} = {last}"), last, "altered"),
        ("an address goes", format!("UPDATE audit_events SET remote_ip = NULL WHERE {of} = 7"), 7, "altered"),
        ("a hash", format!("UPDATE audit_events SET hash = 'x' WHERE {of} = 7"), 7, "altered"),
        ("the first goes", format!("DELETE FROM audit_events WHERE {of} = 1"), 1, "missing"),
        ("one in the middle", format!("DELETE FROM audit_events WHERE {of} = 6"), 6, "missing"),
        ("the last", format!("DELETE FROM audit_events WHERE {of} = {last}"), last, "missing"),
        ("the end", format!("DELETE FROM audit_events WHERE {of} > 8"), 9, "missing"),
        ("all of it", format!("DELETE FROM audit_events WHERE workspace_id = {id}"), 1, "missing"),
        ("one is hidden", format!("UPDATE audit_events SET workspace_id = 0 WHERE {of} = 5"), 5, "missing"),
        (
            "two change their numbers",
            format!("UPDATE audit_events SET link = 11 - link WHERE {of} IN (5, 6)"),
            5,
            "altered",
        ),
        ("one comes in between", copied(4), 5, "foreign"),
        ("one comes before", copied(0), 1, "foreign"),
        ("one comes behind", copied(last + 1), last + 1, "foreign"),
    ];
    // Contents and hashes of two change places, so that the numbers still are in order.
    let moved = format!(
        "CREATE TABLE turned AS SELECT link, seq FROM kept WHERE {of} IN (5, 6);
         UPDATE audit_events SET seq = -seq WHERE {of} IN (5, 6);
         UPDATE audit_events SET seq = (SELECT t.seq FROM turned t WHERE t.link = 11 - audit_events.link) WHERE seq < 0;
         DROP TABLE turned"
    );
    cases.push(("two change places", moved, 6, "moved"));
    let rewritten = format!("UPDATE audit_events SET actor_name = 'eve' WHERE {of} = 2");
    let check = async |name: &str, link: i64, problem: &str| {
        let found = verify(admin, VERIFY).await;
        let broken = &found["first_broken"];
        assert_eq!(found["valid"], false, "{name}");
        let expected = if problem == "foreign" { json!(problem) } else { json!([link, problem]) };
        let told =
            if problem == "foreign" { broken["problem"].clone() } else { json!([broken["link"], broken["problem"]]) };
        assert_eq!(told, expected, "{name}: {found}");
        assert_eq!(broken["event"].is_null(), problem == "missing", "{name}: {found}");
    };
    let restore = "DELETE FROM audit_events; INSERT INTO audit_events SELECT * FROM kept";
    for (name, sql, link, problem) in cases {
        instance.tamper_with_d1(&sql);
        check(name, link, problem).await;
        instance.tamper_with_d1(restore);
        assert_eq!(verify(admin, VERIFY).await["valid"], true, "{name}, put back");
    }
    // Whoever makes all hashes anew does not have the end of the chain, which is kept elsewhere.
    instance.tamper_with_d1(&rewritten);
    instance.tamper_with_d1(&forged(&instance, id).0);
    check("all is written anew", last, "rewritten").await;
    // The chain goes on from the end that is kept, and the break stays.
    send(admin, "POST", TOKENS, json!({"name": "later", "expires_at": null})).await;
    eventually("the seal", || async { (verify(admin, VERIFY).await["unsealed"] == 0).then_some(()) }).await;
    assert_eq!(verify(admin, VERIFY).await["valid"], false);
    instance.tamper_with_d1(&format!(
        "DELETE FROM audit_events WHERE {of} <= {last}; INSERT INTO audit_events SELECT * FROM kept WHERE {of} > 0"
    ));
    assert_eq!(sealed(admin, VERIFY).await, last + 1);
    // A part is looked at by itself, and past the end there is nothing.
    for (first, links) in [(last - 1, 3), (last + 2, 0), (1 << 50, 0)] {
        let found = admin.post(VERIFY, &json!({"first_link": first})).await.expect(200);
        let expected = json!({"valid": true, "links": links, "unsealed": 0, "first_broken": null, "next_link": null});
        assert_eq!(found, expected, "from {first}");
    }
    admin.post(VERIFY, &json!({"first_link": 0})).await.expect_fields(400, &["first_link"]);
}

#[tokio::test]
async fn a_hundred_writers_at_once_lose_nothing_and_break_nothing() {
    let workspace = Workspace::new().await;
    let mut people = Vec::new();
    for number in 0..4 {
        people.push(workspace.staff(&format!("writer{number}")).await);
        workspace.server(&format!("web-{number}")).await;
    }
    let (people, workspace) = (&people, &workspace);
    let made = future::join_all((0..100).map(|number| async move {
        let api = &people[number % people.len()];
        let (path, body) = if number % 2 == 0 {
            (TOKENS, json!({"name": format!("token {number}"), "expires_at": null}))
        } else {
            let server = format!("web-{}", number % 4);
            (COMMANDS, json!({"server": server, "line": number.to_string(), "on_offline": "queue"}))
        };
        let made = api.post(path, &body).await.expect(201)["id"].as_str().unwrap().to_owned();
        if number % 10 == 1 {
            api.delete(&format!("{COMMANDS}{made}/")).await.expect(204);
        }
        (made, number % 10 == 1)
    }))
    .await;
    let actions = ["api_token.create", "command.create", "command.cancel"];
    let mut of: BTreeMap<String, usize> = BTreeMap::new();
    for event in events_of(&workspace.admin, &actions, 111).await {
        *of.entry(event["object"]["id"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    for (id, is_cancelled) in made {
        assert_eq!(of.get(&id), Some(&(1 + usize::from(is_cancelled))), "{id}");
    }
    let events = events(&workspace.admin, EVENTS, &[]).await.len();
    assert_eq!(sealed(&workspace.admin, VERIFY).await, events as i64);
}

#[tokio::test]
async fn a_crash_loses_no_event_and_seals_none_twice() {
    let (mut instance, state) = Instance::new().await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    let mut dice = Dice(8);
    let mut made = BTreeSet::new();
    for round in 0..3 {
        let api = workspace.admin.on(&instance.url);
        let until = Duration::from_millis(1_900 + dice.roll(900) as u64);
        let api = &api;
        // Written all along, so that there is always something to be sealed.
        let burst = future::join_all((0..4).map(|writer| async move {
            let mut made = Vec::new();
            let begun = tokio::time::Instant::now();
            while begun.elapsed() < until {
                let body = json!({"name": format!("{round} {writer}"), "expires_at": null});
                made.push(api.post(TOKENS, &body).await.expect(201)["id"].as_str().unwrap().to_owned());
            }
            made
        }));
        made.extend(burst.await.into_iter().flatten());
        instance.kill().await;
        // The clock ticks when it starts, and has sealed what nobody tells of.
        instance = Instance::restart(state.path()).await;
        sealed(&workspace.admin.on(&instance.url), VERIFY).await;
    }
    let api = workspace.admin.on(&instance.url);
    let found = events(&api, EVENTS, &[("action", "api_token.create".to_owned())]).await;
    let ids: BTreeSet<_> = found.iter().map(|event| event["object"]["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), found.len(), "each once");
    assert!(made.iter().all(|id| ids.contains(id)), "none is lost");
    let links: BTreeSet<_> = found.iter().map(|event| event["link"].as_i64().unwrap()).collect();
    assert_eq!(links.len(), found.len());
}

/// An event has room for so many of them only.
#[tokio::test]
async fn a_long_list_is_told_in_part_and_by_its_length() {
    let workspace = Workspace::new().await;
    let admin = &workspace.admin;
    let mut groups = Vec::new();
    for number in 0..101 {
        let group = send(admin, "POST", GROUPS, json!({"name": format!("group-{number}")})).await;
        groups.push(group["id"].as_i64().unwrap());
    }
    let body = |name: &str| json!({"name": name, "groups": groups});
    let server = send(admin, "POST", "/api/servers/", body("web-1")).await;
    send(admin, "PATCH", &at(SERVERS, &server), json!({"groups": []})).await;
    send(admin, "PATCH", &at(SERVERS, &server), json!({"groups": groups})).await;
    send(admin, "POST", REGISTRATION_TOKENS, body("hosts")).await;
    for (action, number) in
        [("server.create", 101), ("server.update", 0), ("server.update", 101), ("registration_token.create", 101)]
    {
        let told = events(admin, EVENTS, &[("action", action.to_owned())]).await;
        let details = told.iter().map(|event| &event["details"]).find(|details| details["groups_total"] == number);
        let shown = &groups[..number.min(100)];
        assert_eq!(details.unwrap_or_else(|| panic!("{action}: {told:#?}"))["groups"], json!(shown), "{action}");
    }
}

/// An isolate remembers for a while which workspace has a slug. What it does not ask anybody with a credential for is told where it
/// is done, even if the slug is another one's by now.
#[tokio::test]
async fn logins_and_resets_are_told_of_in_the_workspace_that_has_them() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    Workspace::made_by(&instance.operator(), "other").await;
    let emails = instance
        .read_d1("SELECT u.email FROM users u JOIN workspaces w ON w.id = u.workspace_id WHERE w.slug = 'other'");
    let own = instance.read_d1("SELECT CAST(id AS TEXT) FROM workspaces WHERE slug = 'other'");
    let told = |action: &str, outcome: &str| {
        instance.read_d1(&format!(
            "SELECT CAST(workspace_id AS TEXT) FROM audit_events WHERE action = '{action}' AND outcome = '{outcome}'
             ORDER BY seq DESC LIMIT 1"
        ))
    };
    workspace.anonymous.log_in("boss", PASSWORD).await.expect(200);
    instance.tamper_with_d1(
        "UPDATE workspaces SET slug = 'x' WHERE slug = 'acme'; UPDATE workspaces SET slug = 'acme' WHERE slug = 'other'",
    );
    workspace.anonymous.log_in("boss", PASSWORD).await.expect(200);
    assert_eq!(told("session.login", "success"), own);
    workspace.anonymous.log_in("boss", "not the password").await.expect(403);
    eventually("the failure", || async { (told("session.login", "failure") == own).then_some(()) }).await;
    workspace.anonymous.post("/api/auth/reset-password/", &json!({"email": emails[0]})).await.expect(200);
    let log = instance.state.join("worker.log");
    let mail = eventually("the mail", || async { mails_to(&log, &emails[0]).into_iter().next() }).await;
    let link = mail.link();
    let confirm = format!("/api/auth/reset-password/confirm/{}/", key_of(link));
    send(&workspace.anonymous, "POST", &confirm, json!({"new_password": "another correct horse"})).await;
    assert_eq!((told("user.request_reset", "success"), told("user.reset_password", "success")), (own.clone(), own));
}

/// A sealer whose alarm is late is told of what happens, and does not go on waiting for that alarm.
#[tokio::test]
async fn a_sealer_whose_alarm_is_late_seals_when_it_is_told() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    sealed(&workspace.admin, VERIFY).await;
    let waiting = send(&workspace.admin, "POST", TOKENS, json!({"name": "waiting", "expires_at": null})).await;
    instance.kill().await;
    assert!(delay_alarms(state.path(), "Sealer", 3_600) > 0, "the alarm of what waits");
    let instance = Instance::restart(state.path()).await;
    let api = workspace.admin.on(&instance.url);
    eventually("the seal", || async {
        // Each has the sealer told once more.
        send(&api, "POST", TOKENS, json!({"name": "later", "expires_at": null})).await;
        let told = events(&api, EVENTS, &[("object", waiting["id"].as_str().unwrap().to_owned())]).await;
        told[0]["link"].is_number().then_some(())
    })
    .await;
}

/// Nothing is deleted then, and all is sealed as ever.
#[tokio::test]
async fn a_wrong_setting_of_how_long_events_are_kept_is_logged_and_stops_nothing() {
    let (instance, _state) = Instance::new_with(&[("AUDIT_RETENTION_DAYS", "1")]).await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    assert_eq!(sealed(&workspace.admin, VERIFY).await, 3);
    let log = instance.state.join("worker.log");
    eventually("what the log says", || async {
        let log = std::fs::read_to_string(&log).unwrap();
        assert!(!log.contains("\"event\":\"sealer_failed\""), "it tries again and again");
        log.contains("\"event\":\"audit_not_deleted\"").then_some(())
    })
    .await;
    assert_eq!(sealed(&workspace.admin, VERIFY).await, 3);
}

#[tokio::test]
async fn an_end_that_d1_hears_of_late_is_told_once() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let body = json!({"server": "web-1", "line": "id", "username": "root"});
    let command = workspace.admin.post(COMMANDS, &body).await.expect(201);
    agent.next_command().await;
    let lock = instance.lock_d1().await;
    agent.fin(id_of(&command), 0, "done").await;
    let log = instance.state.join("worker.log");
    eventually("a try in vain", || async {
        std::fs::read_to_string(&log).unwrap().contains("\"event\":\"d1_not_told\"").then_some(())
    })
    .await;
    drop(lock);
    let found = events_of(&workspace.admin, &["command.create", "command.finish"], 2).await;
    assert_eq!(found[1]["details"]["state"], "success");
    assert_eq!(sealed(&workspace.admin, VERIFY).await, 6);
}

#[tokio::test]
async fn the_operator_has_a_chain_that_outlives_workspaces() {
    let (instance, _state) = Instance::new().await;
    let operator = instance.operator();
    let (path, verify) = ("/operator/audit/events/", "/operator/audit/verify/");
    let gone = Workspace::made_by(&operator, "gone").await;
    let kept = Workspace::made_by(&operator, "kept").await;
    send(&gone.admin, "POST", TOKENS, json!({"name": "one", "expires_at": null})).await;
    sealed(&gone.admin, VERIFY).await;
    operator.post("/operator/workspaces/", &farhand_tests::client::new_workspace("kept")).await.expect(400);
    operator.delete("/operator/workspaces/nothing/").await.expect(404);
    operator.delete("/operator/workspaces/gone/").await.expect(204);
    let found = events(&operator, path, &[]).await;
    let told: Vec<_> = found.iter().map(|event| format!("{} {}", short(event), event["object"]["name"])).collect();
    assert_eq!(
        told,
        [
            "workspace.create success operator/operator_token \"gone\"",
            "workspace.create success operator/operator_token \"kept\"",
            "workspace.delete success operator/operator_token \"gone\"",
        ]
    );
    assert_eq!(found[0]["object"]["id"], found[2]["object"]["id"]);
    let deleted = events(&operator, path, &[("action", "workspace.delete".to_owned())]).await;
    assert_eq!(deleted.len(), 1);
    operator.get(&format!("{path}?occurred_at__lt=x")).await.expect_fields(400, &["occurred_at__lt"]);
    assert_eq!(sealed(&operator, verify).await, 3);
    // Of the workspace that is gone nothing is left, neither in D1 nor with its sealer; the other's is as it was.
    eventually("the purge", || async {
        let left = instance.read_d1("SELECT DISTINCT CAST(workspace_id AS TEXT) FROM audit_events ORDER BY 1");
        let chains = instance.read_objects("Sealer", "SELECT CAST(workspace AS TEXT) FROM chains");
        (left.len() == 2 && chains.len() == 2).then_some(())
    })
    .await;
    assert_eq!(sealed(&kept.admin, VERIFY).await, 3);
    instance.tamper_with_d1("DELETE FROM audit_events WHERE workspace_id = 0 AND link = 3");
    let broken = operator.post(verify, &json!({})).await.expect(200)["first_broken"].clone();
    assert_eq!(broken, json!({"link": 3, "event": null, "problem": "missing"}));
}

#[tokio::test]
async fn old_events_go_and_the_rest_of_the_chain_stays() {
    let (instance, state, workspace, last) = with_chain().await;
    let id = instance.read_d1("SELECT CAST(id AS TEXT) FROM workspaces WHERE slug = 'acme'")[0].parse::<i64>().unwrap();
    let of = format!("workspace_id = {id} AND link");
    // The first five become ten days old, as if they had been sealed then.
    let old = now().plus_seconds(-10 * 24 * 60 * 60);
    instance.tamper_with_d1(&format!("UPDATE audit_events SET occurred_at = '{old}' WHERE {of} <= 5"));
    let (sql, head) = forged(&instance, id);
    instance.stop().await;
    change_d1(state.path(), &sql);
    change_d1(state.path(), &format!("UPDATE audit_events SET actor_name = 'eve' WHERE {of} = 4"));
    let head = serde_json::to_string(&head).unwrap();
    let changed =
        change_objects(state.path(), "Sealer", &format!("UPDATE chains SET head = '{head}' WHERE workspace = {id}"));
    assert_eq!(changed, 1);

    let instance = Instance::restart_with(state.path(), &[("AUDIT_RETENTION_DAYS", "7")]).await;
    let api = workspace.admin.on(&instance.url);
    let left = async |number: i64| {
        eventually("the old ones to go", || async {
            let found = events(&api, EVENTS, &[]).await.len() as i64;
            assert!(found >= number, "{found} are left");
            (found == number).then_some(())
        })
        .await;
    };
    // One that is not what was sealed stays, with all that comes after it.
    left(last - 3).await;
    let broken = verify(&api, VERIFY).await["first_broken"].clone();
    assert_eq!((&broken["link"], &broken["problem"]), (&json!(4), &json!("altered")));
    instance.tamper_with_d1(&format!("UPDATE audit_events SET actor_name = 'boss' WHERE {of} = 4"));
    // Whatever else happens has the object look again.
    send(&api, "POST", TOKENS, json!({"name": "later", "expires_at": null})).await;
    left(last + 1 - 5).await;
    assert_eq!(sealed(&api, VERIFY).await, last + 1 - 5);
    instance.tamper_with_d1(&format!(
        "INSERT INTO audit_events (id, workspace_id, occurred_at, actor_type, action, outcome, details, link, hash)
         VALUES ('x', {id}, '{old}', 'user', 'x.y', 'success', '{{}}', 3, 'x')"
    ));
    assert_eq!(verify(&api, VERIFY).await["first_broken"]["problem"], "foreign");
    // The operator's own stay.
    assert_eq!(sealed(&instance.operator(), "/operator/audit/verify/").await, 1);
}
