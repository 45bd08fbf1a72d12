//! Commands that wait: when they go out, in which order, and whether they still may (contract 7.5
//! and 8.5).

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
/// Where all commands of these tests are posted from.
const ADDRESS: &str = "10.1.2.3";

fn path_of(command: &Value) -> String {
    format!("{PATH}{}/", command["id"].as_str().unwrap())
}

fn id_of(command: &Value) -> &str {
    command["id"].as_str().unwrap()
}

#[track_caller]
fn moment(command: &Value, field: &str) -> Timestamp {
    Timestamp::parse(command[field].as_str().unwrap_or_else(|| panic!("{field}: {command}")))
        .unwrap()
}

/// Somebody who has commands waiting, and what can be done to them meanwhile.
struct Person {
    admin: Api,
    session: Api,
    id: Value,
    username: String,
    /// The path of their API token.
    token: String,
    /// What their commands are posted with.
    api: Api,
}

/// What a person's commands are posted with.
enum By {
    Session,
    /// An API token with this list.
    Token(Value),
}

impl Person {
    async fn new(workspace: &Workspace, username: &str, by: &By) -> Self {
        let user = workspace.user_with(username, &json!({"is_staff": true})).await;
        let session = workspace.anonymous.logged_in(username, PASSWORD).await.from_address(ADDRESS);
        let acl = if let By::Token(acl) = by { acl } else { &Value::Null };
        let token = json!({"name": "waiting", "expires_at": null, "acl": acl});
        let token = session.post(TOKENS, &token).await.expect(201);
        let api = match by {
            By::Session => session.clone(),
            By::Token(_) => session.with_token(token["key"].as_str().unwrap()),
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

type Done<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// What happens to somebody while their command waits, and what becomes of that.
struct Case {
    name: &'static str,
    by: By,
    /// Of the command, beside the server and its time.
    changes: Value,
    meanwhile: for<'a> fn(&'a Person) -> Done<'a>,
    /// Why the command is cancelled; `None` where it runs.
    reason: Option<&'static str>,
}

const REQUESTER: Option<&str> = Some("its requester is not active any more");
const SERVER: Option<&str> = Some("its requester does not reach the server any more");
const TOKEN: Option<&str> = Some("the API token that it was made with is not valid any more");
const ACL: Option<&str> =
    Some("the access control list of its API token does not allow it any more");

macro_rules! meanwhile {
    ($person:ident, $work:expr) => {
        |$person| Box::pin(async move { $work })
    };
}

fn case(
    name: &'static str,
    by: By,
    changes: Value,
    meanwhile: for<'a> fn(&'a Person) -> Done<'a>,
    reason: Option<&'static str>,
) -> Case {
    Case { name, by, changes, meanwhile, reason }
}

/// Each of those that are cancelled stands before one that runs.
fn cases() -> Vec<Case> {
    let (any, none) = (|| By::Token(Value::Null), || json!({}));
    let wide = || {
        By::Token(
            json!({"commands": ["id", "ls *"], "usernames": ["deploy", "root"], "networks": ["10.0.0.0/8"]}),
        )
    };
    let cancelled = vec![
        case(
            "deactivated",
            By::Session,
            none(),
            meanwhile!(p, p.change_user(json!({"is_active": false})).await),
            REQUESTER,
        ),
        case(
            "deactivated-t",
            any(),
            none(),
            meanwhile!(p, p.change_user(json!({"is_active": false})).await),
            REQUESTER,
        ),
        case(
            "deleted",
            By::Session,
            none(),
            meanwhile!(
                p,
                drop(p.admin.delete(&format!("/api/iam/users/{}/", p.id)).await.expect(204))
            ),
            REQUESTER,
        ),
        case(
            "deleted-t",
            any(),
            none(),
            meanwhile!(
                p,
                drop(
                    p.admin.delete(&format!("/api/users/users/{}/", p.username)).await.expect(204)
                )
            ),
            REQUESTER,
        ),
        case(
            "demoted",
            By::Session,
            none(),
            meanwhile!(p, p.change_user(json!({"is_staff": false})).await),
            SERVER,
        ),
        case(
            "demoted-t",
            any(),
            none(),
            meanwhile!(p, p.change_user(json!({"is_staff": false})).await),
            SERVER,
        ),
        case(
            "disabled",
            any(),
            none(),
            meanwhile!(p, p.change_token(json!({"enabled": false})).await),
            TOKEN,
        ),
        case(
            "removed",
            any(),
            none(),
            meanwhile!(p, drop(p.session.delete(&p.token).await.expect(204))),
            TOKEN,
        ),
        case(
            "expired",
            any(),
            none(),
            meanwhile!(p, {
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
            meanwhile!(p, {
                p.change_user(json!({"is_active": false})).await;
                p.change_user(json!({"is_active": true})).await;
            }),
            TOKEN,
        ),
        case(
            "commands",
            any(),
            none(),
            meanwhile!(p, p.limit(json!({"commands": ["ls *"]})).await),
            ACL,
        ),
        case(
            "no-commands",
            wide(),
            none(),
            meanwhile!(p, p.limit(json!({"commands": []})).await),
            ACL,
        ),
        case(
            "env",
            any(),
            json!({"env": {"A": "b"}}),
            meanwhile!(p, p.limit(json!({"commands": ["*"]})).await),
            ACL,
        ),
        case(
            "no-env",
            any(),
            json!({"env": {}}),
            meanwhile!(p, p.limit(json!({"commands": ["*"]})).await),
            ACL,
        ),
        case(
            "internal",
            any(),
            json!({"shell": "internal"}),
            meanwhile!(p, p.limit(json!({"commands": ["*"]})).await),
            ACL,
        ),
        case("servers", any(), none(), meanwhile!(p, p.limit(json!({"servers": []})).await), ACL),
        case(
            "usernames",
            wide(),
            none(),
            meanwhile!(p, p.limit(json!({"usernames": ["root"]})).await),
            ACL,
        ),
        case(
            "groups",
            any(),
            json!({"groupname": "www"}),
            meanwhile!(p, p.limit(json!({"usernames": ["deploy"]})).await),
            ACL,
        ),
        case(
            "networks",
            wide(),
            none(),
            meanwhile!(p, p.limit(json!({"networks": ["10.2.0.0/16"]})).await),
            ACL,
        ),
        case(
            "read-only",
            any(),
            none(),
            meanwhile!(p, p.limit(json!({"read_only": true})).await),
            ACL,
        ),
    ];
    let runs = vec![
        case("untouched", By::Session, none(), meanwhile!(_p, ()), None),
        case("untouched-t", any(), none(), meanwhile!(_p, ()), None),
        case("untouched-l", wide(), none(), meanwhile!(_p, ()), None),
        case(
            "logged-out",
            By::Session,
            none(),
            meanwhile!(p, drop(p.session.call("POST", "/api/auth/logout/").await.expect(200))),
            None,
        ),
        case(
            "new-password",
            By::Session,
            none(),
            meanwhile!(p, {
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
            meanwhile!(p, {
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
            By::Session,
            none(),
            meanwhile!(p, {
                p.change_user(json!({"is_active": false})).await;
                p.change_user(json!({"is_active": true})).await;
            }),
            None,
        ),
        case(
            "token-gone",
            By::Session,
            none(),
            meanwhile!(p, drop(p.session.delete(&p.token).await.expect(204))),
            None,
        ),
        case(
            "on-again",
            any(),
            none(),
            meanwhile!(p, {
                p.change_token(json!({"enabled": false})).await;
                p.change_token(json!({"enabled": true})).await;
            }),
            None,
        ),
        case(
            "staff-again",
            any(),
            none(),
            meanwhile!(p, {
                p.change_user(json!({"is_staff": false})).await;
                p.change_user(json!({"is_staff": true})).await;
            }),
            None,
        ),
        case(
            "expires-later",
            any(),
            none(),
            meanwhile!(p, p.change_token(json!({"expires_at": now().plus_seconds(3_600)})).await),
            None,
        ),
        case(
            "still-within",
            wide(),
            none(),
            meanwhile!(p, {
                let acl = json!({"commands": ["i*"], "usernames": ["deploy"], "networks": ["10.1.2.3/32"], "read_only": false});
                p.limit(acl).await;
            }),
            None,
        ),
        case("freed", wide(), none(), meanwhile!(p, p.limit(Value::Null).await), None),
        case(
            "groups-freed",
            any(),
            json!({"groupname": "www", "env": {"A": "b"}}),
            meanwhile!(p, p.limit(json!({"networks": ["10.1.0.0/16"]})).await),
            None,
        ),
    ];
    let mut runs = runs.into_iter();
    let pairs = cancelled.into_iter().flat_map(|case| [Some(case), runs.next()]);
    let mut all: Vec<Case> = pairs.flatten().collect();
    all.extend(runs);
    all
}

/// Makes everybody.
async fn people(workspace: &Workspace, cases: &[Case]) -> Vec<Person> {
    let mut people = Vec::new();
    for case in cases {
        people.push(Person::new(workspace, case.name, &case.by).await);
    }
    people
}

/// Posts everybody's command, with fields of the test's.
async fn post_all(cases: &[Case], people: &[Person], more: &Value) -> Vec<Value> {
    let mut made = Vec::new();
    for (case, person) in cases.iter().zip(people) {
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

async fn meanwhile(cases: &[Case], people: &[Person]) {
    for (case, person) in cases.iter().zip(people) {
        (case.meanwhile)(person).await;
    }
}

/// Asserts that a command was cancelled for a reason, and shown so.
async fn is_cancelled(admin: &Api, name: &str, made: &Value, reason: &str) {
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
        moment(&command, "handled_at") >= moment(&command, "scheduled_at"),
        "{name}: {command}"
    );
}

/// Takes what must go out off the agent's socket, in order, and looks at what must not.
async fn settle(workspace: &Workspace, agent: &mut ScriptedAgent, cases: &[Case], made: &[Value]) {
    let mut order: Vec<(&Case, &Value)> = cases.iter().zip(made).collect();
    order.sort_by_key(|(_, command)| (moment(command, "scheduled_at"), id_of(command).to_owned()));
    for (case, command) in order.iter().filter(|(case, _)| case.reason.is_none()) {
        assert_eq!(agent.next_command().await["id"], command["id"], "{} is next", case.name);
        agent.ack(id_of(command)).await;
    }
    assert!(agent.stays_silent().await, "nothing else goes out");
    for (case, command) in order {
        match case.reason {
            Some(reason) => is_cancelled(&workspace.admin, case.name, command, reason).await,
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
    // Lists follow.
    let cancelled = cases.iter().filter(|case| case.reason.is_some()).count();
    eventually("the list to show it", || async {
        let list = workspace.admin.get(&format!("{PATH}?page_size=100")).await.expect(200);
        let items = list["results"].as_array().unwrap().iter();
        (items.filter(|item| item["status"]["text"] == "Cancelled").count() == cancelled)
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_queued_commands_right_is_checked_when_the_agent_comes() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let cases = cases();
    let people = people(&workspace, &cases).await;
    let made = post_all(&cases, &people, &json!({"server": "web-1", "on_offline": "queue"})).await;
    assert!(made.iter().all(|command| command["status"]["text"] == "Queued"));
    meanwhile(&cases, &people).await;
    // Nothing is checked, and nothing ends, before it could go out.
    let list = workspace.admin.get(&format!("{PATH}?page_size=100")).await.expect(200);
    assert!(
        list["results"].as_array().unwrap().iter().all(|item| item["status"]["text"] == "Queued"),
        "{list}"
    );
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    settle(&workspace, &mut agent, &cases, &made).await;
}

#[tokio::test]
async fn a_scheduled_commands_right_is_checked_at_its_time() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let cases = cases();
    let began = now();
    let people = people(&workspace, &cases).await;
    // Time enough for all that happens meanwhile, which is less than what was done so far.
    let scheduled_at = deadline_at_pace_since(began);
    let made =
        post_all(&cases, &people, &json!({"server": "web-1", "scheduled_at": scheduled_at})).await;
    assert!(made.iter().all(|command| command["status"]["text"] == "Scheduled"));
    meanwhile(&cases, &people).await;
    assert!(now() < scheduled_at, "this machine is too slow for the test");
    let its_time = || async { (now() >= scheduled_at).then_some(()) };
    eventually_within(Duration::from_secs(150), "its time", its_time).await;
    settle(&workspace, &mut agent, &cases, &made).await;
}

#[tokio::test]
async fn a_scheduled_command_whose_agent_was_away_is_checked_when_it_comes() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let cases: Vec<Case> = cases().into_iter().take(8).collect();
    let people = people(&workspace, &cases).await;
    // Later than the last of them is made, also on a slow machine.
    let scheduled_at = now().plus_seconds(10);
    let made =
        post_all(&cases, &people, &json!({"server": "web-1", "scheduled_at": scheduled_at})).await;
    wait_for_status(&workspace.admin, id_of(made.last().unwrap()), "Queued").await;
    // They may still be allowed when they are due; it counts when they go out.
    meanwhile(&cases, &people).await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    settle(&workspace, &mut agent, &cases, &made).await;
}

#[tokio::test]
async fn an_owner_keeps_their_server_but_not_what_is_for_staff() {
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
    is_cancelled(
        &workspace.admin,
        "internal",
        &internal,
        "its requester may not use the agent's built-in commands",
    )
    .await;
    assert!(agent.stays_silent().await);
}

#[tokio::test]
async fn a_list_that_grew_later_brings_nothing_back() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let person = Person::new(&workspace, "alice", &By::Token(json!({"commands": ["ls"]}))).await;
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
async fn a_command_that_is_not_allowed_any_more_ends_for_whoever_waits() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let person = Person::new(&workspace, "alice", &By::Token(Value::Null)).await;
    let body = json!({"server": "web-1", "line": "id", "on_offline": "queue"});
    let made = person.api.post(PATH, &body).await.expect(201);
    person.limit(json!({"commands": ["ls"]})).await;
    let waiting = format!("{}?wait=60", path_of(&made));
    let (told, agent) = futures_util::join!(workspace.admin.get(&waiting), async {
        let mut agent = ScriptedAgent::connect(&workspace, &server).await;
        assert!(agent.stays_silent().await);
        agent
    });
    assert_eq!(told.expect(200)["status"]["text"], "Cancelled", "who waits is told at once");
    // It is as good as any cancelled one: it can be cancelled again, and its stream ends.
    let again =
        workspace.admin.call("POST", &format!("{}cancel/", path_of(&made))).await.expect(200);
    assert_eq!(again, workspace.admin.get(&path_of(&made)).await.expect(200));
    let events = workspace.admin.get(&format!("{}stream/", path_of(&made))).await;
    assert!(events.text.contains("event: end"), "{}", events.text);
    drop(agent);
}

/// An order that is neither the one they were made in nor its reverse.
const SHUFFLED: [usize; 10] = [6, 2, 9, 0, 4, 7, 1, 8, 3, 5];

/// Posts ten commands in shuffled order and returns what comes out.
async fn fired(workspace: &Workspace, agent: &mut ScriptedAgent, at: impl Fn(usize) -> Timestamp) {
    let mut made = Vec::new();
    for number in SHUFFLED {
        let body = json!({"server": "web-1", "line": format!("echo {number}"), "scheduled_at": at(number)});
        made.push(workspace.admin.post(PATH, &body).await.expect(201));
    }
    made.sort_by_key(|command| (moment(command, "scheduled_at"), id_of(command).to_owned()));
    for command in &made {
        assert_eq!(agent.next_command().await["id"], command["id"]);
    }
    assert!(agent.stays_silent().await);
    for command in &made {
        let sent = workspace.admin.get(&path_of(command)).await.expect(200);
        assert_eq!(sent["status"]["text"], "Sent");
        assert!(
            moment(&sent, "delivered_at") >= moment(&sent, "scheduled_at"),
            "never before its time: {sent}"
        );
    }
}

#[tokio::test]
async fn due_commands_go_out_by_their_time_and_then_by_their_id() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let start = now().plus_seconds(10);
    fired(&workspace, &mut agent, |_| start).await;
    let start = now().plus_seconds(10);
    fired(&workspace, &mut agent, |number| start.plus_millis(150 * i64::try_from(number).unwrap()))
        .await;
    // Two at each of five moments.
    let start = now().plus_seconds(10);
    fired(&workspace, &mut agent, |number| start.plus_seconds(i64::try_from(number / 2).unwrap()))
        .await;
    // Less than the clock's own step apart.
    let start = now().plus_seconds(10).to_string();
    let micros = |number: usize| start.replace("000+00:00", &format!("00{number}+00:00"));
    fired(&workspace, &mut agent, |number| Timestamp::parse(&micros(number)).unwrap()).await;
}

#[tokio::test]
async fn what_gathered_while_the_agent_was_away_goes_out_in_order() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    // More than are looked at in one go, some at once and some for a time that is past when the
    // agent comes.
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
    eventually("the time to come", || async { (now() > soon).then_some(()) }).await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    made.sort_by_key(|command| (moment(command, "scheduled_at"), id_of(command).to_owned()));
    for command in &made {
        assert_eq!(agent.next_command().await["id"], command["id"]);
    }
    // What is posted now comes after them.
    let last =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "last"})).await.expect(201);
    assert_eq!(agent.next_command().await["id"], last["id"]);
    assert!(agent.stays_silent().await);
}

#[tokio::test]
async fn an_idle_instance_is_on_time() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
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
        let late = moment(&sent, "delivered_at").seconds_since(moment(&sent, "scheduled_at"));
        assert!(late >= 0.0, "{late} s late");
        least = least.min(late);
        agent.fin(id_of(&made), 0, "").await;
    }
    assert!(least < 2.0, "{least} s late");
}

#[tokio::test]
async fn a_list_that_cannot_be_read_holds_nobody_up() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let person = Person::new(&workspace, "alice", &By::Token(json!({"commands": ["id"]}))).await;
    let body = json!({"server": "web-1", "line": "id", "on_offline": "queue"});
    let made = person.api.post(PATH, &body).await.expect(201);
    let behind = workspace.admin.post(PATH, &body).await.expect(201);
    // As a later version might leave it behind.
    instance.d1(r#"UPDATE api_tokens SET acl = '{"commands":["id"],"hours":[9,17]}' WHERE name = 'waiting'"#);
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert_eq!(agent.next_command().await["id"], behind["id"]);
    is_cancelled(&workspace.admin, "unreadable", &made, ACL.unwrap()).await;
    assert!(agent.stays_silent().await);
}

#[tokio::test]
async fn the_farthest_times_are_in_nobodys_way() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut far = Vec::new();
    // With a latest delivery past what the platform's alarms take.
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

/// How many unfinished commands an agent has at most (agent-protocol 4.3, contract 7.4).
const WINDOW: usize = 200;

#[tokio::test]
async fn an_agent_has_no_more_than_it_has_room_for() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let person = Person::new(&workspace, "alice", &By::Token(Value::Null)).await;
    let body = json!({"server": "web-1", "line": "id"});
    let mut sent = Vec::new();
    for _ in 0..WINDOW {
        let made = person.api.post(PATH, &body).await.expect(201);
        assert_eq!(made["status"]["text"], "Sent");
        assert_eq!(agent.next_command().await["id"], made["id"]);
        // One has not answered yet. The others would be stuck in a minute, and this machine may be
        // slow.
        if sent.len() + 1 < WINDOW {
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
    // Acknowledging makes no room, nor does what was cancelled.
    agent.ack(&sent[WINDOW - 1]).await;
    assert!(agent.stays_silent().await);
    // An end makes room for the next one, and only for that.
    agent.fin(&sent[7], 0, "").await;
    assert_eq!(agent.next_command().await["id"], queue[1]["id"]);
    assert!(agent.stays_silent().await);
    // So does one that is repeated, but once.
    agent.fin(&sent[7], 0, "").await;
    assert!(agent.stays_silent().await);
    // What waited for room has its right checked like any other, and gives its place to the next
    // one.
    person.change_token(json!({"enabled": false})).await;
    agent.fin(&sent[8], 1, "").await;
    assert_eq!(agent.next_command().await["id"], queue[3]["id"]);
    is_cancelled(&workspace.admin, "behind the window", &queue[2], TOKEN.unwrap()).await;
    // A new connection of the agent's has no more room: its process goes on running what it had.
    let last = workspace.admin.post(PATH, &body).await.expect(201);
    assert_eq!(last["status"]["text"], "Queued");
    let mut again = ScriptedAgent::connect(&workspace, &server).await;
    assert!(again.stays_silent().await);
    again.fin(&sent[9], 0, "").await;
    assert_eq!(again.next_command().await["id"], last["id"]);
    assert!(again.stays_silent().await);
}
