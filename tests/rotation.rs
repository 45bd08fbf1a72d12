//! Rotation of `TOKEN_PEPPER` and `OPERATOR_TOKEN`, as `docs/authentication.md` has it: an instance is started again and again
//! with other secrets, and everybody's credentials go on working, or stop.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use farhand_domain::secret::{Pepper, Purpose, Secret};
use farhand_tests::agents::{credential, dial, own_account};
use farhand_tests::client::{PASSWORD, unique};
use farhand_tests::instance::change_d1;
use farhand_tests::mail::{key_of, mail_to};
use farhand_tests::people::{COMMANDS, SERVERS, at};
use farhand_tests::{
    Api, Instance, RealAgent, Reply, ScriptedAgent, Workspace, eventually, eventually_within, now, secrets,
};
use futures_util::future;
use serde_json::{Value, json};

const TOKENS: &str = "/api/auth/tokens/";
const REGISTRATION_TOKENS: &str = "/api/servers/registration-tokens/";

/// The secrets of an instance: the pepper and the operator's token, each with the one before.
#[derive(Clone, Copy)]
struct Secrets<'a> {
    pepper: [&'a str; 2],
    operator: [&'a str; 2],
}

impl Secrets<'_> {
    /// The variables of an instance with these.
    fn variables(&self) -> [(&'static str, &str); 4] {
        [
            ("TOKEN_PEPPER", self.pepper[0]),
            ("TOKEN_PEPPER_PREVIOUS", self.pepper[1]),
            ("OPERATOR_TOKEN", self.operator[0]),
            ("OPERATOR_TOKEN_PREVIOUS", self.operator[1]),
        ]
    }

    /// Whether the operator API takes a token.
    async fn take(instance: &Instance, token: &str) -> bool {
        let operator = Api::new(&instance.url, "127.0.0.1").with(&format!("Bearer {token}"));
        operator.get("/operator/workspaces/").await.status == 200
    }
}

/// Starts an instance anew where it was, with other secrets. For all that was stored a day has passed.
async fn restart(instance: Instance, secrets: Secrets<'_>) -> Instance {
    let (port, state) = (instance.port(), instance.state.clone());
    instance.stop().await;
    // It names the files of mails, which do not outlive the runtime.
    std::fs::rename(state.join("worker.log"), state.join(unique("worker.log"))).unwrap();
    let then = now().plus_seconds(-24 * 3600).to_string();
    let age = |table: &str, noted: &str| {
        format!("UPDATE {table} SET added_at = '{then}', {noted} = iif({noted} IS NULL, NULL, '{then}');")
    };
    let tables = [
        ("sessions", "refreshed_at"),
        ("api_tokens", "last_used_at"),
        ("registration_tokens", "key_hashed_at"),
        ("servers", "key_hashed_at"),
    ];
    change_d1(&state, &tables.map(|(table, noted)| age(table, noted)).concat());
    Instance::restart_at(port, &state, &secrets.variables()).await
}

/// Since when what is used counts as converted: by the documentation, most of it from a quarter of an hour after that.
fn since() -> String {
    now().plus_seconds(-15 * 60).to_string()
}

/// The statement by which the documentation counts what is not converted yet.
fn documented_count(since: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/authentication.md");
    let text = std::fs::read_to_string(file).unwrap();
    let (_, rest) = text.split_once("~~~sql\n").expect("the documentation has the statement");
    let (sql, _) = rest.split_once("~~~").unwrap();
    assert!(sql.contains("$since"));
    sql.replace("$since", since)
}

/// Waits until so many sessions, API tokens, registration tokens and servers are not converted.
async fn until_waiting(instance: &Instance, since: &str, expected: [u64; 4]) {
    let sql = documented_count(since);
    eventually("the credentials to be converted", || async {
        let rows = instance.d1(&sql).await;
        let counts: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["waiting"].as_u64().unwrap()).collect();
        let kinds: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["sessions", "API tokens", "registration tokens", "servers"]);
        (counts == expected).then_some(())
    })
    .await;
}

/// A new API token of the superuser's, with its name.
async fn api_token(workspace: &Workspace, name: &str) -> Api {
    let body = json!({"name": name, "expires_at": null});
    let made = workspace.session().post(TOKENS, &body).await.expect(201);
    workspace.anonymous.with_token(made["key"].as_str().unwrap())
}

/// A new registration token.
async fn registration_token(workspace: &Workspace, name: &str) -> Api {
    let made = workspace.admin.post(REGISTRATION_TOKENS, &json!({"name": name})).await.expect(201);
    workspace.anonymous.with_token(made["key"].as_str().unwrap())
}

/// Registers a server.
async fn register(token: &Api) -> Value {
    let body = json!({"name": unique("host"), "platform": "debian"});
    token.post("/api/servers/servers/register/", &body).await.expect(201)
}

/// The token of a client.
fn token_of(api: &Api) -> &str {
    api.authorization.as_deref().unwrap().split('"').nth(1).unwrap()
}

/// Asserts that a user's credential is alive, or is refused like any that nobody ever had.
async fn is_alive(api: &Api, alive: bool) {
    let reply = api.get("/api/status/").await;
    if alive {
        reply.expect(200);
    } else {
        reply.expect_detail(403, Some("INVALID_TOKEN"));
    }
}

/// The same of an agent's.
async fn is_agent(api: &Api, alive: bool) {
    let reply = api.patch("/api/servers/servers/-/status/", &json!({})).await;
    if alive {
        reply.expect(204);
    } else {
        reply.expect_detail(403, Some("INVALID_TOKEN"));
    }
}

/// A command with an Idempotency-Key, which waits for an agent that never comes.
async fn keyed(api: &Api, key: &str, line: &str) -> Reply {
    let body = json!({"server": "offline", "line": line, "on_offline": "queue"});
    api.send(api.request("POST", COMMANDS).header("Idempotency-Key", key).json(&body)).await
}

/// How long the real agent may take to dial again: longer each time, where its connections were short.
const DIALS_WITHIN: Duration = Duration::from_secs(180);

/// Runs a command on the real agent, once it is there again.
async fn run_for_real(workspace: &Workspace, server: &Value) {
    let body = json!({"server": server["id"], "line": "echo here", "username": own_account(), "on_offline": "queue"});
    let made = workspace.admin.post(COMMANDS, &body).await.expect(201);
    let path = format!("{}?wait=10", at(COMMANDS, &made));
    let done = eventually_within(DIALS_WITHIN, "the agent", || async {
        let command = workspace.admin.get(&path).await.expect(200);
        command["handled_at"].is_string().then_some(command)
    })
    .await;
    assert_eq!(done["result"], "here\n", "{done}");
}

#[tokio::test]
async fn secrets_are_rotated_under_everybodys_feet() {
    let [old, new] = [unique("pepper-of-before"), unique("pepper-from-now-on")];
    let [old_operator, new_operator] = [unique("operator-of-before"), unique("operator-from-now-on")];
    for (kind, secret) in [
        ("TOKEN_PEPPER", &old),
        ("TOKEN_PEPPER", &new),
        ("OPERATOR_TOKEN", &old_operator),
        ("OPERATOR_TOKEN", &new_operator),
    ] {
        secrets::note(kind, secret);
    }
    let before = Secrets { pepper: [&old, ""], operator: [&old_operator, ""] };
    let announced = Secrets { pepper: [&old, &new], operator: [&old_operator, &new_operator] };
    let during = Secrets { pepper: [&new, &old], operator: [&new_operator, &old_operator] };
    let after = Secrets { pepper: [&new, ""], operator: [&new_operator, ""] };

    // Before: a credential of each kind that will be used while both peppers are good, and one that will not.
    let (instance, folder) = Instance::new_with(&before.variables()).await;
    let operator = Api::new(&instance.url, "127.0.0.1").with(&format!("Bearer {old_operator}"));
    let workspace = Workspace::made_by(&operator, &unique("t")).await;
    let logged_in = async || workspace.anonymous.logged_in("boss", PASSWORD).await;
    let (idle_session, late_session) = (logged_in().await, logged_in().await);
    let (idle_token, used_token) = (api_token(&workspace, "idle").await, api_token(&workspace, "used").await);
    let (idle_hosts, used_hosts) =
        (registration_token(&workspace, "idle").await, registration_token(&workspace, "used").await);
    let real = workspace.server("real").await;
    let _real_agent = RealAgent::start(&workspace, &real).await;
    let (scripted, offline) = (workspace.server("scripted").await, workspace.server("offline").await);
    let (rekeyed, crashed) = (workspace.server("rekeyed").await, workspace.server("crashed").await);
    let agent = |server: &Value| workspace.anonymous.with(&credential(server));
    workspace.user_with("alice", &json!({})).await;
    workspace.user_with("bob", &json!({})).await;
    let log = instance.state.join("worker.log");
    let ask_reset = async |email: &str| {
        workspace.anonymous.post("/api/auth/reset-password/", &json!({"email": email})).await.status
    };
    for email in ["alice@example.com", "bob@example.com", "nobody@example.com", "nobody@example.com"] {
        assert_eq!(ask_reset(email).await, 200);
    }
    let link =
        async |email: &str| format!("/api/auth/reset-password/confirm/{}/", key_of(mail_to(&log, email).await.link()));
    let (used_link, late_link) = (link("alice@example.com").await, link("bob@example.com").await);
    let first = keyed(&workspace.admin, "one", "true").await.expect(201);
    run_for_real(&workspace, &real).await;

    // Both are accepted before either is used: no place has what another one does not know yet.
    let instance = restart(instance, announced).await;
    for token in [&old_operator, &new_operator] {
        assert!(Secrets::take(&instance, token).await);
    }
    is_alive(&workspace.admin, true).await;
    is_alive(&workspace.session(), true).await;
    is_agent(&agent(&scripted), true).await;

    // During: all that is used works, also many times at once, and is converted.
    let rotated = since();
    let instance = restart(instance, during).await;
    for token in [&old_operator, &new_operator] {
        assert!(Secrets::take(&instance, token).await);
    }
    assert!(!Secrets::take(&instance, "operator-of-nobody").await);
    let kv = instance.kv_entries(&workspace.slug).await;
    let name_of = |pepper: &str, token: &str| {
        let hash = Pepper::new(pepper.as_bytes()).hash(Purpose::Token, &Secret::new(token));
        json!(format!("{}/{hash}", workspace.slug))
    };
    let (old_entry, new_entry) = (name_of(&old, &workspace.login_token), name_of(&new, &workspace.login_token));
    let has = |kv: &[Value], name: &Value| kv.iter().any(|entry| entry["name"] == *name);
    assert!(has(&kv, &old_entry) && !has(&kv, &new_entry), "{kv:?}");
    let session = workspace.session();
    let at_once: Vec<&Api> = [&workspace.admin, &session, &used_token].into_iter().cycle().take(24).collect();
    future::join_all(at_once.into_iter().map(|api| is_alive(api, true))).await;
    let mut connected = ScriptedAgent::connect(&workspace, &scripted).await;
    for server in [&rekeyed, &scripted] {
        is_agent(&agent(server), true).await;
    }
    let host = register(&used_hosts).await;
    run_for_real(&workspace, &real).await;
    // Not used: two of five sessions and tokens, one registration token, and the servers `offline` and `crashed`.
    until_waiting(&instance, &rotated, [2, 1, 1, 2]).await;
    eventually("the login token in KV", || async {
        let kv = instance.kv_entries(&workspace.slug).await;
        (has(&kv, &new_entry) && !has(&kv, &old_entry)).then_some(())
    })
    .await;
    // A conversion ends no connection.
    workspace.admin.post(COMMANDS, &json!({"server": "scripted", "line": "true"})).await.expect(201);
    assert_eq!(connected.next_command().await["line"], "true");
    // Another key is another key, whichever hash the first one had.
    let path = format!("{}rotate-key/", at(SERVERS, &rekeyed));
    let again = workspace.admin.call("POST", &path).await.expect(200);
    is_agent(&agent(&rekeyed), false).await;
    is_agent(&agent(&again), true).await;
    // What was asked before is known: the same request has its first answer, another one is refused.
    for key in ["one", "two"] {
        let reply = keyed(&workspace.admin, key, "true").await;
        assert_eq!(reply.header("Idempotent-Replayed"), if key == "one" { "true" } else { "" });
        assert_eq!(reply.expect(201)["id"] == first["id"], key == "one");
        keyed(&workspace.admin, key, "false").await.expect_detail(422, Some("IDEMPOTENCY_KEY_REUSED"));
    }
    // Of an address 5 resets are pending, under whichever pepper they were counted; a link is good that was sent before.
    for status in [200, 200, 200, 403] {
        assert_eq!(ask_reset("nobody@example.com").await, status);
    }
    assert_eq!(ask_reset("bob@example.com").await, 200);
    let new_link = link("bob@example.com").await;
    let is_good = async |link: &str| {
        let reply = workspace.anonymous.get(link).await;
        reply.header("Location").contains("?key=")
    };
    for link in [&used_link, &late_link, &new_link] {
        assert!(is_good(link).await);
    }
    workspace.anonymous.post(&used_link, &json!({"new_password": "an entirely other one"})).await.expect(200);

    // Back: what was converted and what was not are as good as before, and so is what was made in between.
    let instance = restart(instance, announced).await;
    for api in [&workspace.admin, &session] {
        is_alive(api, true).await;
    }
    for server in [&scripted, &again, &host] {
        is_agent(&agent(server), true).await;
    }
    for key in ["one", "two"] {
        assert_eq!(keyed(&workspace.admin, key, "true").await.header("Idempotent-Replayed"), "true");
    }
    assert!(is_good(&new_link).await);

    // And forth once more. What an object has converted is converted, though all dies before D1 hears of it.
    let instance = restart(instance, during).await;
    let locked = instance.lock_d1().await;
    is_agent(&agent(&crashed), true).await;
    let port = instance.port();
    instance.kill().await;
    drop(locked);
    let instance = Instance::restart_at(port, folder.path(), &during.variables()).await;
    for api in [&workspace.admin, &session, &used_token] {
        is_alive(api, true).await;
    }
    for server in [&scripted, &again, &host] {
        is_agent(&agent(server), true).await;
    }
    register(&used_hosts).await;
    run_for_real(&workspace, &real).await;
    let third = keyed(&workspace.admin, "three", "true").await.expect(201);
    // What was converted before the way back, and not used on it, was converted then: so here the hashes are looked at.
    let of = |purpose, secret: &str| Pepper::new(new.as_bytes()).hash(purpose, &Secret::new(secret));
    let tokens = [&workspace.admin, &session, &used_token].map(|api| of(Purpose::Token, token_of(api)));
    let keys = [&real, &scripted, &again, &crashed, &host].map(|it| of(Purpose::AgentKey, it["key"].as_str().unwrap()));
    let registration = of(Purpose::RegistrationToken, token_of(&used_hosts));
    let expected: Vec<String> = tokens.into_iter().chain(keys).chain([registration]).collect();
    eventually("the credentials to be converted", || async {
        let sql = "SELECT token_hash AS hash FROM sessions UNION ALL SELECT key_hash FROM api_tokens
            UNION ALL SELECT key_hash FROM registration_tokens UNION ALL SELECT agent_key_hash FROM servers";
        let rows = instance.d1(sql).await;
        let stored: HashSet<&str> = rows.as_array().unwrap().iter().filter_map(|row| row["hash"].as_str()).collect();
        expected.iter().all(|hash| stored.contains(hash.as_str())).then_some(())
    })
    .await;

    // After: what is converted works, and the rest is refused like what nobody ever had.
    let instance = restart(instance, after).await;
    assert!(Secrets::take(&instance, &new_operator).await && !Secrets::take(&instance, &old_operator).await);
    for api in [&workspace.admin, &session, &used_token] {
        is_alive(api, true).await;
    }
    for api in [&idle_session, &late_session, &idle_token] {
        is_alive(api, false).await;
    }
    for server in [&scripted, &again, &host, &crashed] {
        is_agent(&agent(server), true).await;
    }
    is_agent(&agent(&offline), false).await;
    assert_eq!(dial(&agent(&offline), "/ws/servers/backhaul/").await.err(), Some(403));
    register(&used_hosts).await;
    let body = json!({"name": "host", "platform": "debian"});
    idle_hosts.post("/api/servers/servers/register/", &body).await.expect_detail(403, Some("INVALID_TOKEN"));
    assert!(is_good(&new_link).await && !is_good(&late_link).await);
    let again = keyed(&workspace.admin, "three", "true").await;
    assert_eq!(again.header("Idempotent-Replayed"), "true");
    assert_eq!(again.expect(201)["id"], third["id"]);
    // Nobody knows any more that this one was used.
    assert_eq!(keyed(&workspace.admin, "one", "true").await.header("Idempotent-Replayed"), "");
    run_for_real(&workspace, &real).await;
}
