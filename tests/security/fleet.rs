//! Who may do what to whom (contract 5): the matrix of access, and that it follows every change at
//! once.

use std::time::{Duration, Instant};

use farhand_tests::client::{PASSWORD, unique};
use farhand_tests::events::Block;
use farhand_tests::people::{
    CALLERS, COMMANDS, GROUPS, MEMBERSHIPS, NO_NUMBER, NO_UUID, SERVERS, USERS, at, column,
    group_path,
};
use farhand_tests::{Api, Cast, Events, Person, Reply, ScriptedAgent, Workspace, far_ahead};
use futures_util::future;
use serde_json::{Value, json};

/// What an attempt is made on.
struct Target {
    /// The ids of the things that it names.
    ids: Vec<String>,
    /// The path of the thing itself.
    path: String,
    /// The thing.
    object: Value,
    /// What a superuser reads to see whether anything changed.
    witnesses: Vec<String>,
}

/// The method, the path and the body of a request; no body where it is null.
type Request = (&'static str, String, Value);

/// An attempt, and how it ends for each of the callers.
struct Row {
    what: &'static str,
    expected: [u16; CALLERS],
    attempt: fn(&Target) -> Request,
}

fn row(what: &'static str, expected: [u16; CALLERS], attempt: fn(&Target) -> Request) -> Row {
    Row { what, expected, attempt }
}

impl Target {
    fn below(&self, rest: &str) -> String {
        format!("{}{rest}", self.path)
    }
}

async fn send(api: &Api, (method, path, body): Request) -> Reply {
    match body {
        Value::Null => api.call(method, &path).await,
        body => api.send_json(method, &path, &body).await,
    }
}

/// A text without the ids in it: whether there is a thing must not be told by anything else.
fn without_ids(text: &str, target: &Target) -> String {
    target.ids.iter().fold(text.to_owned(), |text, id| text.replace(id, "<id>"))
}

async fn witness(cast: &Cast, target: &Target) -> Vec<(u16, String)> {
    let replies = target.witnesses.iter().map(|path| cast.workspace.admin.get(path));
    future::join_all(replies).await.into_iter().map(|reply| (reply.status, reply.text)).collect()
}

/// Asserts every cell of a table, each on things of its own. `nothing` is a target that there is
/// not: to whom a thing is hidden, it is the same. `not_found` is the code of such a refusal.
async fn holds(
    cast: &Cast,
    rows: &[Row],
    fresh: impl AsyncFn(&Cast) -> Target,
    nothing: &Target,
    not_found: Option<&str>,
) {
    for row in rows {
        for ((name, api), expected) in cast.callers().iter().zip(row.expected) {
            let target = fresh(cast).await;
            let before = witness(cast, &target).await;
            let reply = send(api, (row.attempt)(&target)).await;
            let what = format!("{}, {name}: {}", row.what, reply.text);
            assert_eq!(reply.status, expected, "{what}");
            let after = witness(cast, &target).await;
            let is_read = row.what.starts_with("see");
            if expected < 300 && !is_read {
                assert_ne!(after, before, "{what}");
            } else {
                assert_eq!(after, before, "{what}");
            }
            match expected {
                400 | 404 => {
                    let of_nothing = send(api, (row.attempt)(nothing)).await;
                    assert_eq!(
                        (of_nothing.status, without_ids(&of_nothing.text, nothing)),
                        (reply.status, without_ids(&reply.text, &target)),
                        "{what}"
                    );
                    if expected == 404 {
                        reply.expect_detail(404, not_found);
                    }
                }
                403 => {
                    let code =
                        if *name == "intruder" { "INVALID_TOKEN" } else { "PERMISSION_DENIED" };
                    reply.expect_detail(403, Some(code));
                }
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn servers_are_for_those_who_reach_them() {
    // superuser, staff, owner, group owner, manager, member, outsider, superuser elsewhere, and the
    // same asking here
    let rows = [
        row("see", [200, 200, 200, 200, 200, 200, 404, 404, 403], |it| {
            ("GET", it.path.clone(), Value::Null)
        }),
        row("edit", [200, 200, 200, 403, 403, 403, 404, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"name": unique("new")}))
        }),
        row("replace", [200, 200, 200, 403, 403, 403, 404, 404, 403], |it| {
            ("PUT", it.path.clone(), json!({"name": unique("new")}))
        }),
        row("take out of its groups", [200, 200, 403, 403, 403, 403, 404, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"groups": []}))
        }),
        row("delete", [204, 204, 204, 403, 403, 403, 404, 404, 403], |it| {
            ("DELETE", it.path.clone(), Value::Null)
        }),
    ];
    let cast = Cast::new().await;
    let fresh = async |cast: &Cast| {
        let server = cast.server().await;
        let path = at(SERVERS, &server);
        let witnesses =
            vec![path.clone(), "/api/servers/?page_size=100".to_owned(), group_path(&cast.group)];
        Target {
            ids: vec![server["id"].as_str().unwrap().to_owned()],
            path,
            object: server,
            witnesses,
        }
    };
    let nothing = Target {
        ids: vec![NO_UUID.to_owned()],
        path: format!("{SERVERS}{NO_UUID}/"),
        object: json!({"id": NO_UUID}),
        witnesses: vec![],
    };
    holds(&cast, &rows, fresh, &nothing, None).await;
    // The right comes before the input.
    let target = fresh(&cast).await;
    let before = witness(&cast, &target).await;
    let badly = [400, 400, 400, 403, 403, 403, 404, 404, 403];
    for ((name, api), expected) in cast.callers().iter().zip(badly) {
        for method in ["PUT", "PATCH"] {
            let reply = api.send_json(method, &target.path, &json!({"name": "Not A Name"})).await;
            assert_eq!(reply.status, expected, "{name}: {}", reply.text);
            if expected == 400 {
                reply.expect_fields(400, &["name"]);
            }
        }
    }
    assert_eq!(witness(&cast, &target).await, before);
}

#[tokio::test]
async fn keys_are_changed_by_staff_and_the_owner() {
    let cast = Cast::new().await;
    let server = cast.server().await;
    let expected = [200, 200, 200, 403, 403, 403, 404, 404, 403];
    let path = format!("{}rotate-key/", at(SERVERS, &server));
    let mut key = server["key"].clone();
    let is_good = async |key: &Value| {
        let agent = json!({"id": server["id"], "key": key});
        let api = cast.workspace.anonymous.with(&farhand_tests::agents::credential(&agent));
        api.get("/api/servers/servers/-/").await.status
    };
    for ((name, api), expected) in cast.callers().iter().zip(expected) {
        let reply = api.call("POST", &path).await;
        assert_eq!(reply.status, expected, "{name}: {}", reply.text);
        if expected == 200 {
            assert_eq!(is_good(&key).await, 403, "{name}: the old one");
            key = reply.json()["key"].clone();
        }
        assert_eq!(is_good(&key).await, 200, "{name}");
    }
}

/// The body of a command for a server.
fn run(target: &Target, more: Value) -> Value {
    let mut body = json!({"server": target.object["server"], "line": "id", "on_offline": "queue"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn commands_are_for_those_who_reach_their_server() {
    // superuser, staff, owner, group owner, manager, member, outsider, superuser elsewhere, and the
    // same asking here
    let rows = [
        row("see", [200, 200, 200, 200, 200, 200, 404, 404, 403], |it| {
            ("GET", it.path.clone(), Value::Null)
        }),
        row("see its chunks", [200, 200, 200, 200, 200, 200, 404, 404, 403], |it| {
            ("GET", it.below("chunks/"), Value::Null)
        }),
        row("run as self", [201, 201, 201, 201, 201, 201, 400, 400, 403], |it| {
            ("POST", COMMANDS.to_owned(), run(it, json!({})))
        }),
        row("run as root", [201, 201, 201, 201, 201, 403, 400, 400, 403], |it| {
            ("POST", COMMANDS.to_owned(), run(it, json!({"username": "root"})))
        }),
        row("run in a group", [201, 201, 201, 201, 201, 403, 400, 400, 403], |it| {
            ("POST", COMMANDS.to_owned(), run(it, json!({"groupname": "adm"})))
        }),
        row("run later as root", [201, 201, 201, 201, 201, 403, 400, 400, 403], |it| {
            let more = json!({"username": "root", "scheduled_at": far_ahead()});
            ("POST", COMMANDS.to_owned(), run(it, more))
        }),
        row("cancel", [200, 200, 403, 403, 403, 403, 404, 404, 403], |it| {
            ("POST", it.below("cancel/"), Value::Null)
        }),
        row("kill", [200, 200, 403, 403, 403, 403, 404, 404, 403], |it| {
            ("POST", it.below("kill/"), Value::Null)
        }),
        row("delete", [204, 204, 403, 403, 403, 403, 404, 404, 403], |it| {
            ("DELETE", it.path.clone(), Value::Null)
        }),
        // Nobody changes a command, and that is told before the credential.
        row("edit", [405; CALLERS], |it| ("PATCH", it.path.clone(), json!({"line": "w"}))),
        row("replace", [405; CALLERS], |it| ("PUT", it.path.clone(), json!({"line": "w"}))),
    ];
    let cast = Cast::new().await;
    let server = cast.server().await;
    // Whose command it is: somebody who is none of the callers.
    let other = Person::staff(&cast.workspace, "other").await;
    let id = server["id"].as_str().unwrap();
    let fresh = async |_: &Cast| {
        let body = json!({"server": id, "line": "id", "on_offline": "queue"});
        let mut command = other.api.post(COMMANDS, &body).await.expect(201);
        let path = at(COMMANDS, &command);
        let witnesses = vec![path.clone(), format!("{COMMANDS}?server={id}&page_size=1")];
        let ids = vec![command["id"].as_str().unwrap().to_owned(), id.to_owned()];
        command["server"] = json!(id);
        Target { ids, path, object: command, witnesses }
    };
    let nothing = Target {
        ids: vec![NO_UUID.to_owned()],
        path: format!("{COMMANDS}{NO_UUID}/"),
        object: json!({"id": NO_UUID, "server": NO_UUID}),
        witnesses: vec![],
    };
    holds(&cast, &rows, fresh, &nothing, Some("COMMAND_NOT_FOUND")).await;
}

#[tokio::test]
async fn a_plain_member_runs_as_themselves_only() {
    let cast = Cast::new().await;
    let server = cast.server().await;
    let mut agent = ScriptedAgent::connect(&cast.workspace, &server).await;
    let member = &cast.member;
    let body = |more: Value| {
        let mut body = json!({"server": server["name"], "line": "id"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for refused in [
        json!({"username": "root"}),
        json!({"username": "Member"}),
        json!({"username": "owner"}),
        json!({"username": "member", "groupname": "member"}),
        json!({"groupname": "root"}),
        json!({"username": "root", "groupname": "root"}),
    ] {
        let reply = member.api.post(COMMANDS, &body(refused)).await;
        reply.expect_detail(403, Some("PERMISSION_DENIED"));
    }
    // A blank one is wrong for everybody: an agent would take it for root.
    for blank in ["", " "] {
        for api in [&member.api, &cast.workspace.admin] {
            api.post(COMMANDS, &body(json!({"username": blank})))
                .await
                .expect_fields(400, &["username"]);
        }
    }
    assert!(agent.stays_silent().await);
    for own in
        [json!({}), json!({"username": "member"}), json!({"username": "member", "groupname": ""})]
    {
        let made = member.api.post(COMMANDS, &body(own)).await.expect(201);
        let order = agent.next_command().await;
        assert_eq!(
            (&order["id"], &order["user"], &order["group"]),
            (&made["id"], &json!("member"), &json!(""))
        );
        agent.fin(made["id"].as_str().unwrap(), 0, "").await;
    }
    for person in [&cast.manager, &cast.group_owner, &cast.owner] {
        let as_root = json!({"username": "root", "groupname": "adm"});
        person.api.post(COMMANDS, &body(as_root)).await.expect(201);
        let order = agent.next_command().await;
        assert_eq!((&order["user"], &order["group"]), (&json!("root"), &json!("adm")));
        agent.fin(order["id"].as_str().unwrap(), 0, "").await;
    }
    // The agent's built-ins are for staff, whatever somebody is in a group.
    let internal = body(json!({"line": "ping", "shell": "internal"}));
    for person in [&cast.member, &cast.manager, &cast.group_owner, &cast.owner] {
        person.api.post(COMMANDS, &internal).await.expect_detail(403, Some("PERMISSION_DENIED"));
    }
    assert!(agent.stays_silent().await);
    // What one is in another group counts for nothing here.
    let other = cast.workspace.group(&unique("other"), &[]).await;
    cast.workspace.enroll(&other, member, "owner").await;
    let reply = member.api.post(COMMANDS, &body(json!({"username": "root"}))).await;
    reply.expect_detail(403, Some("PERMISSION_DENIED"));
    // The highest of what one is in the groups of the server counts.
    cast.workspace
        .admin
        .patch(&group_path(&other), &json!({"servers": [server["id"]]}))
        .await
        .expect(200);
    member.api.post(COMMANDS, &body(json!({"username": "root"}))).await.expect(201);
    assert_eq!(agent.next_command().await["user"], "root");
}

#[tokio::test]
async fn everyone_takes_back_what_they_asked_for() {
    let cast = Cast::new().await;
    let server = cast.server().await;
    let body = json!({"server": server["id"], "line": "id", "on_offline": "queue"});
    for (name, api) in cast.callers().iter().take(6) {
        for (method, action, status) in
            [("POST", "cancel/", 200), ("POST", "kill/", 200), ("DELETE", "", 204)]
        {
            let made = api.post(COMMANDS, &body).await.expect(201);
            let path = at(COMMANDS, &made);
            let reply = api.call(method, &format!("{path}{action}")).await;
            assert_eq!(reply.status, status, "{name}: {}", reply.text);
            assert_eq!(api.get(&path).await.expect(200)["status"]["text"], "Cancelled", "{name}");
        }
    }
    // Not any more when they do not reach it: it is no command to them.
    let made = cast.member.api.post(COMMANDS, &body).await.expect(201);
    let path = at(COMMANDS, &made);
    cast.workspace.expel(&cast.group, &cast.member).await;
    for (method, action) in
        [("POST", "cancel/"), ("POST", "kill/"), ("DELETE", ""), ("GET", ""), ("GET", "chunks/")]
    {
        let reply = cast.member.api.call(method, &format!("{path}{action}")).await;
        reply.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    }
    let still = cast.workspace.admin.get(&path).await.expect(200);
    assert_eq!(still["status"]["text"], "Queued");
}

#[tokio::test]
async fn groups_are_for_those_in_them() {
    // superuser, staff, owner, group owner, manager, member, outsider, superuser elsewhere, and the
    // same asking here
    let rows = [
        row("see", [200, 200, 404, 200, 200, 200, 404, 404, 403], |it| {
            ("GET", it.path.clone(), Value::Null)
        }),
        row("edit", [200, 200, 404, 200, 403, 403, 404, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"display_name": "New"}))
        }),
        row("replace", [200, 200, 404, 200, 403, 403, 404, 404, 403], |it| {
            ("PUT", it.path.clone(), json!({"name": unique("new")}))
        }),
        row("give a server", [200, 200, 404, 403, 403, 403, 404, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"servers": [it.object["server"]]}))
        }),
        row("delete", [204, 204, 404, 204, 403, 403, 404, 404, 403], |it| {
            ("DELETE", it.path.clone(), Value::Null)
        }),
    ];
    let cast = Cast::new().await;
    let server = cast.server().await;
    let fresh = async |cast: &Cast| {
        let mut group = cast.group().await.group;
        let path = group_path(&group);
        let witnesses = vec![
            path.clone(),
            format!("{GROUPS}?page_size=100"),
            format!("{MEMBERSHIPS}?group={}", group["id"]),
            at(SERVERS, &server),
        ];
        group["server"] = server["id"].clone();
        Target { ids: vec![group["id"].to_string()], path, object: group, witnesses }
    };
    let nothing = Target {
        ids: vec![NO_NUMBER.to_string()],
        path: format!("{GROUPS}{NO_NUMBER}/"),
        object: json!({"id": NO_NUMBER, "server": server["id"]}),
        witnesses: vec![],
    };
    holds(&cast, &rows, fresh, &nothing, None).await;
}

/// The body of a membership.
fn membership(target: &Target, role: &str) -> Value {
    json!({"group": target.object["group"], "user": target.object["stranger"], "role": role})
}

#[tokio::test]
async fn memberships_are_for_those_in_their_group() {
    // superuser, staff, owner, group owner, manager, member, outsider, superuser elsewhere, and the
    // same asking here
    let rows = [
        row("see", [200, 200, 404, 200, 200, 200, 404, 404, 403], |it| {
            ("GET", it.path.clone(), Value::Null)
        }),
        row("add a member", [201, 201, 400, 201, 201, 403, 400, 400, 403], |it| {
            ("POST", MEMBERSHIPS.to_owned(), membership(it, "member"))
        }),
        row("add a manager", [201, 201, 400, 201, 403, 403, 400, 400, 403], |it| {
            ("POST", MEMBERSHIPS.to_owned(), membership(it, "manager"))
        }),
        row("add an owner", [201, 201, 400, 201, 403, 403, 400, 400, 403], |it| {
            ("POST", MEMBERSHIPS.to_owned(), membership(it, "owner"))
        }),
        row("promote a member", [200, 200, 404, 200, 403, 403, 404, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"role": "manager"}))
        }),
        row("make a member owner", [200, 200, 404, 200, 403, 403, 404, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"role": "owner"}))
        }),
        row("remove a member", [204, 204, 404, 204, 204, 403, 404, 404, 403], |it| {
            ("DELETE", it.path.clone(), Value::Null)
        }),
    ];
    let of_managers = [
        row("demote a manager", [200, 200, 404, 200, 403, 403, 404, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"role": "member"}))
        }),
        row("remove a manager", [204, 204, 404, 204, 403, 403, 404, 404, 403], |it| {
            ("DELETE", it.path.clone(), Value::Null)
        }),
    ];
    let cast = Cast::new().await;
    let stranger = Person::new(&cast.workspace, "stranger").await;
    let target = |group: &Value, membership: &Value| {
        let (path, group_id) = (at(MEMBERSHIPS, membership), &group["id"]);
        let witnesses = vec![
            path.clone(),
            group_path(group),
            format!("{MEMBERSHIPS}?group={group_id}"),
            MEMBERSHIPS.to_owned(),
        ];
        let object = json!({"group": group_id, "stranger": stranger.id});
        Target { ids: vec![group_id.to_string(), stranger.id.to_string()], path, object, witnesses }
    };
    let nothing = Target {
        ids: vec![NO_NUMBER.to_string(), stranger.id.to_string()],
        path: format!("{MEMBERSHIPS}{NO_UUID}/"),
        object: json!({"group": NO_NUMBER, "stranger": stranger.id}),
        witnesses: vec![],
    };
    let member = async |cast: &Cast| {
        let made = cast.group().await;
        target(&made.group, &made.bystander)
    };
    holds(&cast, &rows, member, &nothing, None).await;
    let manager = async |cast: &Cast| {
        let made = cast.group().await;
        target(&made.group, &made.deputy)
    };
    holds(&cast, &of_managers, manager, &nothing, None).await;
}

#[tokio::test]
async fn users_are_seen_by_all_and_changed_by_staff() {
    // superuser, staff, owner, group owner, manager, member, outsider, superuser elsewhere, and the
    // same asking here
    let rows = [
        row("see", [200, 200, 200, 200, 200, 200, 200, 404, 403], |it| {
            ("GET", it.path.clone(), Value::Null)
        }),
        row("edit", [200, 200, 403, 403, 403, 403, 403, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"first_name": "New"}))
        }),
        row("deactivate", [200, 200, 403, 403, 403, 403, 403, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"is_active": false}))
        }),
        row("make staff", [200, 403, 403, 403, 403, 403, 403, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"is_staff": true}))
        }),
        row("delete", [204, 204, 403, 403, 403, 403, 403, 404, 403], |it| {
            ("DELETE", it.path.clone(), Value::Null)
        }),
    ];
    let cast = Cast::new().await;
    let fresh = async |cast: &Cast| {
        // In the group like the callers: what they are in it says nothing about its other members.
        let name = format!("u{}", unique("x").replace('-', ""));
        let user = cast.workspace.user_with(&name, &json!({})).await;
        let body = json!({"group": cast.group["id"], "user": user["id"], "role": "member"});
        cast.group_owner.api.post(MEMBERSHIPS, &body).await.expect(201);
        let path = format!("{USERS}{}/", user["id"]);
        let witnesses = vec![path.clone(), format!("{USERS}?username={name}")];
        Target { ids: vec![user["id"].to_string()], path, object: user, witnesses }
    };
    let nothing = Target {
        ids: vec![NO_NUMBER.to_string()],
        path: format!("{USERS}{NO_NUMBER}/"),
        object: json!({"id": NO_NUMBER}),
        witnesses: vec![],
    };
    holds(&cast, &rows, fresh, &nothing, None).await;
}

#[tokio::test]
async fn what_only_staff_make() {
    let cast = Cast::new().await;
    let new_user = || {
        let name = format!("u{}", unique("x").replace('-', ""));
        json!({"username": name, "email": format!("{name}@example.com"), "password": PASSWORD})
    };
    let before = async || {
        let mut counts = Vec::new();
        for list in [SERVERS, GROUPS, USERS, "/api/servers/registration-tokens/"] {
            counts.push(cast.workspace.admin.get(list).await.expect(200)["count"].clone());
        }
        counts
    };
    let expected = [201, 201, 403, 403, 403, 403, 403, 201, 403];
    for ((name, api), expected) in cast.callers().iter().zip(expected) {
        for (path, good, bad) in [
            (SERVERS, json!({"name": unique("web")}), json!({"name": "Not A Name"})),
            (GROUPS, json!({"name": unique("group")}), json!({})),
            (USERS, new_user(), json!({"username": "root"})),
            ("/api/servers/registration-tokens/", json!({"name": "x"}), json!({"uses": 0})),
        ] {
            let counts = before().await;
            let reply = api.post(path, &good).await;
            assert_eq!(reply.status, expected, "{name}, {path}: {}", reply.text);
            if expected == 403 || *name == "elsewhere" {
                assert_eq!(before().await, counts, "{name}, {path}");
            } else {
                assert_ne!(before().await, counts, "{name}, {path}");
            }
            // The right comes before the input.
            let refused = api.post(path, &bad).await.status;
            assert_eq!(refused, if expected == 201 { 400 } else { 403 }, "{name}, {path}");
        }
    }
}

#[tokio::test]
async fn lists_have_what_is_reached_and_their_counts_tell_no_more() {
    let cast = Cast::new().await;
    let workspace = &cast.workspace;
    let (owned, grouped) = (cast.server().await, workspace.server("grouped-1").await);
    let hidden = workspace.server("hidden-1").await;
    workspace.admin.patch(&at(SERVERS, &owned), &json!({"groups": []})).await.expect(200);
    let servers = json!({"servers": [grouped["id"]]});
    workspace.admin.patch(&group_path(&cast.group), &servers).await.expect(200);
    let hidden_group = workspace.group("hidden", &[&hidden]).await;
    for server in [&owned, &grouped, &grouped, &hidden, &hidden, &hidden] {
        let body = json!({"server": server["id"], "line": "id marker", "on_offline": "queue"});
        workspace.admin.post(COMMANDS, &body).await.expect(201);
    }
    let (owned, grouped, hidden) = (&owned["id"], &grouped["id"], &hidden["id"]);
    let all = vec![hidden, grouped, owned];
    let reached = [
        all.clone(),
        all,
        vec![owned],
        vec![grouped],
        vec![grouped],
        vec![grouped],
        vec![],
        vec![],
    ];
    let groups = [2, 2, 0, 1, 1, 1, 0, 0];
    for (number, (name, api)) in cast.callers().iter().take(8).enumerate() {
        let list = async |path: &str| {
            let list = api.get(path).await.expect(200);
            let ids = column(&list, "id");
            assert_eq!(list["count"], ids.len(), "{name}, {path}");
            (ids, column(&list, "server"))
        };
        for path in
            ["/api/servers/", SERVERS, "/api/servers/?search=-", "/api/servers/?is_connected=false"]
        {
            assert_eq!(
                list(path).await.0.iter().collect::<Vec<_>>(),
                reached[number],
                "{name}, {path}"
            );
        }
        for (server, times) in [(owned, 1), (grouped, 2), (hidden, 3)] {
            let is_reached = reached[number].contains(&server);
            let expected = vec![server.clone(); if is_reached { times } else { 0 }];
            let path = format!("{COMMANDS}?server={}", server.as_str().unwrap());
            assert_eq!(list(&path).await.1, expected, "{name}, {path}");
            let page = api.get(&format!("{path}&page_size=1&page=2")).await;
            assert_eq!(
                page.status,
                if is_reached && times > 1 { 200 } else { 404 },
                "{name}, {path}"
            );
        }
        let of_hidden = usize::from(reached[number].contains(&hidden));
        for path in ["/api/servers/?name=hidden-1", "/api/servers/?search=HIDDEN"] {
            assert_eq!(list(path).await.0.len(), of_hidden, "{name}, {path}");
        }
        for path in [
            "?search=marker",
            "?search=marker+boss",
            "",
            "?is_scheduled=false",
            "?ordering=added_at",
        ] {
            let found = list(&format!("{COMMANDS}{path}")).await.1;
            for (server, times) in [(owned, 1), (grouped, 2), (hidden, 3)] {
                let expected = if reached[number].contains(&server) { times } else { 0 };
                assert_eq!(
                    found.iter().filter(|id| *id == server).count(),
                    expected,
                    "{name}, {path}"
                );
            }
        }
        assert_eq!(
            list(&format!("{COMMANDS}?search=hidden-1")).await.0.len(),
            3 * of_hidden,
            "{name}"
        );
        for path in
            [GROUPS.to_owned(), format!("{GROUPS}?search=i"), format!("{GROUPS}?name=hidden")]
        {
            let found = list(&path).await.0;
            if path == GROUPS {
                assert_eq!(found.len(), groups[number], "{name}");
            }
            assert_eq!(found.contains(&hidden_group["id"]), groups[number] == 2, "{name}, {path}");
        }
        let hidden_members =
            list(&format!("{MEMBERSHIPS}?group={}", hidden_group["id"])).await.0.len();
        assert_eq!(hidden_members, usize::from(groups[number] == 2), "{name}");
    }
    // Of a group, members see all of its servers' ids; a server shows its groups to all who reach
    // it.
    let shown =
        cast.member.api.get(&format!("{SERVERS}{}/", grouped.as_str().unwrap())).await.expect(200);
    assert_eq!(shown["groups"], json!([cast.group["id"]]));
    assert_eq!(
        cast.owner.api.get(&format!("{SERVERS}{}/", owned.as_str().unwrap())).await.expect(200)["groups"],
        json!([])
    );
}

/// Whether somebody reaches a server, in every way in which that shows. It is the same in all.
async fn reaches(api: &Api, server: &Value, command: &Value) -> bool {
    let (name, id) = (server["name"].as_str().unwrap(), server["id"].as_str().unwrap());
    let mut told = Vec::new();
    for path in
        [at(SERVERS, server), at(COMMANDS, command), format!("{}chunks/", at(COMMANDS, command))]
    {
        let reply = api.get(&path).await;
        assert!(matches!(reply.status, 200 | 404), "{path}: {}", reply.text);
        told.push((path, reply.status == 200));
    }
    for path in [
        format!("/api/servers/?name={name}"),
        format!("/api/servers/?search={name}"),
        format!("{SERVERS}?is_connected=false&name={name}"),
        format!("{COMMANDS}?server={id}"),
        format!("{COMMANDS}?search={name}"),
        format!("{COMMANDS}?search={name}+boss&ordering=added_at"),
    ] {
        let list = api.get(&path).await.expect(200);
        let found = list["results"].as_array().unwrap().len();
        assert_eq!(list["count"], found, "{path}");
        told.push((path, found > 0));
    }
    for given in [name, id] {
        // Without an agent nothing is stored.
        let reply = api.post(COMMANDS, &json!({"server": given, "line": "id"})).await;
        match reply.status {
            400 => drop(reply.expect_fields(400, &["server"])),
            _ => reply.expect_detail(503, Some("SERVER_NOT_CONNECTED")),
        }
        told.push((format!("POST with {given}"), reply.status == 503));
    }
    let first = told[0].1;
    assert!(told.iter().all(|(_, is)| *is == first), "{told:?}");
    first
}

#[tokio::test]
async fn what_is_reached_follows_every_change_at_once() {
    let workspace = Workspace::new().await;
    let (server, spare) = (workspace.server("web-1").await, workspace.server("spare").await);
    let body = json!({"server": "web-1", "line": "id", "on_offline": "queue"});
    let command = workspace.admin.post(COMMANDS, &body).await.expect(201);
    let alice = Person::new(&workspace, "alice").await;
    let manager = Person::new(&workspace, "manager").await;
    let (group, other) =
        (workspace.group("one", &[&server]).await, workspace.group("two", &[&spare]).await);
    workspace.enroll(&group, &manager, "manager").await;
    workspace.enroll(&other, &alice, "owner").await;
    // An API token, as a lower rank ends sessions.
    let api = &alice.with_api_token().await;
    let is = async |what: &str, expected: bool| {
        assert_eq!(reaches(api, &server, &command).await, expected, "{what}");
    };
    is("of another group", false).await;

    let (one, two) = (group_path(&group), group_path(&other));
    let body = json!({"group": group["id"], "user": alice.id});
    let joined = manager.api.post(MEMBERSHIPS, &body).await.expect(201);
    is("a member", true).await;
    manager.api.delete(&at(MEMBERSHIPS, &joined)).await.expect(204);
    is("removed", false).await;
    for role in ["member", "manager", "owner"] {
        let joined = workspace.enroll(&group, &alice, role).await;
        is(role, true).await;
        api.delete(&at(MEMBERSHIPS, &joined)).await.expect(204);
        is("left", false).await;
    }

    let set =
        async |path: &str, body: Value| drop(workspace.admin.patch(path, &body).await.expect(200));
    set(&two, json!({"servers": [server["id"], spare["id"]]})).await;
    is("the group got it", true).await;
    set(&two, json!({"display_name": "Two"})).await;
    is("the group has another name", true).await;
    set(&two, json!({"servers": [spare["id"]]})).await;
    is("the group lost it", false).await;
    let whole = json!({"name": "two", "servers": [server["id"]]});
    workspace.admin.put(&two, &whole).await.expect(200);
    is("the group was replaced by one with it", true).await;
    workspace.admin.put(&two, &json!({"name": "two"})).await.expect(200);
    is("the group was replaced by one without", false).await;

    let path = at(SERVERS, &server);
    set(&path, json!({"groups": [group["id"], other["id"]]})).await;
    is("it came into the group", true).await;
    set(&path, json!({"groups": [group["id"]]})).await;
    is("it left the group", false).await;

    // By two ways at once: one of them is enough.
    set(&path, json!({"groups": [group["id"], other["id"]]})).await;
    let joined = workspace.enroll(&group, &alice, "member").await;
    set(&path, json!({"groups": [group["id"]]})).await;
    is("by the other group still", true).await;
    workspace.admin.delete(&at(MEMBERSHIPS, &joined)).await.expect(204);
    is("by none", false).await;

    for rank in ["is_staff", "is_superuser"] {
        alice.set(&workspace, json!({rank: true})).await;
        is(rank, true).await;
        alice.set(&workspace, json!({rank: false})).await;
        is(rank, false).await;
    }

    workspace.enroll(&group, &alice, "member").await;
    is("a member again", true).await;
    workspace.admin.delete(&one).await.expect(204);
    is("the group is gone", false).await;

    // An API token reaches what its user does, and within that what its list has.
    let made =
        api.post("/api/auth/tokens/", &json!({"name": "x", "expires_at": null})).await.expect(201);
    let token = workspace.anonymous.with_token(made["key"].as_str().unwrap());
    let acl = json!({"servers": [server["id"], spare["id"]]});
    let made = api
        .post("/api/auth/tokens/", &json!({"name": "y", "expires_at": null, "acl": acl}))
        .await
        .expect(201);
    let limited = workspace.anonymous.with_token(made["key"].as_str().unwrap());
    let count =
        async |api: &Api| api.get("/api/servers/?name=web-1").await.expect(200)["count"].clone();
    assert_eq!(
        (count(&token).await, count(&limited).await),
        (json!(0), json!(0)),
        "a list gives nothing"
    );
    set(&two, json!({"servers": [server["id"]]})).await;
    assert_eq!((count(&token).await, count(&limited).await), (json!(1), json!(1)));
    let key = format!("/api/auth/tokens/{}/", made["id"].as_str().unwrap());
    api.patch(&key, &json!({"acl": {"servers": [spare["id"]]}})).await.expect(200);
    assert_eq!((count(&token).await, count(&limited).await), (json!(1), json!(0)));
    limited.get(&at(SERVERS, &server)).await.expect_detail(404, None);
}

#[tokio::test]
async fn what_somebody_may_run_follows_their_role_at_once() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let group = workspace.group("one", &[&server]).await;
    let alice = Person::new(&workspace, "alice").await;
    // An API token, as a change of rank ends sessions.
    let token = alice.with_api_token().await;
    let membership = workspace.enroll(&group, &alice, "member").await;
    let as_root = json!({"server": "web-1", "line": "id", "username": "root"});
    let is = async |what: &str, expected: u16| {
        let reply = token.post(COMMANDS, &as_root).await;
        assert_eq!(reply.status, expected, "{what}: {}", reply.text);
    };
    is("member", 403).await;
    for (role, expected) in [("manager", 503), ("member", 403), ("owner", 503), ("member", 403)] {
        workspace
            .admin
            .patch(&at(MEMBERSHIPS, &membership), &json!({"role": role}))
            .await
            .expect(200);
        is(role, expected).await;
    }
    alice.set(&workspace, json!({"is_staff": true})).await;
    is("staff", 503).await;
    alice.set(&workspace, json!({"is_staff": false})).await;
    is("member", 403).await;
    workspace.expel(&group, &alice).await;
    is("nobody", 400).await;
}

/// How long a stream may go on whose reader does not reach its server any more.
const REVOKED_WITHIN: Duration = Duration::from_secs(45);

#[tokio::test]
async fn streams_end_when_their_reader_does_not_reach_the_server_any_more() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let made =
        workspace.admin.post(COMMANDS, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    let id = made["id"].as_str().unwrap();
    assert_eq!(agent.next_command().await["id"], made["id"]);
    agent.ack(id).await;
    let stream = format!("{}stream/", at(COMMANDS, &made));

    let mut readers = Vec::new();
    for name in [
        "left",
        "removed",
        "group-lost-it",
        "it-left",
        "group-gone",
        "kept",
        "promoted",
        "by-another",
    ] {
        let person = Person::new(&workspace, name).await;
        let group = workspace.group(name, &[&server]).await;
        workspace.enroll(&group, &person, "member").await;
        let events = Events::open(&person.api, &stream)
            .await
            .unwrap_or_else(|reply| panic!("{name}: {}", reply.text));
        readers.push((person, group, events));
    }
    let of = |name: &str| readers.iter().find(|(person, ..)| person.username == name).unwrap();
    let membership = async |name: &str| {
        let (person, group, _) = of(name);
        at(MEMBERSHIPS, &workspace.membership(group, person).await.unwrap())
    };
    of("left").0.api.delete(&membership("left").await).await.expect(204);
    workspace.admin.delete(&membership("removed").await).await.expect(204);
    let no_servers = json!({"servers": []});
    workspace.admin.patch(&group_path(&of("group-lost-it").1), &no_servers).await.expect(200);
    workspace.admin.delete(&group_path(&of("group-gone").1)).await.expect(204);
    workspace
        .admin
        .patch(&membership("promoted").await, &json!({"role": "owner"}))
        .await
        .expect(200);
    // One who is in two of its groups leaves one of them.
    workspace.enroll(&of("kept").1, &of("by-another").0, "member").await;
    workspace.admin.delete(&membership("by-another").await).await.expect(204);
    let groups: Vec<&Value> =
        ["kept", "promoted"].into_iter().map(|name| &of(name).1["id"]).collect();
    workspace.admin.patch(&at(SERVERS, &server), &json!({"groups": groups})).await.expect(200);
    let since = Instant::now();

    let (mut alive, dead): (Vec<_>, Vec<_>) = readers.into_iter().partition(|(person, ..)| {
        matches!(person.username.as_str(), "kept" | "promoted" | "by-another")
    });
    future::join_all(dead.into_iter().map(async |(person, _, mut events)| {
        let name = &person.username;
        loop {
            let left = REVOKED_WITHIN.saturating_sub(since.elapsed());
            match tokio::time::timeout(left, events.next()).await {
                Ok(Some(Block::Comment(_) | Block::Retry(_))) => {}
                Ok(None) => break,
                Ok(other) => panic!("{name}: {other:?}"),
                Err(_) => panic!("{name}: the stream goes on"),
            }
        }
        let refusal = Events::open(&person.api, &stream).await.err().unwrap();
        refusal.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    }))
    .await;
    agent.chunk(id, 0, "still here\n").await;
    agent.fin(id, 0, "still here\n").await;
    for (person, _, events) in &mut alive {
        let (chunks, end) = events.rest().await;
        assert_eq!(chunks, [(0, "still here\n".to_owned())], "{}", person.username);
        assert_eq!(end["id"], made["id"], "{}", person.username);
    }
}
