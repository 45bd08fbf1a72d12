//! Commands that wait while group roles or groups of their requester change (contract 5.6 and 7.5).
//! `firing.rs` has the other changes of a permission.

use std::pin::Pin;
use std::time::Duration;

use farhand_tests::agents::ScriptedAgent;
use farhand_tests::commands::wait_until_ended;
use farhand_tests::people::{MEMBERSHIPS, SERVERS, group_path, item_path};
use farhand_tests::{Person, Workspace, deadline_at_pace_since, eventually_within, now};
use serde_json::{Value, json};

use super::commands::{PATH, assert_status, id_of, path_of, time_of};

/// A requester of a waiting command, in their own group with the server.
struct GroupRequester<'a> {
    workspace: &'a Workspace,
    person: Person,
    membership: Value,
    group: Value,
    /// Another group with the server, where the requester is a plain member if the case says so.
    second: Option<(Value, Value)>,
}

impl GroupRequester<'_> {
    async fn set_role(&self, role: &str) {
        self.workspace
            .admin
            .patch(&item_path(MEMBERSHIPS, &self.membership), &json!({"role": role}))
            .await
            .expect(200);
    }

    async fn leave(&self) {
        self.person.api.delete(&item_path(MEMBERSHIPS, &self.membership)).await.expect(204);
    }

    async fn set_group(&self, changes: Value) {
        self.workspace.admin.patch(&group_path(&self.group), &changes).await.expect(200);
    }

    async fn set_user(&self, changes: Value) {
        self.person.set(self.workspace, changes).await;
    }

    /// Removes the server from the group, by changing the server.
    async fn take_server_out(&self) {
        let id = self.group["servers"][0].as_str().unwrap();
        let path = format!("{SERVERS}{id}/");
        let mut groups = self.workspace.admin.get(&path).await.expect(200)["groups"].clone();
        groups.as_array_mut().unwrap().retain(|group| *group != self.group["id"]);
        self.workspace.admin.patch(&path, &json!({"groups": groups})).await.expect(200);
    }

    async fn delete_group(&self) {
        self.workspace.admin.delete(&group_path(&self.group)).await.expect(204);
    }
}

type GroupChangeFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The requester's role, the command, a change while it waits, and the expected outcome.
struct GroupCase {
    name: &'static str,
    role: &'static str,
    /// Fields of the command, besides the server and the time.
    changes: Value,
    is_in_second: bool,
    while_waiting: for<'a> fn(&'a GroupRequester<'a>) -> GroupChangeFuture<'a>,
    /// Why the command is cancelled. `None` if it runs.
    reason: Option<&'static str>,
}

const SERVER: Option<&str> = Some("its requester has no access to the server any more");
const ACCOUNT: Option<&str> = Some("its requester may not run commands as that account any more");

macro_rules! case {
    ($name:literal, $role:literal, $changes:tt, |$it:ident| $work:expr, $reason:expr) => {
        GroupCase {
            name: $name,
            role: $role,
            changes: json!($changes),
            is_in_second: false,
            while_waiting: |$it| Box::pin(async move { $work }),
            reason: $reason,
        }
    };
}

/// Cancelled cases stand between cases that run.
fn cases() -> Vec<GroupCase> {
    let in_second = |case: GroupCase| GroupCase { is_in_second: true, ..case };
    vec![
        case!("untouched", "member", {}, |_it| (), None),
        case!("left", "member", {}, |it| it.leave().await, SERVER),
        case!("removed", "manager", {"username": "root"}, |it| it.workspace.remove_member(&it.group, &it.person).await, SERVER),
        case!("untouched-m", "manager", {"username": "root", "groupname": "adm"}, |_it| (), None),
        case!("demoted", "manager", {"username": "root"}, |it| it.set_role("member").await, ACCOUNT),
        case!("demoted-o", "owner", {"username": "deploy"}, |it| it.set_role("member").await, ACCOUNT),
        case!("demoted-g", "manager", {"groupname": "adm"}, |it| it.set_role("member").await, ACCOUNT),
        case!("demoted-own", "manager", {}, |it| it.set_role("member").await, None),
        case!("owner-manager", "owner", {"username": "root"}, |it| it.set_role("manager").await, None),
        case!("promoted", "member", {}, |it| it.set_role("owner").await, None),
        case!(
            "group-lost-it",
            "owner",
            {},
            |it| it.set_group(json!({"servers": []})).await,
            SERVER
        ),
        case!(
            "renamed-group",
            "member",
            {},
            |it| it.set_group(json!({"name": "another-name"})).await,
            None
        ),
        case!("it-left", "manager", {"username": "root"}, |it| it.take_server_out().await, SERVER),
        case!("group-gone", "owner", {"username": "root"}, |it| it.delete_group().await, SERVER),
        case!(
            "back-again",
            "member",
            {},
            |it| {
                it.leave().await;
                it.workspace.add_member(&it.group, &it.person, "member").await;
            },
            None
        ),
        case!(
            "back-as-less",
            "manager",
            {"username": "root"},
            |it| {
                it.leave().await;
                it.workspace.add_member(&it.group, &it.person, "member").await;
            },
            ACCOUNT
        ),
        in_second(case!("second", "member", {}, |it| it.leave().await, None)),
        in_second(
            case!("second-root", "manager", {"username": "root"}, |it| it.leave().await, ACCOUNT),
        ),
        in_second(case!(
            "second-grown",
            "manager",
            {"username": "root"},
            |it| {
                it.leave().await;
                let second = item_path(MEMBERSHIPS, &it.second.as_ref().unwrap().1);
                it.workspace.admin.patch(&second, &json!({"role": "owner"})).await.expect(200);
            },
            None
        )),
        // A plain member's account is their current name.
        case!(
            "renamed",
            "member",
            {},
            |it| it.set_user(json!({"username": "other-name"})).await,
            ACCOUNT
        ),
        case!(
            "renamed-m",
            "manager",
            {},
            |it| it.set_user(json!({"username": "third-name"})).await,
            None
        ),
        case!(
            "staff-before",
            "member",
            {"username": "root"},
            |it| it.set_user(json!({"is_staff": false})).await,
            ACCOUNT
        ),
        case!("staff-since", "member", {}, |it| it.set_user(json!({"is_staff": true})).await, None),
        case!(
            "staff-left",
            "member",
            {},
            |it| {
                it.set_user(json!({"is_staff": true})).await;
                it.leave().await;
            },
            None
        ),
    ]
}

/// Creates the requesters with their groups.
async fn create_requesters<'a>(
    workspace: &'a Workspace,
    server: &Value,
    cases: &[GroupCase],
) -> Vec<GroupRequester<'a>> {
    let mut waiting = Vec::new();
    for case in cases {
        let person = Person::new(workspace, case.name).await;
        let group = workspace.group(case.name, &[server]).await;
        let membership = workspace.add_member(&group, &person, case.role).await;
        let mut second = None;
        if case.is_in_second {
            let group = workspace.group(&format!("{}-2", case.name), &[server]).await;
            let membership = workspace.add_member(&group, &person, "member").await;
            second = Some((group, membership));
        }
        if case.name == "staff-before" {
            person.set(workspace, json!({"is_staff": true})).await;
        }
        waiting.push(GroupRequester { workspace, person, membership, group, second });
    }
    waiting
}

/// Posts the command of each case, with additional fields.
async fn post_all<'a>(
    server: &Value,
    cases: &[GroupCase],
    waiting: Vec<GroupRequester<'a>>,
    more: &Value,
) -> Vec<(GroupRequester<'a>, Value)> {
    let mut posted = Vec::new();
    for (case, one) in cases.iter().zip(waiting) {
        let mut body = json!({"server": server["id"], "line": "id"});
        for changes in [more, &case.changes] {
            body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        }
        let reply = one.person.api.post(PATH, &body).await;
        assert_eq!(reply.status, 201, "{}: {}", case.name, reply.text);
        posted.push((one, reply.json()));
    }
    posted
}

/// Asserts that exactly the permitted commands are delivered, in order, and that the other commands
/// are cancelled.
async fn assert_outcomes(
    workspace: &Workspace,
    agent: &mut ScriptedAgent,
    cases: &[GroupCase],
    posted: &[(GroupRequester<'_>, Value)],
) {
    let mut order: Vec<(&GroupCase, &Value)> =
        cases.iter().zip(posted).map(|(case, (_, made))| (case, made)).collect();
    order.sort_by_key(|(_, made)| (time_of(made, "scheduled_at"), id_of(made).to_owned()));
    for (case, made) in order.iter().filter(|(case, _)| case.reason.is_none()) {
        let command = agent.next_command().await;
        assert_eq!(command["id"], made["id"], "the next command must be {}", case.name);
        assert_eq!(
            (&command["user"], &command["group"]),
            (&made["username"], &made["groupname"]),
            "{}",
            case.name
        );
    }
    assert!(agent.stays_silent().await, "nothing else is delivered");
    for (case, made) in order {
        let Some(reason) = case.reason else {
            let sent = workspace.admin.get(&path_of(made)).await.expect(200);
            assert_eq!(sent["status"]["text"], "Sent", "{}", case.name);
            continue;
        };
        let ended = wait_until_ended(&workspace.admin, id_of(made)).await;
        assert_status(&ended, "Cancelled", "secondary", false);
        let message = ended["status"]["message"].as_str().unwrap();
        assert!(message.contains(reason), "{}: {message}", case.name);
        assert_eq!(
            (&ended["success"], &ended["delivered_at"]),
            (&json!(false), &json!(null)),
            "{}",
            case.name
        );
    }
}

#[tokio::test]
async fn queued_commands_are_rechecked_after_group_changes() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let cases = cases();
    let waiting = create_requesters(&workspace, &server, &cases).await;
    let posted = post_all(&server, &cases, waiting, &json!({"on_offline": "queue"})).await;
    for (case, (waiting, _)) in cases.iter().zip(&posted) {
        (case.while_waiting)(waiting).await;
    }
    // The permission is not rechecked before the command could be delivered.
    let list = workspace.admin.get(&format!("{PATH}?page_size=100")).await.expect(200);
    assert_eq!(list["count"], cases.len());
    assert!(
        list["results"].as_array().unwrap().iter().all(|item| item["status"]["text"] == "Queued"),
        "{list}"
    );
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert_outcomes(&workspace, &mut agent, &cases, &posted).await;
}

#[tokio::test]
async fn scheduled_commands_are_rechecked_after_group_changes() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let cases = cases();
    let began = now();
    let waiting = create_requesters(&workspace, &server, &cases).await;
    // Enough time for all changes, which take less time than the steps so far.
    let scheduled_at = deadline_at_pace_since(began);
    let posted = post_all(&server, &cases, waiting, &json!({"scheduled_at": scheduled_at})).await;
    for (case, (waiting, _)) in cases.iter().zip(&posted) {
        (case.while_waiting)(waiting).await;
    }
    assert!(now() < scheduled_at, "this machine is too slow for the test");
    let its_time = || async { (now() >= scheduled_at).then_some(()) };
    eventually_within(Duration::from_secs(150), "its time", its_time).await;
    assert_outcomes(&workspace, &mut agent, &cases, &posted).await;
}
