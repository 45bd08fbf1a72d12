//! Commands that wait while what their requester is in a group, or the group itself, changes
//! (contract 5.6 and 7.5). What else can happen to their right is in `firing.rs`.

use std::pin::Pin;
use std::time::Duration;

use farhand_tests::agents::ScriptedAgent;
use farhand_tests::commands::wait_until_ended;
use farhand_tests::people::{MEMBERSHIPS, SERVERS, at, group_path};
use farhand_tests::{Person, Workspace, deadline_at_pace_since, eventually_within, now};
use serde_json::{Value, json};

use super::commands::{PATH, has_status, id_of, moment, path_of};

/// Somebody whose command waits, in a group of their own that has the server.
struct Waiting<'a> {
    workspace: &'a Workspace,
    person: Person,
    membership: Value,
    group: Value,
    /// Another group of the server's, where they are a plain member if the case says so.
    second: Option<(Value, Value)>,
}

impl Waiting<'_> {
    async fn is_now(&self, role: &str) {
        self.workspace
            .admin
            .patch(&at(MEMBERSHIPS, &self.membership), &json!({"role": role}))
            .await
            .expect(200);
    }

    async fn leave(&self) {
        self.person.api.delete(&at(MEMBERSHIPS, &self.membership)).await.expect(204);
    }

    async fn set_group(&self, changes: Value) {
        self.workspace.admin.patch(&group_path(&self.group), &changes).await.expect(200);
    }

    async fn set_user(&self, changes: Value) {
        self.person.set(self.workspace, changes).await;
    }

    /// Takes the server out of the group, by the server.
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

type Done<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// What somebody is, what they ask for, what happens meanwhile, and what becomes of it.
struct Case {
    name: &'static str,
    role: &'static str,
    /// Of the command, beside the server and its time.
    changes: Value,
    is_in_second: bool,
    meanwhile: for<'a> fn(&'a Waiting<'a>) -> Done<'a>,
    /// Why the command is cancelled; `None` where it runs.
    reason: Option<&'static str>,
}

const SERVER: Option<&str> = Some("its requester does not reach the server any more");
const ACCOUNT: Option<&str> = Some("its requester may not run commands as that account any more");

macro_rules! case {
    ($name:literal, $role:literal, $changes:tt, |$it:ident| $work:expr, $reason:expr) => {
        Case {
            name: $name,
            role: $role,
            changes: json!($changes),
            is_in_second: false,
            meanwhile: |$it| Box::pin(async move { $work }),
            reason: $reason,
        }
    };
}

/// Those that are cancelled stand between those that run.
fn cases() -> Vec<Case> {
    let in_second = |case: Case| Case { is_in_second: true, ..case };
    vec![
        case!("untouched", "member", {}, |_it| (), None),
        case!("left", "member", {}, |it| it.leave().await, SERVER),
        case!("removed", "manager", {"username": "root"}, |it| it.workspace.remove_member(&it.group, &it.person).await, SERVER),
        case!("untouched-m", "manager", {"username": "root", "groupname": "adm"}, |_it| (), None),
        case!("demoted", "manager", {"username": "root"}, |it| it.is_now("member").await, ACCOUNT),
        case!("demoted-o", "owner", {"username": "deploy"}, |it| it.is_now("member").await, ACCOUNT),
        case!("demoted-g", "manager", {"groupname": "adm"}, |it| it.is_now("member").await, ACCOUNT),
        case!("demoted-own", "manager", {}, |it| it.is_now("member").await, None),
        case!("owner-manager", "owner", {"username": "root"}, |it| it.is_now("manager").await, None),
        case!("promoted", "member", {}, |it| it.is_now("owner").await, None),
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
                let second = at(MEMBERSHIPS, &it.second.as_ref().unwrap().1);
                it.workspace.admin.patch(&second, &json!({"role": "owner"})).await.expect(200);
            },
            None
        )),
        // The account of a plain member is the one that has their name now.
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

/// Brings everybody into groups of the server.
async fn gather<'a>(workspace: &'a Workspace, server: &Value, cases: &[Case]) -> Vec<Waiting<'a>> {
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
        waiting.push(Waiting { workspace, person, membership, group, second });
    }
    waiting
}

/// Posts everybody's command, with fields of the test's.
async fn post_all<'a>(
    server: &Value,
    cases: &[Case],
    waiting: Vec<Waiting<'a>>,
    more: &Value,
) -> Vec<(Waiting<'a>, Value)> {
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

/// Takes what must go out off the agent's socket, in order, and looks at what must not.
async fn settle(
    workspace: &Workspace,
    agent: &mut ScriptedAgent,
    cases: &[Case],
    posted: &[(Waiting<'_>, Value)],
) {
    let mut order: Vec<(&Case, &Value)> =
        cases.iter().zip(posted).map(|(case, (_, made))| (case, made)).collect();
    order.sort_by_key(|(_, made)| (moment(made, "scheduled_at"), id_of(made).to_owned()));
    for (case, made) in order.iter().filter(|(case, _)| case.reason.is_none()) {
        let command = agent.next_command().await;
        assert_eq!(command["id"], made["id"], "{} is next", case.name);
        assert_eq!(
            (&command["user"], &command["group"]),
            (&made["username"], &made["groupname"]),
            "{}",
            case.name
        );
    }
    assert!(agent.stays_silent().await, "nothing else goes out");
    for (case, made) in order {
        let Some(reason) = case.reason else {
            let sent = workspace.admin.get(&path_of(made)).await.expect(200);
            assert_eq!(sent["status"]["text"], "Sent", "{}", case.name);
            continue;
        };
        let ended = wait_until_ended(&workspace.admin, id_of(made)).await;
        has_status(&ended, "Cancelled", "secondary", false);
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
async fn a_queued_command_goes_out_if_its_requester_still_may() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let cases = cases();
    let waiting = gather(&workspace, &server, &cases).await;
    let posted = post_all(&server, &cases, waiting, &json!({"on_offline": "queue"})).await;
    for (case, (waiting, _)) in cases.iter().zip(&posted) {
        (case.meanwhile)(waiting).await;
    }
    // Nothing is checked, and nothing ends, before it could go out.
    let list = workspace.admin.get(&format!("{PATH}?page_size=100")).await.expect(200);
    assert_eq!(list["count"], cases.len());
    assert!(
        list["results"].as_array().unwrap().iter().all(|item| item["status"]["text"] == "Queued"),
        "{list}"
    );
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    settle(&workspace, &mut agent, &cases, &posted).await;
}

#[tokio::test]
async fn a_scheduled_command_goes_out_if_its_requester_still_may() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let cases = cases();
    let began = now();
    let waiting = gather(&workspace, &server, &cases).await;
    // Time enough for all that happens meanwhile, which is less than what was done so far.
    let scheduled_at = deadline_at_pace_since(began);
    let posted = post_all(&server, &cases, waiting, &json!({"scheduled_at": scheduled_at})).await;
    for (case, (waiting, _)) in cases.iter().zip(&posted) {
        (case.meanwhile)(waiting).await;
    }
    assert!(now() < scheduled_at, "this machine is too slow for the test");
    let its_time = || async { (now() >= scheduled_at).then_some(()) };
    eventually_within(Duration::from_secs(150), "its time", its_time).await;
    settle(&workspace, &mut agent, &cases, &posted).await;
}
