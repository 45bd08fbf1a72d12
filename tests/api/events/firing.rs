//! Commands that wait: when they are delivered, in which order, and the recheck of their permission
//! (contract 7.5 and 8.5).

use std::pin::Pin;
use std::time::Duration;

use farhand_domain::time::Timestamp;
use farhand_tests::agents::{ScriptedAgent, wait_until_connected};
use farhand_tests::client::PASSWORD;
use farhand_tests::commands::{wait_for_status, wait_until_ended};
use farhand_tests::{
    Api, Instance, Workspace, deadline_at_pace_since, eventually, eventually_within, far_ahead, now,
};
use serde_json::{Value, json};

const PATH: &str = "/api/events/commands/";
const TOKENS: &str = "/api/auth/tokens/";
/// The client address of all commands in these tests.
const ADDRESS: &str = "10.1.2.3";

fn path_of(command: &Value) -> String {
    format!("{PATH}{}/", command["id"].as_str().unwrap())
}

fn id_of(command: &Value) -> &str {
    command["id"].as_str().unwrap()
}

#[track_caller]
fn time_of(command: &Value, field: &str) -> Timestamp {
    Timestamp::parse(command[field].as_str().unwrap_or_else(|| panic!("{field}: {command}")))
        .unwrap()
}

/// A requester of waiting commands, with methods that change their permission.
struct Requester {
    admin: Api,
    session: Api,
    id: Value,
    username: String,
    /// The path of the requester's API token.
    token: String,
    /// The client that posts the commands.
    api: Api,
}

/// The credential that posts a requester's commands.
enum PostedWith {
    Session,
    /// An API token with this access control list.
    Token(Value),
}

impl Requester {
    async fn new(workspace: &Workspace, username: &str, posted_with: &PostedWith) -> Self {
        let user = workspace.user_with(username, &json!({"is_staff": true})).await;
        let session = workspace.anonymous.logged_in(username, PASSWORD).await.from_address(ADDRESS);
        let acl = if let PostedWith::Token(acl) = posted_with { acl } else { &Value::Null };
        let token = json!({"name": "waiting", "expires_at": null, "acl": acl});
        let token = session.post(TOKENS, &token).await.expect(201);
        let api = match posted_with {
            PostedWith::Session => session.clone(),
            PostedWith::Token(_) => session.with_token(token["key"].as_str().unwrap()),
        };
        Self {
            admin: workspace.admin.clone(),
            session,
            id: user["id"].clone(),
            username: username.to_owned(),
            token: format!("{TOKENS}{}/", token["id"].as_str().unwrap()),
            api,
        }
    }

    async fn change_user(&self, changes: Value) {
        self.admin.patch(&format!("/api/iam/users/{}/", self.id), &changes).await.expect(200);
    }

    async fn change_token(&self, changes: Value) {
        self.session.patch(&self.token, &changes).await.expect(200);
    }

    async fn limit(&self, acl: Value) {
        self.change_token(json!({"acl": acl})).await;
    }
}

type ChangeFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A change while a command waits, and the expected outcome.
struct ChangeCase {
    name: &'static str,
    posted_with: PostedWith,
    /// Fields of the command, besides the server and the time.
    changes: Value,
    while_waiting: for<'a> fn(&'a Requester) -> ChangeFuture<'a>,
    /// Why the command is cancelled. `None` if it runs.
    reason: Option<&'static str>,
}

const REQUESTER: Option<&str> = Some("its requester is not active any more");
const SERVER: Option<&str> = Some("its requester has no access to the server any more");
const TOKEN: Option<&str> = Some("the API token that created it is not valid any more");
const ACL: Option<&str> =
    Some("the access control list of its API token does not allow it any more");

macro_rules! while_waiting {
    ($person:ident, $work:expr) => {
        |$person| Box::pin(async move { $work })
    };
}

fn case(
    name: &'static str,
    posted_with: PostedWith,
    changes: Value,
    while_waiting: for<'a> fn(&'a Requester) -> ChangeFuture<'a>,
    reason: Option<&'static str>,
) -> ChangeCase {
    ChangeCase { name, posted_with, changes, while_waiting, reason }
}

/// Each cancelled case stands before one that runs.
fn cases() -> Vec<ChangeCase> {
    let (any, none) = (|| PostedWith::Token(Value::Null), || json!({}));
    let wide = || {
        PostedWith::Token(
            json!({"commands": ["id", "ls *"], "usernames": ["deploy", "root"], "networks": ["10.0.0.0/8"]}),
        )
    };
    let cancelled = vec![
        case(
            "deactivated",
            PostedWith::Session,
            none(),
            while_waiting!(p, p.change_user(json!({"is_active": false})).await),
            REQUESTER,
        ),
        case(
            "deactivated-t",
            any(),
            none(),
            while_waiting!(p, p.change_user(json!({"is_active": false})).await),
            REQUESTER,
        ),
        case(
            "deleted",
            PostedWith::Session,
            none(),
            while_waiting!(
                p,
                drop(p.admin.delete(&format!("/api/iam/users/{}/", p.id)).await.expect(204))
            ),
            REQUESTER,
        ),
        case(
            "deleted-t",
            any(),
            none(),
            while_waiting!(
                p,
                drop(
                    p.admin.delete(&format!("/api/users/users/{}/", p.username)).await.expect(204)
                )
            ),
            REQUESTER,
        ),
        case(
            "demoted",
            PostedWith::Session,
            none(),
            while_waiting!(p, p.change_user(json!({"is_staff": false})).await),
            SERVER,
        ),
        case(
            "demoted-t",
            any(),
            none(),
            while_waiting!(p, p.change_user(json!({"is_staff": false})).await),
            SERVER,
        ),
        case(
            "disabled",
            any(),
            none(),
            while_waiting!(p, p.change_token(json!({"enabled": false})).await),
            TOKEN,
        ),
        case(
            "removed",
            any(),
            none(),
            while_waiting!(p, drop(p.session.delete(&p.token).await.expect(204))),
            TOKEN,
        ),
        case(
            "expired",
            any(),
            none(),
            while_waiting!(p, {
                p.change_token(json!({"expires_at": now().plus_seconds(3)})).await;
                eventually("the token's end", || async {
                    (p.api.get("/api/status/").await.status == 403).then_some(())
                })
                .await;
            }),
            TOKEN,
        ),
        case(
            "revived",
            any(),
            none(),
            while_waiting!(p, {
                p.change_user(json!({"is_active": false})).await;
                p.change_user(json!({"is_active": true})).await;
            }),
            TOKEN,
        ),
        case(
            "commands",
            any(),
            none(),
            while_waiting!(p, p.limit(json!({"commands": ["ls *"]})).await),
            ACL,
        ),
        case(
            "no-commands",
            wide(),
            none(),
            while_waiting!(p, p.limit(json!({"commands": []})).await),
            ACL,
        ),
        case(
            "env",
            any(),
            json!({"env": {"A": "b"}}),
            while_waiting!(p, p.limit(json!({"commands": ["*"]})).await),
            ACL,
        ),
        case(
            "no-env",
            any(),
            json!({"env": {}}),
            while_waiting!(p, p.limit(json!({"commands": ["*"]})).await),
            ACL,
        ),
        case(
            "internal",
            any(),
            json!({"shell": "internal"}),
            while_waiting!(p, p.limit(json!({"commands": ["*"]})).await),
            ACL,
        ),
        case(
            "servers",
            any(),
            none(),
            while_waiting!(p, p.limit(json!({"servers": []})).await),
            ACL,
        ),
        case(
            "usernames",
            wide(),
            none(),
            while_waiting!(p, p.limit(json!({"usernames": ["root"]})).await),
            ACL,
        ),
        case(
            "groups",
            any(),
            json!({"groupname": "www"}),
            while_waiting!(p, p.limit(json!({"usernames": ["deploy"]})).await),
            ACL,
        ),
        case(
            "networks",
            wide(),
            none(),
            while_waiting!(p, p.limit(json!({"networks": ["10.2.0.0/16"]})).await),
            ACL,
        ),
        case(
            "read-only",
            any(),
            none(),
            while_waiting!(p, p.limit(json!({"read_only": true})).await),
            ACL,
        ),
    ];
    let runs = vec![
        case("untouched", PostedWith::Session, none(), while_waiting!(_p, ()), None),
        case("untouched-t", any(), none(), while_waiting!(_p, ()), None),
        case("untouched-l", wide(), none(), while_waiting!(_p, ()), None),
        case(
            "logged-out",
            PostedWith::Session,
            none(),
            while_waiting!(p, drop(p.session.call("POST", "/api/auth/logout/").await.expect(200))),
            None,
        ),
        case(
            "new-password",
            PostedWith::Session,
            none(),
            while_waiting!(p, {
                let body = json!({
                    "password": PASSWORD, "new_password": "an entirely other one", "keep_scheduled": true,
                });
                p.session.post("/api/auth/change-password/", &body).await.expect(200);
                p.session.get("/api/status/").await.expect(403);
            }),
            None,
        ),
        case(
            "new-password-t",
            wide(),
            none(),
            while_waiting!(p, {
                let body = json!({"password": "an entirely other one"});
                p.admin
                    .patch(&format!("/api/users/users/{}/", p.username), &body)
                    .await
                    .expect(200);
            }),
            None,
        ),
        case(
            "revived-s",
            PostedWith::Session,
            none(),
            while_waiting!(p, {
                p.change_user(json!({"is_active": false})).await;
                p.change_user(json!({"is_active": true})).await;
            }),
            None,
        ),
        case(
            "token-gone",
            PostedWith::Session,
            none(),
            while_waiting!(p, drop(p.session.delete(&p.token).await.expect(204))),
            None,
        ),
        case(
            "on-again",
            any(),
            none(),
            while_waiting!(p, {
                p.change_token(json!({"enabled": false})).await;
                p.change_token(json!({"enabled": true})).await;
            }),
            None,
        ),
        case(
            "staff-again",
            any(),
            none(),
            while_waiting!(p, {
                p.change_user(json!({"is_staff": false})).await;
                p.change_user(json!({"is_staff": true})).await;
            }),
            None,
        ),
        case(
            "expires-later",
            any(),
            none(),
            while_waiting!(
                p,
                p.change_token(json!({"expires_at": now().plus_seconds(3_600)})).await
            ),
            None,
        ),
        case(
            "still-within",
            wide(),
            none(),
            while_waiting!(p, {
                let acl = json!({"commands": ["i*"], "usernames": ["deploy"], "networks": ["10.1.2.3/32"], "read_only": false});
                p.limit(acl).await;
            }),
            None,
        ),
        case("freed", wide(), none(), while_waiting!(p, p.limit(Value::Null).await), None),
        case(
            "groups-freed",
            any(),
            json!({"groupname": "www", "env": {"A": "b"}}),
            while_waiting!(p, p.limit(json!({"networks": ["10.1.0.0/16"]})).await),
            None,
        ),
    ];
    let mut runs = runs.into_iter();
    let pairs = cancelled.into_iter().flat_map(|case| [Some(case), runs.next()]);
    let mut all: Vec<ChangeCase> = pairs.flatten().collect();
    all.extend(runs);
    all
}

/// Creates a requester for each case.
async fn create_requesters(workspace: &Workspace, cases: &[ChangeCase]) -> Vec<Requester> {
    let mut requesters = Vec::new();
    for case in cases {
        requesters.push(Requester::new(workspace, case.name, &case.posted_with).await);
    }
    requesters
}

/// Posts the command of each case, with additional fields.
async fn post_all(cases: &[ChangeCase], requesters: &[Requester], more: &Value) -> Vec<Value> {
    let mut made = Vec::new();
    for (case, person) in cases.iter().zip(requesters) {
        let mut body = json!({"line": "id", "username": "deploy"});
        for changes in [more, &case.changes] {
            body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        }
        let reply = person.api.post(PATH, &body).await;
        assert_eq!(reply.status, 201, "{}: {}", case.name, reply.text);
        made.push(reply.json());
    }
    made
}

async fn while_waiting(cases: &[ChangeCase], requesters: &[Requester]) {
    for (case, person) in cases.iter().zip(requesters) {
        (case.while_waiting)(person).await;
    }
}

/// Asserts that a command is cancelled, and that its message has the reason.
async fn assert_cancelled(admin: &Api, name: &str, made: &Value, reason: &str) {
    let command = wait_until_ended(admin, id_of(made)).await;
    let status = &command["status"];
    assert_eq!(
        (&status["text"], &status["color"], &status["cancellable"]),
        (&json!("Cancelled"), &json!("secondary"), &json!(false)),
        "{name}: {command}"
    );
    let message = status["message"].as_str().unwrap();
    assert!(message.contains(reason), "{name}: {message}");
    assert_eq!(command["success"], false, "{name}");
    for unknown in
        ["delivered_at", "acked_at", "result", "exit_code", "elapsed_time", "response_delay"]
    {
        assert_eq!(command[unknown], json!(null), "{name}: {unknown}");
    }
    assert!(
        time_of(&command, "handled_at") >= time_of(&command, "scheduled_at"),
        "{name}: {command}"
    );
}

/// Asserts that exactly the permitted commands are delivered, in order, and that the other commands
/// are cancelled.
async fn assert_outcomes(
    workspace: &Workspace,
    agent: &mut ScriptedAgent,
    cases: &[ChangeCase],
    made: &[Value],
) {
    let mut order: Vec<(&ChangeCase, &Value)> = cases.iter().zip(made).collect();
    order.sort_by_key(|(_, command)| (time_of(command, "scheduled_at"), id_of(command).to_owned()));
    for (case, command) in order.iter().filter(|(case, _)| case.reason.is_none()) {
        assert_eq!(
            agent.next_command().await["id"],
            command["id"],
            "the next command must be {}",
            case.name
        );
        agent.ack(id_of(command)).await;
    }
    assert!(agent.stays_silent().await, "nothing else is delivered");
    for (case, command) in order {
        match case.reason {
            Some(reason) => assert_cancelled(&workspace.admin, case.name, command, reason).await,
            None => assert_eq!(
                workspace.admin.get(&path_of(command)).await.expect(200)["status"]["text"],
                "Acked",
                "{}",
                case.name
            ),
        }
        let shown = &workspace.admin.get(&path_of(command)).await.expect(200)["requested_by"];
        assert_eq!(shown.is_null(), case.name.starts_with("deleted"), "{}: {shown}", case.name);
    }
    // The list shows the same soon after.
    let cancelled = cases.iter().filter(|case| case.reason.is_some()).count();
    eventually("the list to show the cancelled commands", || async {
        let list = workspace.admin.get(&format!("{PATH}?page_size=100")).await.expect(200);
        let items = list["results"].as_array().unwrap().iter();
        (items.filter(|item| item["status"]["text"] == "Cancelled").count() == cancelled)
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn queued_commands_are_rechecked_when_the_agent_connects() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let cases = cases();
    let requesters = create_requesters(&workspace, &cases).await;
    let made =
        post_all(&cases, &requesters, &json!({"server": "web-1", "on_offline": "queue"})).await;
    assert!(made.iter().all(|command| command["status"]["text"] == "Queued"));
    while_waiting(&cases, &requesters).await;
    // The permission is not rechecked before the command could be delivered.
    let list = workspace.admin.get(&format!("{PATH}?page_size=100")).await.expect(200);
    assert!(
        list["results"].as_array().unwrap().iter().all(|item| item["status"]["text"] == "Queued"),
        "{list}"
    );
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert_outcomes(&workspace, &mut agent, &cases, &made).await;
}

#[tokio::test]
async fn scheduled_commands_are_rechecked_at_their_time() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let cases = cases();
    let began = now();
    let requesters = create_requesters(&workspace, &cases).await;
    // Enough time for all changes, which take less time than the steps so far.
    let scheduled_at = deadline_at_pace_since(began);
    let made =
        post_all(&cases, &requesters, &json!({"server": "web-1", "scheduled_at": scheduled_at}))
            .await;
    assert!(made.iter().all(|command| command["status"]["text"] == "Scheduled"));
    while_waiting(&cases, &requesters).await;
    assert!(now() < scheduled_at, "this machine is too slow for the test");
    let its_time = || async { (now() >= scheduled_at).then_some(()) };
    eventually_within(Duration::from_secs(150), "the due time", its_time).await;
    assert_outcomes(&workspace, &mut agent, &cases, &made).await;
}

#[tokio::test]
async fn overdue_commands_are_rechecked_when_the_agent_connects() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let cases: Vec<ChangeCase> = cases().into_iter().take(8).collect();
    let requesters = create_requesters(&workspace, &cases).await;
    // Later than the creation of the last command, even on a slow machine.
    let scheduled_at = now().plus_seconds(10);
    let made =
        post_all(&cases, &requesters, &json!({"server": "web-1", "scheduled_at": scheduled_at}))
            .await;
    wait_for_status(&workspace.admin, id_of(made.last().unwrap()), "Queued").await;
    // The permission at the due time does not matter. It is rechecked at the delivery.
    while_waiting(&cases, &requesters).await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert_outcomes(&workspace, &mut agent, &cases, &made).await;
}

#[tokio::test]
async fn a_demoted_owner_loses_only_permissions_of_staff() {
    let workspace = Workspace::new().await;
    let owner = workspace.staff("owner").await;
    let server = owner.post("/api/servers/", &json!({"name": "web-1"})).await.expect(201);
    let post = async |body: Value| {
        let mut body = body;
        body["server"] = json!("web-1");
        body["on_offline"] = json!("queue");
        owner.post(PATH, &body).await.expect(201)
    };
    let internal = post(json!({"line": "ping", "shell": "internal"})).await;
    let as_root = post(json!({"line": "id", "username": "root", "groupname": "adm"})).await;
    let id = owner.get("/api/iam/users/-/").await.expect(200)["id"].clone();
    let demotion = json!({"is_staff": false, "keep_servers": true});
    workspace.admin.patch(&format!("/api/iam/users/{id}/"), &demotion).await.expect(200);
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert_eq!(agent.next_command().await["id"], as_root["id"]);
    assert_cancelled(
        &workspace.admin,
        "internal",
        &internal,
        "its requester may not use the agent's built-in commands",
    )
    .await;
    assert!(agent.stays_silent().await);
}

#[tokio::test]
async fn a_wider_list_revives_no_refused_command() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let person =
        Requester::new(&workspace, "alice", &PostedWith::Token(json!({"commands": ["ls"]}))).await;
    let body = |line: &str| json!({"server": "web-1", "line": line, "on_offline": "queue"});
    person.api.post(PATH, &body("id")).await.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
    let allowed = person.api.post(PATH, &body("ls")).await.expect(201);
    person.limit(Value::Null).await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert_eq!(agent.next_command().await["id"], allowed["id"]);
    assert!(agent.stays_silent().await);
    assert_eq!(workspace.admin.get(PATH).await.expect(200)["count"], 1);
}

#[tokio::test]
async fn a_command_that_lost_its_permission_ends_for_waiters() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let person = Requester::new(&workspace, "alice", &PostedWith::Token(Value::Null)).await;
    let body = json!({"server": "web-1", "line": "id", "on_offline": "queue"});
    let made = person.api.post(PATH, &body).await.expect(201);
    person.limit(json!({"commands": ["ls"]})).await;
    let waiting = format!("{}?wait=60", path_of(&made));
    let (reply, agent) = futures_util::join!(workspace.admin.get(&waiting), async {
        let mut agent = ScriptedAgent::connect(&workspace, &server).await;
        assert!(agent.stays_silent().await);
        agent
    });
    assert_eq!(
        reply.expect(200)["status"]["text"],
        "Cancelled",
        "a waiting request gets the new state"
    );
    // Afterwards, it behaves like any cancelled command: it can be cancelled again, and its stream
    // ends.
    let again =
        workspace.admin.call("POST", &format!("{}cancel/", path_of(&made))).await.expect(200);
    assert_eq!(again, workspace.admin.get(&path_of(&made)).await.expect(200));
    let events = workspace.admin.get(&format!("{}stream/", path_of(&made))).await;
    assert!(events.text.contains("event: end"), "{}", events.text);
    drop(agent);
}

/// An order that is neither the order of creation nor its reverse.
const SHUFFLED: [usize; 10] = [6, 2, 9, 0, 4, 7, 1, 8, 3, 5];

/// Posts ten commands in shuffled order, and asserts the order of delivery.
async fn assert_delivery_order(
    workspace: &Workspace,
    agent: &mut ScriptedAgent,
    at: impl Fn(usize) -> Timestamp,
) {
    let mut made = Vec::new();
    for number in SHUFFLED {
        let body = json!({"server": "web-1", "line": format!("echo {number}"), "scheduled_at": at(number)});
        made.push(workspace.admin.post(PATH, &body).await.expect(201));
    }
    made.sort_by_key(|command| (time_of(command, "scheduled_at"), id_of(command).to_owned()));
    for command in &made {
        assert_eq!(agent.next_command().await["id"], command["id"]);
    }
    assert!(agent.stays_silent().await);
    for command in &made {
        let sent = workspace.admin.get(&path_of(command)).await.expect(200);
        assert_eq!(sent["status"]["text"], "Sent");
        assert!(
            time_of(&sent, "delivered_at") >= time_of(&sent, "scheduled_at"),
            "delivered before its time: {sent}"
        );
    }
}

#[tokio::test]
async fn due_commands_are_delivered_by_time_and_then_id() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let start = now().plus_seconds(10);
    assert_delivery_order(&workspace, &mut agent, |_| start).await;
    let start = now().plus_seconds(10);
    assert_delivery_order(&workspace, &mut agent, |number| {
        start.plus_millis(150 * i64::try_from(number).unwrap())
    })
    .await;
    // Two commands at each of five times.
    let start = now().plus_seconds(10);
    assert_delivery_order(&workspace, &mut agent, |number| {
        start.plus_seconds(i64::try_from(number / 2).unwrap())
    })
    .await;
    // Less than a millisecond apart, which is the clock's resolution.
    let start = now().plus_seconds(10).to_string();
    let micros = |number: usize| start.replace("000+00:00", &format!("00{number}+00:00"));
    assert_delivery_order(&workspace, &mut agent, |number| {
        Timestamp::parse(&micros(number)).unwrap()
    })
    .await;
}

#[tokio::test]
async fn queued_commands_are_delivered_in_order() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    // More commands than one pass handles. Some are queued, and some are due before the agent
    // connects.
    let soon = now().plus_seconds(3);
    let mut made = Vec::new();
    for number in 0..120 {
        let mut body =
            json!({"server": "web-1", "line": format!("echo {number}"), "on_offline": "queue"});
        if number % 3 == 0 {
            body["scheduled_at"] = json!(soon.plus_millis(-number));
        }
        made.push(workspace.admin.post(PATH, &body).await.expect(201));
    }
    eventually("the due time", || async { (now() > soon).then_some(()) }).await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    made.sort_by_key(|command| (time_of(command, "scheduled_at"), id_of(command).to_owned()));
    for command in &made {
        assert_eq!(agent.next_command().await["id"], command["id"]);
    }
    // New commands are delivered after them.
    let last =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "last"})).await.expect(201);
    assert_eq!(agent.next_command().await["id"], last["id"]);
    assert!(agent.stays_silent().await);
}

#[tokio::test]
async fn an_idle_instance_delivers_on_time() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), true).await;
    let mut least = f64::MAX;
    for _ in 0..3 {
        let body = json!({"server": "web-1", "line": "id", "scheduled_at": now().plus_seconds(3)});
        let made = workspace.admin.post(PATH, &body).await.expect(201);
        assert_eq!(made["status"]["text"], "Scheduled");
        assert_eq!(agent.next_command().await["id"], made["id"]);
        let sent = workspace.admin.get(&path_of(&made)).await.expect(200);
        let late = time_of(&sent, "delivered_at").seconds_since(time_of(&sent, "scheduled_at"));
        assert!(late >= 0.0, "{late} s late");
        least = least.min(late);
        agent.fin(id_of(&made), 0, "").await;
    }
    assert!(least < 2.0, "{least} s late");
}

#[tokio::test]
async fn an_unreadable_list_does_not_block_other_commands() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let person =
        Requester::new(&workspace, "alice", &PostedWith::Token(json!({"commands": ["id"]}))).await;
    let body = json!({"server": "web-1", "line": "id", "on_offline": "queue"});
    let made = person.api.post(PATH, &body).await.expect(201);
    let behind = workspace.admin.post(PATH, &body).await.expect(201);
    // A later version of the service may leave such a list behind after a downgrade.
    instance.d1(r#"UPDATE api_tokens SET acl = '{"commands":["id"],"hours":[9,17]}' WHERE name = 'waiting'"#);
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert_eq!(agent.next_command().await["id"], behind["id"]);
    assert_cancelled(&workspace.admin, "unreadable", &made, ACL.unwrap()).await;
    assert!(agent.stays_silent().await);
}

#[tokio::test]
async fn commands_in_the_far_future_do_not_block_others() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut far = Vec::new();
    // Also with an expiry beyond the range of the platform's alarms.
    for expires_at in
        [json!(null), json!("2999-01-01T00:00:00Z"), json!("9999-12-31T23:59:59.999999Z")]
    {
        let body = json!({"server": "web-1", "line": "far", "scheduled_at": far_ahead(), "expires_at": expires_at});
        far.push(workspace.admin.post(PATH, &body).await.expect(201));
    }
    assert_eq!(far[2]["expires_at"], "9999-12-31T23:59:59.999999+00:00");
    let at_once = json!({"server": "web-1", "line": "id"});
    workspace.admin.post(PATH, &at_once).await.expect_detail(503, Some("SERVER_NOT_CONNECTED"));
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let soon = json!({"server": "web-1", "line": "soon", "scheduled_at": now().plus_seconds(1)});
    for body in [at_once, soon] {
        let made = workspace.admin.post(PATH, &body).await.expect(201);
        assert_eq!(agent.next_command().await["id"], made["id"]);
        agent.fin(id_of(&made), 0, "").await;
    }
    agent.close().await;
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), false).await;
    for made in &far {
        assert_eq!(
            workspace.admin.get(&path_of(made)).await.expect(200)["status"]["text"],
            "Scheduled"
        );
        workspace.admin.delete(&path_of(made)).await.expect(204);
        assert_eq!(
            workspace.admin.get(&path_of(made)).await.expect(200)["status"]["text"],
            "Cancelled"
        );
    }
}

/// The maximum number of unfinished commands of an agent (agent-protocol 4.3, contract 7.4).
const MAX_UNFINISHED: usize = 200;

#[tokio::test]
async fn an_agent_gets_a_limited_number_of_commands() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let person = Requester::new(&workspace, "alice", &PostedWith::Token(Value::Null)).await;
    let body = json!({"server": "web-1", "line": "id"});
    let mut sent = Vec::new();
    for _ in 0..MAX_UNFINISHED {
        let made = person.api.post(PATH, &body).await.expect(201);
        assert_eq!(made["status"]["text"], "Sent");
        assert_eq!(agent.next_command().await["id"], made["id"]);
        // The last command is not acknowledged. The other commands would be stuck after a minute on
        // a slow machine.
        if sent.len() + 1 < MAX_UNFINISHED {
            agent.ack(id_of(&made)).await;
        }
        sent.push(id_of(&made).to_owned());
    }
    let mut queue = Vec::new();
    for api in [&workspace.admin, &workspace.admin, &person.api, &workspace.admin] {
        let made = api.post(PATH, &body).await.expect(201);
        let status = &made["status"];
        assert_eq!(
            (&status["text"], &status["color"], &status["cancellable"]),
            (&json!("Queued"), &json!("warning"), &json!(true))
        );
        assert_eq!(made["delivered_at"], json!(null));
        queue.push(made);
    }
    assert!(agent.stays_silent().await);
    let cancelled =
        workspace.admin.call("POST", &format!("{}cancel/", path_of(&queue[0]))).await.expect(200);
    assert_eq!(
        (&cancelled["status"]["text"], &cancelled["success"]),
        (&json!("Cancelled"), &json!(false))
    );
    // Neither an ack nor a cancelled command makes room.
    agent.ack(&sent[MAX_UNFINISHED - 1]).await;
    assert!(agent.stays_silent().await);
    // An end makes room for exactly one command.
    agent.fin(&sent[7], 0, "").await;
    assert_eq!(agent.next_command().await["id"], queue[1]["id"]);
    assert!(agent.stays_silent().await);
    // A repeated fin makes no more room.
    agent.fin(&sent[7], 0, "").await;
    assert!(agent.stays_silent().await);
    // The permission of a command that waited for room is rechecked too. A cancelled command gives
    // its place to the next command.
    person.change_token(json!({"enabled": false})).await;
    agent.fin(&sent[8], 1, "").await;
    assert_eq!(agent.next_command().await["id"], queue[3]["id"]);
    assert_cancelled(&workspace.admin, "behind the window", &queue[2], TOKEN.unwrap()).await;
    // A new connection does not make room, because the agent's process still runs its commands.
    let last = workspace.admin.post(PATH, &body).await.expect(201);
    assert_eq!(last["status"]["text"], "Queued");
    let mut again = ScriptedAgent::connect(&workspace, &server).await;
    assert!(again.stays_silent().await);
    again.fin(&sent[9], 0, "").await;
    assert_eq!(again.next_command().await["id"], last["id"]);
    assert!(again.stays_silent().await);
}
