//! Access to servers, groups, memberships, users and commands (contract 5): the full matrix of
//! callers and requests, and the immediate effect of every change of access.

use std::time::{Duration, Instant};

use farhand_tests::client::{PASSWORD, unique};
use farhand_tests::events::Block;
use farhand_tests::people::{
    CALLERS, COMMANDS, GROUPS, MEMBERSHIPS, SERVERS, UNKNOWN_ID, UNKNOWN_UUID, USERS, column,
    group_path, item_path,
};
use farhand_tests::{Api, Cast, Events, Person, Reply, ScriptedAgent, Workspace, far_ahead};
use futures_util::future;
use serde_json::{Value, json};

/// The resource that a request addresses.
struct Resource {
    /// The ids in the request.
    ids: Vec<String>,
    /// The path of the resource.
    path: String,
    object: Value,
    /// Paths that a superuser reads, to detect changes.
    witnesses: Vec<String>,
}

/// Method, path and body. No body is sent if it is null.
type Request = (&'static str, String, Value);

/// A request, and the expected status for each caller.
struct AccessCase {
    what: &'static str,
    expected: [u16; CALLERS],
    attempt: fn(&Resource) -> Request,
}

fn case(
    what: &'static str,
    expected: [u16; CALLERS],
    attempt: fn(&Resource) -> Request,
) -> AccessCase {
    AccessCase { what, expected, attempt }
}

impl Resource {
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

/// A text with the target's ids replaced. Apart from ids, error texts must not depend on whether a
/// resource exists.
fn without_ids(text: &str, target: &Resource) -> String {
    target.ids.iter().fold(text.to_owned(), |text, id| text.replace(id, "<id>"))
}

async fn read_witnesses(cast: &Cast, target: &Resource) -> Vec<(u16, String)> {
    let replies = target.witnesses.iter().map(|path| cast.workspace.admin.get(path));
    future::join_all(replies).await.into_iter().map(|reply| (reply.status, reply.text)).collect()
}

/// Sends each request as each caller, on a new target each time, and checks the status. Asserts
/// that only accepted changes change something. A target that the caller cannot see must get the
/// same response as `unknown`, which does not exist. `not_found` is the code of a 404.
async fn assert_access(
    cast: &Cast,
    cases: &[AccessCase],
    fresh: impl AsyncFn(&Cast) -> Resource,
    unknown: &Resource,
    not_found: Option<&str>,
) {
    for case in cases {
        for ((name, api), expected) in cast.callers().iter().zip(case.expected) {
            let target = fresh(cast).await;
            let before = read_witnesses(cast, &target).await;
            let reply = send(api, (case.attempt)(&target)).await;
            let what = format!("{}, {name}: {}", case.what, reply.text);
            assert_eq!(reply.status, expected, "{what}");
            let after = read_witnesses(cast, &target).await;
            let is_read = case.what.starts_with("see");
            if expected < 300 && !is_read {
                assert_ne!(after, before, "{what}");
            } else {
                assert_eq!(after, before, "{what}");
            }
            match expected {
                400 | 404 => {
                    let of_nothing = send(api, (case.attempt)(unknown)).await;
                    assert_eq!(
                        (of_nothing.status, without_ids(&of_nothing.text, unknown)),
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
async fn server_access_follows_the_matrix() {
    // In the order of `Cast::callers`: superuser, staff, owner, group owner, manager, member,
    // outsider, superuser elsewhere, and that superuser calling this workspace.
    let cases = [
        case("see", [200, 200, 200, 200, 200, 200, 404, 404, 403], |it| {
            ("GET", it.path.clone(), Value::Null)
        }),
        case("edit", [200, 200, 200, 403, 403, 403, 404, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"name": unique("new")}))
        }),
        case("replace", [200, 200, 200, 403, 403, 403, 404, 404, 403], |it| {
            ("PUT", it.path.clone(), json!({"name": unique("new")}))
        }),
        case("take out of its groups", [200, 200, 403, 403, 403, 403, 404, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"groups": []}))
        }),
        case("label", [200, 200, 403, 403, 403, 403, 404, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"labels": {"env": "prod"}}))
        }),
        case("delete", [204, 204, 204, 403, 403, 403, 404, 404, 403], |it| {
            ("DELETE", it.path.clone(), Value::Null)
        }),
    ];
    let cast = Cast::new().await;
    let fresh = async |cast: &Cast| {
        let server = cast.server().await;
        let path = item_path(SERVERS, &server);
        let witnesses =
            vec![path.clone(), "/api/servers/?page_size=100".to_owned(), group_path(&cast.group)];
        Resource {
            ids: vec![server["id"].as_str().unwrap().to_owned()],
            path,
            object: server,
            witnesses,
        }
    };
    let unknown = Resource {
        ids: vec![UNKNOWN_UUID.to_owned()],
        path: format!("{SERVERS}{UNKNOWN_UUID}/"),
        object: json!({"id": UNKNOWN_UUID}),
        witnesses: vec![],
    };
    assert_access(&cast, &cases, fresh, &unknown, None).await;
    // The permission is checked before the input.
    let target = fresh(&cast).await;
    let before = read_witnesses(&cast, &target).await;
    let expected_with_bad_input = [400, 400, 400, 403, 403, 403, 404, 404, 403];
    for ((name, api), expected) in cast.callers().iter().zip(expected_with_bad_input) {
        for method in ["PUT", "PATCH"] {
            let reply = api.send_json(method, &target.path, &json!({"name": "Not A Name"})).await;
            assert_eq!(reply.status, expected, "{name}: {}", reply.text);
            if expected == 400 {
                reply.expect_fields(400, &["name"]);
            }
        }
    }
    assert_eq!(read_witnesses(&cast, &target).await, before);
}

#[tokio::test]
async fn only_staff_and_the_owner_rotate_keys() {
    let cast = Cast::new().await;
    let server = cast.server().await;
    let expected = [200, 200, 200, 403, 403, 403, 404, 404, 403];
    let path = format!("{}rotate-key/", item_path(SERVERS, &server));
    let mut key = server["key"].clone();
    let is_good = async |key: &Value| {
        let agent = json!({"id": server["id"], "key": key});
        let api =
            cast.workspace.anonymous.with_authorization(&farhand_tests::agents::credential(&agent));
        api.get("/api/servers/servers/-/").await.status
    };
    for ((name, api), expected) in cast.callers().iter().zip(expected) {
        let reply = api.call("POST", &path).await;
        assert_eq!(reply.status, expected, "{name}: {}", reply.text);
        if expected == 200 {
            // The key in use stays valid. A new key that nobody used is replaced.
            let old = if key == server["key"] { 200 } else { 403 };
            assert_eq!(is_good(&key).await, old, "{name}: the key before");
            key = reply.json()["key"].clone();
        }
        assert_eq!(is_good(&key).await, 200, "{name}");
    }
}

/// The body of a command for the target server.
fn run(target: &Resource, more: Value) -> Value {
    let mut body = json!({"server": target.object["server"], "line": "id", "on_offline": "queue"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn command_access_follows_the_matrix() {
    // In the order of `Cast::callers`: superuser, staff, owner, group owner, manager, member,
    // outsider, superuser elsewhere, and that superuser calling this workspace.
    let cases = [
        case("see", [200, 200, 200, 200, 200, 200, 404, 404, 403], |it| {
            ("GET", it.path.clone(), Value::Null)
        }),
        case("see its chunks", [200, 200, 200, 200, 200, 200, 404, 404, 403], |it| {
            ("GET", it.below("chunks/"), Value::Null)
        }),
        case("run as self", [201, 201, 201, 201, 201, 201, 400, 400, 403], |it| {
            ("POST", COMMANDS.to_owned(), run(it, json!({})))
        }),
        case("run as root", [201, 201, 201, 201, 201, 403, 400, 400, 403], |it| {
            ("POST", COMMANDS.to_owned(), run(it, json!({"username": "root"})))
        }),
        case("run in a group", [201, 201, 201, 201, 201, 403, 400, 400, 403], |it| {
            ("POST", COMMANDS.to_owned(), run(it, json!({"groupname": "adm"})))
        }),
        case("run later as root", [201, 201, 201, 201, 201, 403, 400, 400, 403], |it| {
            let more = json!({"username": "root", "scheduled_at": far_ahead()});
            ("POST", COMMANDS.to_owned(), run(it, more))
        }),
        case("cancel", [200, 200, 403, 403, 403, 403, 404, 404, 403], |it| {
            ("POST", it.below("cancel/"), Value::Null)
        }),
        case("kill", [200, 200, 403, 403, 403, 403, 404, 404, 403], |it| {
            ("POST", it.below("kill/"), Value::Null)
        }),
        case("delete", [204, 204, 403, 403, 403, 403, 404, 404, 403], |it| {
            ("DELETE", it.path.clone(), Value::Null)
        }),
        // No method edits a command, so this returns 405 even before the credential is checked.
        case("edit", [405; CALLERS], |it| ("PATCH", it.path.clone(), json!({"line": "w"}))),
        case("replace", [405; CALLERS], |it| ("PUT", it.path.clone(), json!({"line": "w"}))),
    ];
    let cast = Cast::new().await;
    let server = cast.server().await;
    // A user who is none of the callers requests the command.
    let other = Person::staff(&cast.workspace, "other").await;
    let id = server["id"].as_str().unwrap();
    let fresh = async |_: &Cast| {
        let body = json!({"server": id, "line": "id", "on_offline": "queue"});
        let mut command = other.api.post(COMMANDS, &body).await.expect(201);
        let path = item_path(COMMANDS, &command);
        let witnesses = vec![path.clone(), format!("{COMMANDS}?server={id}&page_size=1")];
        let ids = vec![command["id"].as_str().unwrap().to_owned(), id.to_owned()];
        command["server"] = json!(id);
        Resource { ids, path, object: command, witnesses }
    };
    let unknown = Resource {
        ids: vec![UNKNOWN_UUID.to_owned()],
        path: format!("{COMMANDS}{UNKNOWN_UUID}/"),
        object: json!({"id": UNKNOWN_UUID, "server": UNKNOWN_UUID}),
        witnesses: vec![],
    };
    assert_access(&cast, &cases, fresh, &unknown, Some("COMMAND_NOT_FOUND")).await;
}

#[tokio::test]
async fn a_plain_member_runs_only_as_their_own_account() {
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
    // A blank account is an error for every caller: an agent would run the command as root.
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
    // Built-ins of the agent are for staff, whatever a user's role in a group is.
    let internal = body(json!({"line": "ping", "shell": "internal"}));
    for person in [&cast.member, &cast.manager, &cast.group_owner, &cast.owner] {
        person.api.post(COMMANDS, &internal).await.expect_detail(403, Some("PERMISSION_DENIED"));
    }
    assert!(agent.stays_silent().await);
    // A role in a group without this server does not count.
    let other = cast.workspace.group(&unique("other"), &[]).await;
    cast.workspace.add_member(&other, member, "owner").await;
    let reply = member.api.post(COMMANDS, &body(json!({"username": "root"}))).await;
    reply.expect_detail(403, Some("PERMISSION_DENIED"));
    // If a user has several roles in the server's groups, the highest role counts.
    cast.workspace
        .admin
        .patch(&group_path(&other), &json!({"servers": [server["id"]]}))
        .await
        .expect(200);
    member.api.post(COMMANDS, &body(json!({"username": "root"}))).await.expect(201);
    assert_eq!(agent.next_command().await["user"], "root");
}

#[tokio::test]
async fn users_cancel_their_own_commands_while_they_have_access() {
    let cast = Cast::new().await;
    let server = cast.server().await;
    let body = json!({"server": server["id"], "line": "id", "on_offline": "queue"});
    for (name, api) in cast.callers().iter().take(6) {
        for (method, action, status) in
            [("POST", "cancel/", 200), ("POST", "kill/", 200), ("DELETE", "", 204)]
        {
            let made = api.post(COMMANDS, &body).await.expect(201);
            let path = item_path(COMMANDS, &made);
            let reply = api.call(method, &format!("{path}{action}")).await;
            assert_eq!(reply.status, status, "{name}: {}", reply.text);
            assert_eq!(api.get(&path).await.expect(200)["status"]["text"], "Cancelled", "{name}");
        }
    }
    // After losing access to the server, the requester cannot see the command any more.
    let made = cast.member.api.post(COMMANDS, &body).await.expect(201);
    let path = item_path(COMMANDS, &made);
    cast.workspace.remove_member(&cast.group, &cast.member).await;
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
async fn group_access_follows_the_matrix() {
    // In the order of `Cast::callers`: superuser, staff, owner, group owner, manager, member,
    // outsider, superuser elsewhere, and that superuser calling this workspace.
    let cases = [
        case("see", [200, 200, 404, 200, 200, 200, 404, 404, 403], |it| {
            ("GET", it.path.clone(), Value::Null)
        }),
        case("edit", [200, 200, 404, 200, 403, 403, 404, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"display_name": "New"}))
        }),
        case("replace", [200, 200, 404, 200, 403, 403, 404, 404, 403], |it| {
            ("PUT", it.path.clone(), json!({"name": unique("new")}))
        }),
        case("give a server", [200, 200, 404, 403, 403, 403, 404, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"servers": [it.object["server"]]}))
        }),
        case("delete", [204, 204, 404, 204, 403, 403, 404, 404, 403], |it| {
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
            item_path(SERVERS, &server),
        ];
        group["server"] = server["id"].clone();
        Resource { ids: vec![group["id"].to_string()], path, object: group, witnesses }
    };
    let unknown = Resource {
        ids: vec![UNKNOWN_ID.to_string()],
        path: format!("{GROUPS}{UNKNOWN_ID}/"),
        object: json!({"id": UNKNOWN_ID, "server": server["id"]}),
        witnesses: vec![],
    };
    assert_access(&cast, &cases, fresh, &unknown, None).await;
}

/// The body of a membership.
fn membership(target: &Resource, role: &str) -> Value {
    json!({"group": target.object["group"], "user": target.object["stranger"], "role": role})
}

#[tokio::test]
async fn membership_access_follows_the_matrix() {
    // In the order of `Cast::callers`: superuser, staff, owner, group owner, manager, member,
    // outsider, superuser elsewhere, and that superuser calling this workspace.
    let cases = [
        case("see", [200, 200, 404, 200, 200, 200, 404, 404, 403], |it| {
            ("GET", it.path.clone(), Value::Null)
        }),
        case("add a member", [201, 201, 400, 201, 201, 403, 400, 400, 403], |it| {
            ("POST", MEMBERSHIPS.to_owned(), membership(it, "member"))
        }),
        case("add a manager", [201, 201, 400, 201, 403, 403, 400, 400, 403], |it| {
            ("POST", MEMBERSHIPS.to_owned(), membership(it, "manager"))
        }),
        case("add an owner", [201, 201, 400, 201, 403, 403, 400, 400, 403], |it| {
            ("POST", MEMBERSHIPS.to_owned(), membership(it, "owner"))
        }),
        case("promote a member", [200, 200, 404, 200, 403, 403, 404, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"role": "manager"}))
        }),
        case("make a member owner", [200, 200, 404, 200, 403, 403, 404, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"role": "owner"}))
        }),
        case("remove a member", [204, 204, 404, 204, 204, 403, 404, 404, 403], |it| {
            ("DELETE", it.path.clone(), Value::Null)
        }),
    ];
    let of_managers = [
        case("demote a manager", [200, 200, 404, 200, 403, 403, 404, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"role": "member"}))
        }),
        case("remove a manager", [204, 204, 404, 204, 403, 403, 404, 404, 403], |it| {
            ("DELETE", it.path.clone(), Value::Null)
        }),
    ];
    let cast = Cast::new().await;
    let stranger = Person::new(&cast.workspace, "stranger").await;
    let target = |group: &Value, membership: &Value| {
        let (path, group_id) = (item_path(MEMBERSHIPS, membership), &group["id"]);
        let witnesses = vec![
            path.clone(),
            group_path(group),
            format!("{MEMBERSHIPS}?group={group_id}"),
            MEMBERSHIPS.to_owned(),
        ];
        let object = json!({"group": group_id, "stranger": stranger.id});
        Resource {
            ids: vec![group_id.to_string(), stranger.id.to_string()],
            path,
            object,
            witnesses,
        }
    };
    let unknown = Resource {
        ids: vec![UNKNOWN_ID.to_string(), stranger.id.to_string()],
        path: format!("{MEMBERSHIPS}{UNKNOWN_UUID}/"),
        object: json!({"group": UNKNOWN_ID, "stranger": stranger.id}),
        witnesses: vec![],
    };
    let member = async |cast: &Cast| {
        let made = cast.group().await;
        target(&made.group, &made.bystander)
    };
    assert_access(&cast, &cases, member, &unknown, None).await;
    let manager = async |cast: &Cast| {
        let made = cast.group().await;
        target(&made.group, &made.deputy)
    };
    assert_access(&cast, &of_managers, manager, &unknown, None).await;
}

#[tokio::test]
async fn user_access_follows_the_matrix() {
    // In the order of `Cast::callers`: superuser, staff, owner, group owner, manager, member,
    // outsider, superuser elsewhere, and that superuser calling this workspace.
    let cases = [
        case("see", [200, 200, 200, 200, 200, 200, 200, 404, 403], |it| {
            ("GET", it.path.clone(), Value::Null)
        }),
        case("edit", [200, 200, 403, 403, 403, 403, 403, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"first_name": "New"}))
        }),
        case("deactivate", [200, 200, 403, 403, 403, 403, 403, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"is_active": false}))
        }),
        case("make staff", [200, 403, 403, 403, 403, 403, 403, 404, 403], |it| {
            ("PATCH", it.path.clone(), json!({"is_staff": true}))
        }),
        case("delete", [204, 204, 403, 403, 403, 403, 403, 404, 403], |it| {
            ("DELETE", it.path.clone(), Value::Null)
        }),
    ];
    let cast = Cast::new().await;
    let fresh = async |cast: &Cast| {
        // The target user is in the same group as the callers: group roles give no rights over
        // other members.
        let name = format!("u{}", unique("x").replace('-', ""));
        let user = cast.workspace.user_with(&name, &json!({})).await;
        let body = json!({"group": cast.group["id"], "user": user["id"], "role": "member"});
        cast.group_owner.api.post(MEMBERSHIPS, &body).await.expect(201);
        let path = format!("{USERS}{}/", user["id"]);
        let witnesses = vec![path.clone(), format!("{USERS}?username={name}")];
        Resource { ids: vec![user["id"].to_string()], path, object: user, witnesses }
    };
    let unknown = Resource {
        ids: vec![UNKNOWN_ID.to_string()],
        path: format!("{USERS}{UNKNOWN_ID}/"),
        object: json!({"id": UNKNOWN_ID}),
        witnesses: vec![],
    };
    assert_access(&cast, &cases, fresh, &unknown, None).await;
}

#[tokio::test]
async fn only_staff_create_servers_groups_and_users() {
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
            // The permission is checked before the input.
            let refused = api.post(path, &bad).await.status;
            assert_eq!(refused, if expected == 201 { 400 } else { 403 }, "{name}, {path}");
        }
    }
}

#[tokio::test]
async fn lists_and_counts_contain_only_accessible_items() {
    let cast = Cast::new().await;
    let workspace = &cast.workspace;
    let (owned, grouped) = (cast.server().await, workspace.server("grouped-1").await);
    let hidden = workspace.server("hidden-1").await;
    workspace.admin.patch(&item_path(SERVERS, &owned), &json!({"groups": []})).await.expect(200);
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
    // Members see the ids of all servers of a group. A server shows its groups to every user who
    // can access it.
    let shown =
        cast.member.api.get(&format!("{SERVERS}{}/", grouped.as_str().unwrap())).await.expect(200);
    assert_eq!(shown["groups"], json!([cast.group["id"]]));
    assert_eq!(
        cast.owner.api.get(&format!("{SERVERS}{}/", owned.as_str().unwrap())).await.expect(200)["groups"],
        json!([])
    );
}

/// True if a caller can access a server. Asserts that all endpoints agree.
async fn has_access(api: &Api, server: &Value, command: &Value) -> bool {
    let (name, id) = (server["name"].as_str().unwrap(), server["id"].as_str().unwrap());
    let mut findings = Vec::new();
    for path in [
        item_path(SERVERS, server),
        item_path(COMMANDS, command),
        format!("{}chunks/", item_path(COMMANDS, command)),
    ] {
        let reply = api.get(&path).await;
        assert!(matches!(reply.status, 200 | 404), "{path}: {}", reply.text);
        findings.push((path, reply.status == 200));
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
        findings.push((path, found > 0));
    }
    for given in [name, id] {
        // The server has no connected agent, so no command is stored.
        let reply = api.post(COMMANDS, &json!({"server": given, "line": "id"})).await;
        match reply.status {
            400 => drop(reply.expect_fields(400, &["server"])),
            _ => reply.expect_detail(503, Some("SERVER_NOT_CONNECTED")),
        }
        findings.push((format!("POST with {given}"), reply.status == 503));
    }
    let first = findings[0].1;
    assert!(findings.iter().all(|(_, is)| *is == first), "{findings:?}");
    first
}

#[tokio::test]
async fn access_follows_every_change_immediately() {
    let workspace = Workspace::new().await;
    let (server, spare) = (workspace.server("web-1").await, workspace.server("spare").await);
    let body = json!({"server": "web-1", "line": "id", "on_offline": "queue"});
    let command = workspace.admin.post(COMMANDS, &body).await.expect(201);
    let alice = Person::new(&workspace, "alice").await;
    let manager = Person::new(&workspace, "manager").await;
    let (group, other) =
        (workspace.group("one", &[&server]).await, workspace.group("two", &[&spare]).await);
    workspace.add_member(&group, &manager, "manager").await;
    workspace.add_member(&other, &alice, "owner").await;
    // An API token, because a demotion ends sessions.
    let api = &alice.with_api_token().await;
    let is = async |what: &str, expected: bool| {
        assert_eq!(has_access(api, &server, &command).await, expected, "{what}");
    };
    is("of another group", false).await;

    let (one, two) = (group_path(&group), group_path(&other));
    let body = json!({"group": group["id"], "user": alice.id});
    let joined = manager.api.post(MEMBERSHIPS, &body).await.expect(201);
    is("a member", true).await;
    manager.api.delete(&item_path(MEMBERSHIPS, &joined)).await.expect(204);
    is("removed", false).await;
    for role in ["member", "manager", "owner"] {
        let joined = workspace.add_member(&group, &alice, role).await;
        is(role, true).await;
        api.delete(&item_path(MEMBERSHIPS, &joined)).await.expect(204);
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

    let path = item_path(SERVERS, &server);
    set(&path, json!({"groups": [group["id"], other["id"]]})).await;
    is("it came into the group", true).await;
    set(&path, json!({"groups": [group["id"]]})).await;
    is("it left the group", false).await;

    // Access through two groups: without one of them, the user still has access.
    set(&path, json!({"groups": [group["id"], other["id"]]})).await;
    let joined = workspace.add_member(&group, &alice, "member").await;
    set(&path, json!({"groups": [group["id"]]})).await;
    is("by the other group still", true).await;
    workspace.admin.delete(&item_path(MEMBERSHIPS, &joined)).await.expect(204);
    is("by no group", false).await;

    for rank in ["is_staff", "is_superuser"] {
        alice.set(&workspace, json!({rank: true})).await;
        is(rank, true).await;
        alice.set(&workspace, json!({rank: false})).await;
        is(rank, false).await;
    }

    workspace.add_member(&group, &alice, "member").await;
    is("a member again", true).await;
    workspace.admin.delete(&one).await.expect(204);
    is("the group was deleted", false).await;

    // An API token has the access of its user, and its list can only reduce that access.
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
        "a list gives no access"
    );
    set(&two, json!({"servers": [server["id"]]})).await;
    assert_eq!((count(&token).await, count(&limited).await), (json!(1), json!(1)));
    let key = format!("/api/auth/tokens/{}/", made["id"].as_str().unwrap());
    api.patch(&key, &json!({"acl": {"servers": [spare["id"]]}})).await.expect(200);
    assert_eq!((count(&token).await, count(&limited).await), (json!(1), json!(0)));
    limited.get(&item_path(SERVERS, &server)).await.expect_detail(404, None);
}

#[tokio::test]
async fn run_as_follows_the_role_immediately() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let group = workspace.group("one", &[&server]).await;
    let alice = Person::new(&workspace, "alice").await;
    // An API token, because a change of rank ends sessions.
    let token = alice.with_api_token().await;
    let membership = workspace.add_member(&group, &alice, "member").await;
    let as_root = json!({"server": "web-1", "line": "id", "username": "root"});
    let is = async |what: &str, expected: u16| {
        let reply = token.post(COMMANDS, &as_root).await;
        assert_eq!(reply.status, expected, "{what}: {}", reply.text);
    };
    is("member", 403).await;
    for (role, expected) in [("manager", 503), ("member", 403), ("owner", 503), ("member", 403)] {
        workspace
            .admin
            .patch(&item_path(MEMBERSHIPS, &membership), &json!({"role": role}))
            .await
            .expect(200);
        is(role, expected).await;
    }
    alice.set(&workspace, json!({"is_staff": true})).await;
    is("staff", 503).await;
    alice.set(&workspace, json!({"is_staff": false})).await;
    is("member", 403).await;
    workspace.remove_member(&group, &alice).await;
    is("no role", 400).await;
}

/// Time limit for ending the stream of a reader who lost access to the server.
const REVOKED_WITHIN: Duration = Duration::from_secs(45);

#[tokio::test]
async fn a_stream_ends_when_its_reader_loses_access() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let made =
        workspace.admin.post(COMMANDS, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    let id = made["id"].as_str().unwrap();
    assert_eq!(agent.next_command().await["id"], made["id"]);
    agent.ack(id).await;
    let stream = format!("{}stream/", item_path(COMMANDS, &made));

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
        workspace.add_member(&group, &person, "member").await;
        let events = Events::open(&person.api, &stream)
            .await
            .unwrap_or_else(|reply| panic!("{name}: {}", reply.text));
        readers.push((person, group, events));
    }
    let of = |name: &str| readers.iter().find(|(person, ..)| person.username == name).unwrap();
    let membership = async |name: &str| {
        let (person, group, _) = of(name);
        item_path(MEMBERSHIPS, &workspace.membership(group, person).await.unwrap())
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
    // This reader is in two groups of the server, and leaves one of them.
    workspace.add_member(&of("kept").1, &of("by-another").0, "member").await;
    workspace.admin.delete(&membership("by-another").await).await.expect(204);
    let groups: Vec<&Value> =
        ["kept", "promoted"].into_iter().map(|name| &of(name).1["id"]).collect();
    workspace
        .admin
        .patch(&item_path(SERVERS, &server), &json!({"groups": groups}))
        .await
        .expect(200);
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
                Err(_) => panic!("{name}: the stream did not end"),
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
