//! PUT, PATCH and DELETE of `/api/servers/servers/<id>/` with their effects, and `rotate-key/`
//! (contract 6).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farhand_domain::time::Timestamp;
use farhand_tests::agents::{ScriptedAgent, credential, dial, wait_until_connected};
use farhand_tests::client::PASSWORD;
use farhand_tests::commands::{wait_until_ended, wait_until_ended_within};
use farhand_tests::events::Block;
use farhand_tests::people::{
    COMMANDS, GROUPS, SERVERS, UNKNOWN_ID, UNKNOWN_UUID, column, group_path, item_path, keys,
};
use farhand_tests::{Api, Cast, Events, Person, Reply, Workspace, eventually, far_ahead, now};
use futures_util::future;
use serde_json::{Value, json};

use crate::api::events::commands::{id_of, time_of};

const DENIED: Option<&str> = Some("PERMISSION_DENIED");
const INVALID: Option<&str> = Some("INVALID_TOKEN");
const OWN: &str = "/api/servers/servers/-/";
/// Time limit for a command to become stuck, which takes at least a minute.
const STUCK_WITHIN: Duration = Duration::from_secs(150);
/// Time limit for ending the stream of a reader who lost access.
const REVOKED_WITHIN: Duration = Duration::from_secs(45);

async fn read_server(workspace: &Workspace, server: &Value) -> Value {
    workspace.admin.get(&item_path(SERVERS, server)).await.expect(200)
}

/// The server in a response that also contains a key.
fn without_key(made: &Value) -> Value {
    let mut shown = made.clone();
    shown.as_object_mut().unwrap().retain(|name, _| name != "key" && !name.starts_with("install"));
    shown
}

fn command(server: &Value, more: Value) -> Value {
    let mut body = json!({"server": server["id"], "line": "id"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Waits until the service closes a socket. Fails if it sends `quit`, because that agent would
/// never come back.
async fn wait_until_closed(socket: &mut ScriptedAgent) {
    loop {
        match socket.next().await {
            Ok(message) => assert_eq!(message["query"], "ping", "{message}"),
            Err(_) => return,
        }
    }
}

/// True if a server's key is accepted. Asserts that all endpoints agree.
async fn is_key_accepted(workspace: &Workspace, server: &Value) -> bool {
    let api = workspace.anonymous.with_authorization(&credential(server));
    let reply = api.get(OWN).await;
    let dialled = dial(&api, "/ws/servers/control/").await;
    assert_eq!(reply.status == 200, dialled.is_ok(), "{}", reply.text);
    if reply.status != 200 {
        reply.expect_detail(403, INVALID);
        assert_eq!(dialled.err(), Some(403));
    }
    reply.status == 200
}

#[tokio::test]
async fn put_replaces_a_server_and_patch_changes_fields() {
    let workspace = Workspace::new().await;
    let made = without_key(&workspace.server("web-1").await);
    let (one, two) = (workspace.group("one", &[]).await, workspace.group("two", &[]).await);
    let path = item_path(SERVERS, &made);
    let differs = |server: &Value, changes: Value| {
        let mut expected = made.clone();
        expected.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        expected["updated_at"] = server["updated_at"].clone();
        assert_eq!(server, &expected);
    };
    let ignored = json!({"id": UNKNOWN_UUID, "is_connected": true, "owner": made["owner"], "remote_ip": "1.2.3.4", "key": "x", "load": 7});
    for nothing in [json!({}), ignored] {
        differs(&workspace.admin.patch(&path, &nothing).await.expect(200), json!({}));
    }
    let changed = workspace.admin.patch(&path, &json!({"name": "web-2"})).await.expect(200);
    differs(&changed, json!({"name": "web-2"}));
    let moment = |server: &Value| Timestamp::parse(server["updated_at"].as_str().unwrap()).unwrap();
    assert!(moment(&changed) > moment(&made));
    let groups = json!({"groups": [two["id"], one["id"], two["id"]]});
    let changed = workspace.admin.patch(&path, &groups).await.expect(200);
    differs(&changed, json!({"name": "web-2", "groups": [one["id"], two["id"]]}));
    assert_eq!(read_server(&workspace, &made).await, changed);
    for group in [&one, &two] {
        let group = workspace.admin.get(&group_path(group)).await.expect(200);
        assert_eq!(group["servers"], json!([made["id"]]));
    }
    let whole = json!({"name": "web-3", "groups": [two["id"]]});
    let changed = workspace.admin.put(&path, &whole).await.expect(200);
    differs(&changed, json!({"name": "web-3", "groups": [two["id"]]}));
    assert_eq!(workspace.admin.get(&group_path(&one)).await.expect(200)["servers"], json!([]));
    // A PUT with the response of a GET changes nothing.
    let again = workspace.admin.put(&path, &changed).await.expect(200);
    assert_eq!((&again["name"], &again["groups"]), (&changed["name"], &changed["groups"]));
    let replaced = workspace.admin.put(&path, &json!({"name": "web-3"})).await.expect(200);
    differs(&replaced, json!({"name": "web-3", "groups": []}));
    workspace.admin.patch(&path, &json!({"groups": [one["id"]]})).await.expect(200);
    let staff = workspace.staff("steve").await;
    let changed = staff.patch(&path, &json!({"name": "web-4", "groups": []})).await.expect(200);
    differs(&changed, json!({"name": "web-4", "groups": []}));
    assert_eq!(changed["owner"]["username"], "boss");
}

#[tokio::test]
async fn only_superusers_change_the_owner() {
    let cast = Cast::new().await;
    let workspace = &cast.workspace;
    let server = cast.server().await;
    let path = item_path(SERVERS, &server);
    let as_shown = |person: &Person| json!({"id": person.id, "username": person.username, "email": format!("{}@example.com", person.username)});
    let owner = async || workspace.admin.get(&path).await.expect(200)["owner"].clone();
    assert_eq!(owner().await, as_shown(&cast.owner));
    // Other users may send only the current owner: as an id, or in the form of responses.
    let same = [json!(cast.owner.id), as_shown(&cast.owner)];
    for (who, api) in [("staff", &cast.staff.api), ("owner", &cast.owner.api)] {
        for other in [json!(cast.outsider.id), Value::Null, json!(UNKNOWN_ID)] {
            let name = &server["name"];
            api.patch(&path, &json!({"owner": other})).await.expect_detail(403, DENIED);
            api.put(&path, &json!({"name": name, "owner": other, "groups": [cast.group["id"]]}))
                .await
                .expect_detail(403, DENIED);
        }
        for same in &same {
            assert_eq!(
                api.patch(&path, &json!({"owner": same})).await.expect(200)["owner"],
                as_shown(&cast.owner),
                "{who}"
            );
        }
    }
    for api in [&cast.manager.api, &cast.member.api] {
        api.patch(&path, &json!({"owner": cast.manager.id})).await.expect_detail(403, DENIED);
    }
    // An unknown user is an invalid field.
    for _ in 0..3 {
        cast.elsewhere.skip_ids().await;
    }
    let theirs = Person::new(&cast.elsewhere, "theirs").await;
    for bad in [
        json!(theirs.id),
        json!(UNKNOWN_ID),
        json!("owner"),
        json!(1.5),
        json!([cast.owner.id]),
        json!({"id": "x"}),
    ] {
        workspace.admin.patch(&path, &json!({"owner": bad})).await.expect_fields(400, &["owner"]);
        let whole = json!({"name": server["name"], "owner": bad});
        workspace.admin.put(&path, &whole).await.expect_fields(400, &["owner"]);
    }
    assert_eq!(owner().await, as_shown(&cast.owner), "the owner did not change");
    // The former owner loses access, and the new one gets it.
    workspace.admin.patch(&path, &json!({"owner": cast.outsider.id})).await.expect(200);
    cast.owner.api.get(&path).await.expect_detail(404, None);
    assert_eq!(
        cast.outsider.api.patch(&path, &json!({"name": "taken-over"})).await.expect(200)["owner"]["id"],
        cast.outsider.id
    );
    // A PUT without an owner keeps the owner.
    let whole = json!({"name": "web-put", "groups": [cast.group["id"]]});
    assert_eq!(
        workspace.admin.put(&path, &whole).await.expect(200)["owner"]["id"],
        cast.outsider.id
    );
    let whole = json!({"name": "web-put", "groups": [cast.group["id"]], "owner": null});
    assert_eq!(workspace.admin.put(&path, &whole).await.expect(200)["owner"], Value::Null);
    cast.outsider.api.get(&path).await.expect_detail(404, None);
    let id = server["id"].as_str().unwrap();
    let details = workspace
        .admin
        .get(&format!("/api/audit/events/?action=server.update&object={id}&page_size=50"))
        .await;
    let details: Vec<Value> = column(&details.expect(200), "details")
        .into_iter()
        .filter(|details| !details["old"].is_null())
        .collect();
    let of = |old: Value, new: Value| json!({"old": {"owner": old}, "owner": new});
    let expected = [
        of(json!(cast.outsider.id), Value::Null),
        of(json!(cast.owner.id), json!(cast.outsider.id)),
    ];
    for (details, expected) in details.iter().zip(&expected) {
        for field in ["old", "owner"] {
            assert_eq!(details[field], expected[field], "{details}");
        }
    }
    assert_eq!(details.len(), 3, "the third event is that of the first owner: {details:?}");
}

#[tokio::test]
async fn invalid_fields_change_no_server() {
    let (workspace, elsewhere) = (Workspace::new().await, Workspace::new().await);
    elsewhere.skip_ids().await;
    let group = workspace.group("ops", &[]).await;
    let theirs = elsewhere.group("ops", &[]).await;
    let deleted = workspace.group("gone", &[]).await;
    workspace.admin.delete(&group_path(&deleted)).await.expect(204);
    let made = workspace
        .admin
        .post(SERVERS, &json!({"name": "web-1", "groups": [group["id"]]}))
        .await
        .expect(201);
    workspace.server("taken").await;
    let (made, path) = (without_key(&made), item_path(SERVERS, &made));
    let too_long = "a".repeat(65);
    for (bad, fields) in [
        (json!({"name": null}), &["name"][..]),
        (json!({"name": ""}), &["name"]),
        (json!({"name": 7}), &["name"]),
        (json!({"name": "Web"}), &["name"]),
        (json!({"name": "a b"}), &["name"]),
        (json!({"name": "taken"}), &["name"]),
        (json!({"name": too_long}), &["name"]),
        (json!({"name": UNKNOWN_UUID}), &["name"]),
        (json!({"groups": null}), &["groups"]),
        (json!({"groups": 7}), &["groups"]),
        (json!({"groups": "ops"}), &["groups"]),
        (json!({"groups": {}}), &["groups"]),
        (json!({"groups": ["ops"]}), &["groups"]),
        (json!({"groups": [group["id"].to_string()]}), &["groups"]),
        (json!({"groups": [1.5]}), &["groups"]),
        (json!({"groups": [null]}), &["groups"]),
        (json!({"groups": [0]}), &["groups"]),
        (json!({"groups": [-1]}), &["groups"]),
        (json!({"groups": [u64::MAX]}), &["groups"]),
        (json!({"groups": [UNKNOWN_ID]}), &["groups"]),
        (json!({"groups": [group["id"], theirs["id"]]}), &["groups"]),
        (json!({"groups": [deleted["id"]]}), &["groups"]),
        (json!({"groups": (1..=101).collect::<Vec<_>>()}), &["groups"]),
        (json!({"name": "Web", "groups": 7}), &["groups", "name"]),
    ] {
        let mut whole = json!({"name": "fine"});
        whole.as_object_mut().unwrap().extend(bad.as_object().unwrap().clone());
        for reply in [
            workspace.admin.put(&path, &whole).await,
            workspace.admin.patch(&path, &bad).await,
            workspace.admin.post(SERVERS, &whole).await,
        ] {
            assert_eq!(reply.status, 400, "{bad}: {}", reply.text);
            reply.expect_fields(400, fields);
        }
    }
    for missing in [json!({}), json!({"groups": []})] {
        workspace.admin.put(&path, &missing).await.expect_fields(400, &["name"]);
    }
    assert_eq!(read_server(&workspace, &made).await, made);
    assert_eq!(workspace.admin.get(SERVERS).await.expect(200)["count"], 2);
    assert_eq!(
        workspace.admin.get(&group_path(&group)).await.expect(200)["servers"],
        json!([made["id"]])
    );
    // Groups of other workspaces look like unknown groups.
    let mut texts = Vec::new();
    for id in [&theirs["id"], &deleted["id"], &json!(UNKNOWN_ID)] {
        for reply in [
            workspace.admin.patch(&path, &json!({"groups": [id]})).await,
            workspace.admin.post(SERVERS, &json!({"name": "new", "groups": [id]})).await,
        ] {
            texts.push(reply.text.replace(&id.to_string(), "<id>"));
        }
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    // A server may keep its own name. Names of another workspace do not count.
    workspace.admin.patch(&path, &json!({"name": "web-1"})).await.expect(200);
    elsewhere.server("web-1").await;
}

#[tokio::test]
async fn an_owner_changes_the_name_but_not_the_groups() {
    let cast = Cast::new().await;
    let made = without_key(&cast.server().await);
    let (path, owner) = (item_path(SERVERS, &made), &cast.owner.api);
    let other = cast.workspace.group("other", &[]).await;
    for (method, groups) in [
        ("PATCH", json!([])),
        ("PUT", json!([])),
        ("PATCH", json!([cast.group["id"], other["id"]])),
        ("PUT", json!([UNKNOWN_ID])),
    ] {
        let body = json!({"name": "other-name", "groups": groups});
        owner.send_json(method, &path, &body).await.expect_detail(403, DENIED);
        assert_eq!(read_server(&cast.workspace, &made).await, made);
    }
    for (number, groups) in
        [json!([cast.group["id"]]), json!([cast.group["id"], cast.group["id"]])].iter().enumerate()
    {
        for method in ["PATCH", "PUT"] {
            let name = format!("same-{number}-{}", method.to_lowercase());
            let changed = owner
                .send_json(method, &path, &json!({"name": name, "groups": groups}))
                .await
                .expect(200);
            assert_eq!((&changed["name"], &changed["groups"]), (&json!(name), &made["groups"]));
        }
    }
    let changed = owner.put(&path, &json!({"name": "alone"})).await.expect(200);
    assert_eq!(
        (&changed["name"], &changed["groups"]),
        (&json!("alone"), &made["groups"]),
        "omitted groups stay"
    );
    owner.patch(&path, &json!({})).await.expect(200);
    assert_eq!(read_server(&cast.workspace, &made).await["owner"]["username"], "owner");
    // Owning a group of the server does not allow renaming it.
    for body in [json!({}), json!({"name": "x"}), json!({"groups": made["groups"]})] {
        cast.group_owner.api.patch(&path, &body).await.expect_detail(403, DENIED);
    }
}

#[tokio::test]
async fn a_new_name_is_shown_everywhere() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let made = workspace
        .admin
        .post(COMMANDS, &command(&server, json!({"on_offline": "queue"})))
        .await
        .expect(201);
    workspace.admin.patch(&item_path(SERVERS, &server), &json!({"name": "db-7"})).await.expect(200);
    assert_eq!(
        workspace.admin.get(&item_path(COMMANDS, &made)).await.expect(200)["server_name"],
        "db-7"
    );
    let count = async |query: &str| {
        workspace.admin.get(&format!("{COMMANDS}?{query}")).await.expect(200)["count"].clone()
    };
    assert_eq!((count("search=db-7").await, count("search=web-1").await), (json!(1), json!(0)));
    let list = workspace.admin.get(COMMANDS).await.expect(200);
    assert_eq!(column(&list, "server_name"), [json!("db-7")]);
    let by_name = |name: &str| json!({"server": name, "line": "id", "on_offline": "queue"});
    let second = workspace.admin.post(COMMANDS, &by_name("db-7")).await.expect(201);
    assert_eq!(second["server"], server["id"]);
    workspace.admin.post(COMMANDS, &by_name("web-1")).await.expect_fields(400, &["server"]);
    // Renaming a server does not affect its agent.
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    eventually("the name", || async {
        (agent.api.get(OWN).await.expect(200)["name"] == "db-7").then_some(())
    })
    .await;
    assert_eq!(agent.next_command().await["id"], made["id"]);
    agent.fin(made["id"].as_str().unwrap(), 0, "").await;
    assert_eq!(
        workspace.admin.get(&item_path(COMMANDS, &made)).await.expect(200)["server_name"],
        "db-7"
    );
    // The old name is free.
    let next = workspace.server("web-1").await;
    assert_ne!(next["id"], server["id"]);
    // Two servers request the same name concurrently. One of them gets it.
    let paths = [item_path(SERVERS, &server), item_path(SERVERS, &next)];
    let body = json!({"name": "both"});
    let replies =
        future::join_all(paths.iter().map(|path| workspace.admin.patch(path, &body))).await;
    assert_eq!(replies.iter().filter(|reply| reply.status == 200).count(), 1, "{replies:?}");
    replies.iter().find(|reply| reply.status != 200).unwrap().expect_fields(400, &["name"]);
}

#[tokio::test]
async fn a_deleted_servers_agent_is_disconnected_immediately() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let mut control = ScriptedAgent::connect_to(&agent.api, "/ws/servers/control/").await;
    let (path, post) = (item_path(SERVERS, &server), async |more: Value| {
        workspace.admin.post(COMMANDS, &command(&server, more)).await.expect(201)
    });
    let sent = post(json!({"line": "sent"})).await;
    let acked = post(json!({"line": "acked"})).await;
    let done = post(json!({"line": "done"})).await;
    for made in [&sent, &acked, &done] {
        assert_eq!(agent.next_command().await["id"], made["id"]);
    }
    let id = |made: &Value| made["id"].as_str().unwrap().to_owned();
    agent.ack(&id(&acked)).await;
    agent.chunk(&id(&acked), 0, "half of\n").await;
    agent.fin(&id(&done), 0, "done\n").await;
    let later = post(json!({"scheduled_at": far_ahead()})).await;
    let soon = post(json!({"scheduled_at": now().plus_seconds(3_600)})).await;
    let waiting = {
        let (api, path) =
            (workspace.admin.clone(), format!("{}?wait=60", item_path(COMMANDS, &later)));
        tokio::spawn(async move { api.get(&path).await })
    };
    let stream = format!("{}stream/", item_path(COMMANDS, &acked));
    let mut events = Events::open(&workspace.admin, &stream).await.unwrap();
    assert_eq!(events.next_chunk().await, (0, "half of\n".to_owned()));

    assert_eq!(workspace.admin.delete(&path).await.expect(204), Value::Null);
    // Requests that are sent after the response are rejected.
    assert!(!is_key_accepted(&workspace, &server).await);
    for (kind, body) in [
        ("ack", json!({})),
        ("chunk", json!({"seq": 1, "content": "more"})),
        ("fin", json!({"success": true, "result": "late", "elapsed_time": 1.0, "exit_code": 0})),
    ] {
        agent.report(&id(&acked), kind, Some(&body)).await.expect_detail(403, INVALID);
    }
    for (method, path) in [
        ("POST", "/api/events/events/"),
        ("PUT", "/api/servers/servers/-/commit/"),
        ("PATCH", "/api/servers/servers/-/sync/"),
        ("PATCH", "/api/servers/servers/-/status/"),
        ("DELETE", "/api/servers/servers/-/unregister/"),
        ("POST", "/api/proc/info/"),
        ("GET", "/api/metrics/config/"),
    ] {
        agent.api.send_json(method, path, &json!({})).await.expect_detail(403, INVALID);
    }
    for path in ["/ws/servers/backhaul/", "/ws/servers/control/"] {
        assert_eq!(dial(&agent.api, path).await.err(), Some(403));
    }
    wait_until_closed(&mut agent).await;
    wait_until_closed(&mut control).await;

    for waited in [&later, &soon] {
        let cancelled = wait_until_ended(&workspace.admin, id_of(waited)).await;
        let status = &cancelled["status"];
        assert_eq!(
            (&status["text"], &status["cancellable"]),
            (&json!("Cancelled"), &json!(false)),
            "{cancelled}"
        );
        assert!(status["message"].as_str().is_some_and(|message| !message.is_empty()));
        assert_eq!(
            (&cancelled["success"], &cancelled["delivered_at"]),
            (&json!(false), &json!(null))
        );
    }
    let command = waiting.await.unwrap().expect(200);
    assert_eq!(command["status"]["text"], "Cancelled", "a waiting request gets the new status");
    for delivered in [&sent, &acked] {
        let stuck = wait_until_ended_within(STUCK_WITHIN, &workspace.admin, id_of(delivered)).await;
        assert_eq!(
            (&stuck["status"]["text"], &stuck["success"]),
            (&json!("Stuck"), &json!(false)),
            "{stuck}"
        );
    }
    let finished = workspace.admin.get(&item_path(COMMANDS, &done)).await.expect(200);
    assert_eq!(
        (&finished["status"]["text"], &finished["result"]),
        (&json!("Success"), &json!("done\n"))
    );
    let (chunks, end) = events.rest().await;
    assert_eq!((chunks.len(), &end["status"]["text"]), (0, &json!("Stuck")));
    // The list shows the same.
    eventually("the list", || async {
        let list =
            workspace.admin.get(&format!("{COMMANDS}?server={}", id(&server))).await.expect(200);
        let over = column(&list, "handled_at").iter().all(Value::is_string);
        (over && list["count"] == 5).then_some(())
    })
    .await;
    for method in ["GET", "DELETE"] {
        workspace.admin.call(method, &path).await.expect_detail(404, None);
    }
    for body in [json!({"name": "x"}), json!({})] {
        workspace.admin.patch(&path, &body).await.expect_detail(404, None);
        workspace.admin.put(&path, &body).await.expect_detail(404, None);
    }
    workspace.admin.call("POST", &format!("{path}rotate-key/")).await.expect_detail(404, None);
    assert_eq!(workspace.admin.get(SERVERS).await.expect(200)["count"], 0);
}

#[tokio::test]
async fn waiting_commands_of_a_deleted_server_are_cancelled() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let member = Person::new(&workspace, "max").await;
    let group = workspace.group("ops", &[&server]).await;
    workspace.add_member(&group, &member, "member").await;
    let mut made = Vec::new();
    for number in 0..12 {
        let api = if number % 2 == 0 { &workspace.admin } else { &member.api };
        let when = if number % 3 == 0 {
            json!({"scheduled_at": now().plus_seconds(3_600)})
        } else {
            json!({"on_offline": "queue"})
        };
        made.push(api.post(COMMANDS, &command(&server, when)).await.expect(201));
    }
    // A command that has ended does not change.
    workspace.admin.delete(&item_path(COMMANDS, &made[0])).await.expect(204);
    let before = workspace.admin.get(&item_path(COMMANDS, &made[0])).await.expect(200);
    workspace.admin.delete(&item_path(SERVERS, &server)).await.expect(204);
    assert_eq!(workspace.admin.get(&item_path(COMMANDS, &made[0])).await.expect(200), before);
    for one in &made {
        let cancelled = wait_until_ended(&workspace.admin, id_of(one)).await;
        assert_eq!(cancelled["status"]["text"], "Cancelled", "{cancelled}");
        // Cancelling it again is allowed.
        let again = workspace
            .admin
            .call("POST", &format!("{}cancel/", item_path(COMMANDS, one)))
            .await
            .expect(200);
        assert_eq!(again["status"], cancelled["status"]);
        workspace.admin.delete(&item_path(COMMANDS, one)).await.expect(204);
    }
    assert_eq!(workspace.admin.get(COMMANDS).await.expect(200)["count"], 12);
}

#[tokio::test]
async fn history_of_a_deleted_server_is_for_staff_and_requesters() {
    let cast = Cast::new().await;
    let workspace = &cast.workspace;
    let server = cast.server().await;
    let mut agent = ScriptedAgent::connect(workspace, &server).await;
    let mut made = Vec::new();
    let requesters =
        [&workspace.admin, &cast.staff.api, &cast.owner.api, &cast.manager.api, &cast.member.api];
    for (number, api) in requesters.into_iter().enumerate() {
        let line = json!({"line": format!("echo marker {number}")});
        let posted = api.post(COMMANDS, &command(&server, line)).await.expect(201);
        assert_eq!(agent.next_command().await["id"], posted["id"]);
        let (id, output) = (posted["id"].as_str().unwrap(), format!("output {number}\n"));
        agent.ack(id).await;
        agent.chunk(id, 0, &output).await;
        agent.fin(id, 0, &output).await;
        made.push(workspace.admin.get(&item_path(COMMANDS, &posted)).await.expect(200));
    }
    let (id, name) = (server["id"].as_str().unwrap(), server["name"].as_str().unwrap());
    // The list may be up to a second behind.
    eventually("the list", || async {
        let list = workspace.admin.get(&format!("{COMMANDS}?server={id}")).await.expect(200);
        column(&list, "handled_at").iter().all(Value::is_string).then_some(())
    })
    .await;
    let group = group_path(&cast.group);
    workspace.admin.delete(&item_path(SERVERS, &server)).await.expect(204);
    // A new server with the same name is another server.
    let next = workspace
        .admin
        .post(SERVERS, &json!({"name": name, "groups": [cast.group["id"]]}))
        .await
        .expect(201);
    assert_ne!(next["id"], server["id"]);
    assert_eq!(workspace.admin.get(&group).await.expect(200)["servers"], json!([next["id"]]));

    let all: Vec<usize> = (0..5).collect();
    // In the order of `Cast::callers`: superuser, staff, owner, group owner, manager, member,
    // outsider, superuser elsewhere.
    let readable = [all.clone(), all, vec![2], vec![], vec![3], vec![4], vec![], vec![]];
    for ((who, api), readable) in cast.callers().iter().zip(readable) {
        for (number, command) in made.iter().enumerate() {
            let path = item_path(COMMANDS, command);
            let (chunks, stream) = (format!("{path}chunks/"), format!("{path}stream/"));
            if !readable.contains(&number) {
                for path in [&path, &chunks, &stream] {
                    api.get(path).await.expect_detail(404, Some("COMMAND_NOT_FOUND"));
                }
                let reply = api.call("POST", &format!("{path}cancel/")).await;
                reply.expect_detail(404, Some("COMMAND_NOT_FOUND"));
                continue;
            }
            assert_eq!(
                &api.get(&path).await.expect(200),
                command,
                "{who}: the command did not change"
            );
            assert_eq!(
                (&command["server"], &command["server_name"]),
                (&server["id"], &server["name"])
            );
            let expected = json!([{"seq": 0, "content": format!("output {number}\n")}]);
            assert_eq!(api.get(&chunks).await.expect(200)["results"], expected, "{who}");
            let mut events = Events::open(api, &stream)
                .await
                .unwrap_or_else(|reply| panic!("{who}: {}", reply.text));
            let (events_left, end) = events.rest().await;
            assert_eq!((events_left.len(), &end["id"]), (1, &command["id"]), "{who}");
        }
        let expected: Vec<&Value> =
            readable.iter().rev().map(|number| &made[*number]["id"]).collect();
        for query in [
            format!("server={id}"),
            format!("server={id}&ordering=-added_at"),
            format!("search={name}"),
            "search=marker".to_owned(),
            format!("search=ECHO+{name}"),
            "is_scheduled=false".to_owned(),
            "shell=system".to_owned(),
            String::new(),
        ] {
            let list = api.get(&format!("{COMMANDS}?{query}")).await.expect(200);
            assert_eq!(column(&list, "id").iter().collect::<Vec<_>>(), expected, "{who}: {query}");
            assert_eq!(list["count"], expected.len(), "{who}: {query}");
        }
        for number in &readable {
            let by = &made[*number]["requested_by"]["id"];
            let list =
                api.get(&format!("{COMMANDS}?requested_by={by}&server={id}")).await.expect(200);
            assert_eq!(list["count"], 1, "{who}");
        }
        // Commands for the deleted server get the same error as for an unknown one.
        let mut texts = Vec::new();
        for unknown in [id, UNKNOWN_UUID] {
            let reply = api.post(COMMANDS, &json!({"server": unknown, "line": "id"})).await;
            reply.expect_fields(400, &["server"]);
            texts.push(reply.text.replace(unknown, "<id>"));
            api.get(&format!("{SERVERS}{unknown}/")).await.expect_detail(404, None);
        }
        assert_eq!(texts[0], texts[1], "{who}");
    }
    // The new server with the same name does not have the old server's history. Its deletion does
    // not change that history.
    let of_next = workspace
        .admin
        .get(&format!("{COMMANDS}?server={}", next["id"].as_str().unwrap()))
        .await
        .expect(200);
    assert_eq!(of_next["count"], 0);
    workspace
        .admin
        .patch(&item_path(SERVERS, &next), &json!({"name": "renamed"}))
        .await
        .expect(200);
    workspace.admin.delete(&item_path(SERVERS, &next)).await.expect(204);
    for command in &made {
        assert_eq!(&workspace.admin.get(&item_path(COMMANDS, command)).await.expect(200), command);
    }
    // Access depends on the current rank, not on the rank at the time of the request.
    cast.staff.set(workspace, json!({"is_staff": false})).await;
    let demoted = workspace.anonymous.logged_in("staff", PASSWORD).await;
    let list = demoted.get(COMMANDS).await.expect(200);
    assert_eq!(column(&list, "id"), [made[1]["id"].clone()]);
    cast.member.set(workspace, json!({"is_staff": true})).await;
    assert_eq!(
        cast.member.api.get(&format!("{COMMANDS}?server={id}")).await.expect(200)["count"],
        5
    );
    cast.member.set(workspace, json!({"is_staff": false})).await;
    workspace.admin.delete(&cast.manager.path()).await.expect(204);
    let of_nobody = workspace.admin.get(&item_path(COMMANDS, &made[3])).await.expect(200);
    assert_eq!(
        (&of_nobody["requested_by"], &of_nobody["result"]),
        (&Value::Null, &made[3]["result"])
    );
    cast.owner
        .api
        .get(&item_path(COMMANDS, &made[3]))
        .await
        .expect_detail(404, Some("COMMAND_NOT_FOUND"));
}

#[tokio::test]
async fn streams_of_a_deleted_server_continue_for_its_readers() {
    let cast = Cast::new().await;
    let workspace = &cast.workspace;
    let server = cast.server().await;
    let mut agent = ScriptedAgent::connect(workspace, &server).await;
    let made = cast.manager.api.post(COMMANDS, &command(&server, json!({}))).await.expect(201);
    let id = made["id"].as_str().unwrap();
    assert_eq!(agent.next_command().await["id"], id);
    agent.chunk(id, 0, "before\n").await;
    let path = format!("{}stream/", item_path(COMMANDS, &made));
    let open = async |api: &Api| {
        let mut events =
            Events::open(api, &path).await.unwrap_or_else(|reply| panic!("{}", reply.text));
        assert_eq!(events.next_chunk().await, (0, "before\n".to_owned()));
        events
    };
    let (staff, requester) = (open(&cast.staff.api).await, open(&cast.manager.api).await);
    let others = [
        open(&cast.owner.api).await,
        open(&cast.group_owner.api).await,
        open(&cast.member.api).await,
    ];
    cast.owner.api.delete(&item_path(SERVERS, &server)).await.expect(204);
    let since = Instant::now();
    future::join_all(others.into_iter().map(async |mut events| {
        loop {
            let left = REVOKED_WITHIN.saturating_sub(since.elapsed());
            match tokio::time::timeout(left, events.next()).await {
                Ok(Some(Block::Comment(_) | Block::Retry(_))) => {}
                Ok(None) => break,
                Ok(other) => panic!("{other:?}"),
                Err(_) => panic!("the stream did not end"),
            }
        }
    }))
    .await;
    for mut events in [staff, requester] {
        // The command has no result, and is stuck after a minute.
        let end = loop {
            match events.next_within(STUCK_WITHIN).await {
                Some(Block::Comment(_) | Block::Retry(_)) => {}
                Some(Block::End(end)) => break end,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((&end["id"], &end["status"]["text"]), (&made["id"], &json!("Stuck")));
    }
}

#[tokio::test]
async fn a_deleted_server_frees_its_name_and_groups() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    workspace.admin.patch(&item_path(SERVERS, &server), &json!({"groups": []})).await.expect(200);
    for _ in 0..3 {
        let group = workspace.group("ops", &[]).await;
        let made = workspace
            .admin
            .post(SERVERS, &json!({"name": "web-2", "groups": [group["id"]]}))
            .await
            .expect(201);
        workspace.admin.delete(&item_path(SERVERS, &made)).await.expect(204);
        assert_eq!(
            workspace.admin.get(&group_path(&group)).await.expect(200)["servers"],
            json!([])
        );
        workspace.admin.delete(&group_path(&group)).await.expect(204);
        assert!(!is_key_accepted(&workspace, &made).await);
    }
    // Of concurrent deletions, at least one succeeds, and the other requests get a 404.
    let path = item_path(SERVERS, &server);
    let replies = future::join_all((0..4).map(|_| workspace.admin.delete(&path))).await;
    assert!(replies.iter().all(|reply| matches!(reply.status, 204 | 404)), "{replies:?}");
    assert!(replies.iter().any(|reply| reply.status == 204), "{replies:?}");
    assert_eq!(workspace.admin.get(SERVERS).await.expect(200)["count"], 0);
    assert_eq!(workspace.admin.get(GROUPS).await.expect(200)["count"], 0);
}

/// Posts commands for a server until `stop` is set, and returns the responses.
async fn post_until(api: &Api, body: &Value, stop: &AtomicBool) -> Vec<Reply> {
    let mut replies = Vec::new();
    // Posts a few more after that, which must be rejected.
    let mut left = 3;
    while left > 0 {
        left -= i32::from(stop.load(Ordering::SeqCst));
        replies.push(api.post(COMMANDS, body).await);
    }
    replies
}

/// Deletes a server while commands for it are posted. Asserts that each accepted command ends, and
/// that rejected ones leave nothing.
async fn delete_while_posting(is_connected: bool) {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let member = Person::new(&workspace, "max").await;
    let group = workspace.group("ops", &[&server]).await;
    workspace.add_member(&group, &member, "member").await;
    // This agent neither reads nor reports.
    let _agent =
        if is_connected { Some(ScriptedAgent::connect(&workspace, &server).await) } else { None };
    let bodies = [
        command(&server, json!({"on_offline": "queue"})),
        command(&server, json!({"scheduled_at": now().plus_seconds(3_600)})),
        command(&server, json!({"scheduled_at": now().plus_seconds(2), "on_offline": "queue"})),
        json!({"server": "web-1", "line": "id", "on_offline": "queue"}),
    ];
    let stop = AtomicBool::new(false);
    let posters = bodies
        .iter()
        .flat_map(|body| [&workspace.admin, &member.api].map(|api| post_until(api, body, &stop)));
    let delete = async {
        eventually("some commands", || async {
            let count =
                workspace.admin.get(&format!("{COMMANDS}?page_size=1")).await.expect(200)["count"]
                    .clone();
            (count.as_i64().unwrap() > 10).then_some(())
        })
        .await;
        workspace.admin.delete(&item_path(SERVERS, &server)).await.expect(204);
        stop.store(true, Ordering::SeqCst);
    };
    let (replies, ()) = future::join(future::join_all(posters), delete).await;
    let mut taken = Vec::new();
    for replies in replies {
        assert_eq!(
            replies.last().unwrap().status,
            400,
            "the last request comes after the deletion"
        );
        for reply in replies {
            match reply.status {
                201 => taken.push(reply.json()),
                503 => reply.expect_detail(503, Some("SERVER_NOT_CONNECTED")),
                _ => drop(reply.expect_fields(400, &["server"])),
            }
        }
    }
    assert!(taken.len() > 10);
    for made in &taken {
        let over = wait_until_ended_within(STUCK_WITHIN, &workspace.admin, id_of(made)).await;
        let text = over["status"]["text"].as_str().unwrap();
        let expected = if over["delivered_at"].is_null() { "Cancelled" } else { "Stuck" };
        assert_eq!((text, &over["success"]), (expected, &json!(false)), "{over}");
    }
    let list = workspace.admin.get(&format!("{COMMANDS}?page_size=1")).await.expect(200);
    assert_eq!(list["count"], taken.len(), "rejected commands are not stored");
}

#[tokio::test]
async fn commands_queued_during_a_deletion_all_end() {
    delete_while_posting(false).await;
}

#[tokio::test]
async fn commands_delivered_during_a_deletion_all_end() {
    delete_while_posting(true).await;
}

#[tokio::test]
async fn a_new_key_can_disable_the_old_one_immediately() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let path = format!("{}rotate-key/", item_path(SERVERS, &server));
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let mut control = ScriptedAgent::connect_to(&agent.api, "/ws/servers/control/").await;
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), true).await;
    let running = workspace.admin.post(COMMANDS, &command(&server, json!({}))).await.expect(201);
    let running = running["id"].as_str().unwrap();
    assert_eq!(agent.next_command().await["id"], running);
    agent.ack(running).await;

    let rotated = workspace.admin.post(&path, &json!({"now": true})).await.expect(200);
    assert_eq!(rotated["old_key_valid_until"], Value::Null);
    let mut fields = keys(&without_key(&server)).into_iter().map(str::to_owned).collect::<Vec<_>>();
    fields.extend(["install", "install_alpamon", "key", "old_key_valid_until"].map(str::to_owned));
    fields.sort();
    assert_eq!(keys(&rotated), fields);
    let key = rotated["key"].as_str().unwrap();
    assert!(
        key.len() == 128
            && key.bytes().all(|b| b.is_ascii_alphanumeric())
            && rotated["key"] != server["key"]
    );
    let install = rotated["install"].as_str().unwrap();
    let alpamon = rotated["install_alpamon"].as_str().unwrap();
    for install in [install, alpamon] {
        assert!(
            install.contains(key) && install.contains(server["id"].as_str().unwrap()),
            "{install}"
        );
    }
    assert_eq!(
        (&rotated["id"], &rotated["name"], &rotated["owner"]),
        (&server["id"], &server["name"], &server["owner"])
    );

    assert!(!is_key_accepted(&workspace, &server).await);
    let fin = json!({"success": true, "result": "stolen", "elapsed_time": 1.0, "exit_code": 0});
    agent.report(running, "fin", Some(&fin)).await.expect_detail(403, INVALID);
    wait_until_closed(&mut agent).await;
    wait_until_closed(&mut control).await;
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), false).await;
    let queued = workspace
        .admin
        .post(COMMANDS, &command(&server, json!({"on_offline": "queue"})))
        .await
        .expect(201);
    let soon = command(&server, json!({"scheduled_at": now().plus_seconds(5)}));
    let soon = workspace.admin.post(COMMANDS, &soon).await.expect(201);

    assert!(is_key_accepted(&workspace, &rotated).await);
    let mut agent = ScriptedAgent::connect(&workspace, &rotated).await;
    for waited in [&queued, &soon] {
        assert_eq!(agent.next_command().await["id"], waited["id"]);
    }
    assert!(agent.stays_silent().await, "delivered commands are not delivered again");
    // A command that was delivered under the old key can end under the new one.
    agent.fin(running, 0, "done\n").await;
    let done = workspace.admin.get(&format!("{COMMANDS}{running}/")).await.expect(200);
    assert_eq!((&done["status"]["text"], &done["result"]), (&json!("Success"), &json!("done\n")));
    // The key is shown only in this response.
    let reply = workspace.admin.get(&item_path(SERVERS, &server)).await;
    assert!(!reply.text.contains(key), "{}", reply.text);
    assert_eq!(keys(&reply.expect(200)), keys(&without_key(&server)));
    for id in [UNKNOWN_UUID, "nonsense", "web-1"] {
        workspace
            .admin
            .call("POST", &format!("{SERVERS}{id}/rotate-key/"))
            .await
            .expect_detail(404, None);
    }
    for method in ["GET", "PUT", "PATCH", "DELETE"] {
        assert_eq!(workspace.admin.call(method, &path).await.status, 405, "{method}");
    }
}

#[tokio::test]
async fn a_rotated_key_is_valid_until_an_agent_connects_with_the_new_one() {
    let workspace = Workspace::new().await;
    let staff = workspace.staff("ann").await;
    let server = workspace.server("web-1").await;
    let path = format!("{}rotate-key/", item_path(SERVERS, &server));
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    staff.post(&path, &json!({"now": true})).await.expect_detail(403, DENIED);
    staff.post(&path, &json!({"now": "yes"})).await.expect_fields(400, &["now"]);
    let first = staff.post(&path, &json!({"now": false})).await.expect(200);
    let rotated = staff.call("POST", &path).await.expect(200);
    let valid_for = time_of(&rotated, "old_key_valid_until").seconds_since(now());
    assert!((86_000.0..86_401.0).contains(&valid_for), "{valid_for}");
    // The agent is still connected, and gets commands. The second rotation replaced the first.
    let made = workspace.admin.post(COMMANDS, &command(&server, json!({}))).await.expect(201);
    assert_eq!(agent.next_command().await["id"], made["id"]);
    agent.fin(id_of(&made), 0, "done\n").await;
    let own = async |server: &Value| {
        workspace.anonymous.with_authorization(&credential(server)).get(OWN).await.status
    };
    assert_eq!((own(&server).await, own(&first).await, own(&rotated).await), (200, 403, 200));
    let mut new = ScriptedAgent::connect(&workspace, &rotated).await;
    wait_until_closed(&mut agent).await;
    assert_eq!((own(&server).await, own(&rotated).await), (403, 200));
    let made = workspace.admin.post(COMMANDS, &command(&server, json!({}))).await.expect(201);
    assert_eq!(new.next_command().await["id"], made["id"]);
}

#[tokio::test]
async fn a_user_rotates_keys_and_deletes_servers_twenty_times_an_hour() {
    let workspace = Workspace::new().await;
    let staff = workspace.staff("ann").await;
    let (first, last) = (workspace.server("web-1").await, workspace.server("web-2").await);
    let rotate = |server| format!("{}rotate-key/", item_path(SERVERS, server));
    staff.delete(&item_path(SERVERS, &workspace.server("web-3").await)).await.expect(204);
    // Concurrent requests do not exceed the limit: the object and D1 count again.
    let path = rotate(&first);
    let replies = future::join_all((0..25).map(|_| staff.call("POST", &path))).await;
    let done = replies.iter().filter(|reply| reply.status == 200).count();
    assert_eq!(done, 19, "{:?}", replies.iter().map(|reply| reply.status).collect::<Vec<_>>());
    let key = workspace.admin.get(&item_path(SERVERS, &last)).await.expect(200);
    for refused in
        [staff.call("POST", &rotate(&last)).await, staff.delete(&item_path(SERVERS, &last)).await]
    {
        refused.expect_detail(429, Some("QUOTA_EXCEEDED"));
        let left: u64 = refused.header("Retry-After").parse().unwrap();
        assert!((3_000..=3_600).contains(&left), "{left}");
    }
    assert_eq!(workspace.admin.get(&item_path(SERVERS, &last)).await.expect(200), key);
    // The limit is the user's own, and superusers have a higher one.
    workspace.admin.call("POST", &rotate(&last)).await.expect(200);
    workspace.staff("bob").await.delete(&item_path(SERVERS, &last)).await.expect(204);
}

#[tokio::test]
async fn of_concurrent_key_rotations_one_key_is_valid() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let path = format!("{}rotate-key/", item_path(SERVERS, &server));
    for round in 0..8 {
        let count = 2 + round % 3;
        let replies =
            future::join_all((0..count).map(|_| workspace.admin.call("POST", &path))).await;
        let servers: Vec<Value> = replies.iter().map(|reply| reply.expect(200)).collect();
        let mut good = Vec::new();
        for one in &servers {
            if is_key_accepted(&workspace, one).await {
                good.push(one);
            }
        }
        assert_eq!(good.len(), 1, "round {round}");
        // A later rotation replaces the key, when an agent connects.
        let last = workspace.admin.call("POST", &path).await.expect(200);
        assert!(
            is_key_accepted(&workspace, &last).await && !is_key_accepted(&workspace, good[0]).await,
            "round {round}"
        );
    }
    // The same with a connected agent, and a concurrent deletion.
    let first = workspace.admin.call("POST", &path).await.expect(200);
    let mut agent = ScriptedAgent::connect(&workspace, &first).await;
    let (rotated, deleted) = future::join(
        workspace.admin.call("POST", &path),
        workspace.admin.delete(&item_path(SERVERS, &server)),
    )
    .await;
    deleted.expect(204);
    wait_until_closed(&mut agent).await;
    match rotated.status {
        200 => {
            assert!(!is_key_accepted(&workspace, &rotated.json()).await, "the server is deleted")
        }
        _ => rotated.expect_detail(404, None),
    }
    assert!(!is_key_accepted(&workspace, &first).await);
}
