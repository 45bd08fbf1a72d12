//! Rotation of `SECRET_KEY` and `OPERATOR_TOKEN`, as `docs/authentication.md` describes it: an
//! instance is restarted several times with other secrets. Credentials do not depend on them; reset
//! links and keyed hashes do.

use farhand_domain::secret::{Purpose, Secret, credential_hash};
use farhand_tests::agents::{ScriptedAgent, credential, own_account};
use farhand_tests::client::{PASSWORD, unique};
use farhand_tests::commands::ended_within;
use farhand_tests::mail::{key_of, mail_to};
use farhand_tests::people::{COMMANDS, SERVERS, at};
use farhand_tests::{Api, Instance, RealAgent, Reply, Workspace, eventually, secrets};
use serde_json::{Value, json};
use std::time::Duration;

const TOKENS: &str = "/api/auth/tokens/";
const REGISTRATION_TOKENS: &str = "/api/servers/registration-tokens/";

/// The secrets of an instance: the key and the operator's token, each with the previous one.
#[derive(Clone, Copy)]
struct Secrets<'a> {
    key: [&'a str; 2],
    operator: [&'a str; 2],
}

impl Secrets<'_> {
    /// The variables of an instance with these.
    fn variables(&self) -> [(&'static str, &str); 4] {
        [
            ("SECRET_KEY", self.key[0]),
            ("SECRET_KEY_PREVIOUS", self.key[1]),
            ("OPERATOR_TOKEN", self.operator[0]),
            ("OPERATOR_TOKEN_PREVIOUS", self.operator[1]),
        ]
    }

    /// Whether the operator API accepts a token.
    async fn accepts(instance: &Instance, token: &str) -> bool {
        let operator = Api::new(&instance.url, "127.0.0.1").with(&format!("Bearer {token}"));
        operator.get("/operator/workspaces/").await.status == 200
    }
}

/// Restarts an instance on its state and port, with other secrets.
async fn restart(instance: Instance, secrets: Secrets<'_>) -> Instance {
    let (port, state) = (instance.port(), instance.state.clone());
    instance.stop().await;
    // The log names the files of mails, which end with the runtime.
    std::fs::rename(state.join("worker.log"), state.join(unique("worker.log"))).unwrap();
    Instance::restart_at(port, &state, &secrets.variables()).await
}

/// A command with an Idempotency-Key, which waits for an agent that never connects.
async fn keyed(api: &Api, key: &str, line: &str) -> Reply {
    let body = json!({"server": "offline", "line": line, "on_offline": "queue"});
    api.send(api.request("POST", COMMANDS).header("Idempotency-Key", key).json(&body)).await
}

/// How long the real agent may take to dial again: its delay grows while its connections are short.
const DIALS_WITHIN: Duration = Duration::from_secs(180);

/// Runs a command on the real agent, once it is connected again.
async fn run_for_real(workspace: &Workspace, server: &Value) {
    let body = json!({"server": server["id"], "line": "echo here", "username": own_account(), "on_offline": "queue"});
    let made = workspace.admin.post(COMMANDS, &body).await.expect(201);
    let done = ended_within(DIALS_WITHIN, &workspace.admin, made["id"].as_str().unwrap()).await;
    assert_eq!(done["result"], "here\n", "{done}");
}

/// Asserts that a credential of each kind is accepted.
async fn all_are_alive(workspace: &Workspace, registration: &Api, agent: &Api) {
    for api in [&workspace.admin, &workspace.session()] {
        api.get("/api/status/").await.expect(200);
    }
    agent.patch("/api/servers/servers/-/status/", &json!({})).await.expect(204);
    let body = json!({"name": unique("host"), "platform": "debian"});
    registration.post("/api/servers/servers/register/", &body).await.expect(201);
}

#[tokio::test]
async fn secrets_are_rotated_and_every_credential_goes_on() {
    let [old, new] =
        ["secret-key-before-the-rotation", "secret-key-after-the-rotation"].map(unique);
    let [old_operator, new_operator] =
        ["operator-before-the-rotation", "operator-after-the-rotation"].map(unique);
    for (kind, secret) in [
        ("SECRET_KEY", &old),
        ("SECRET_KEY", &new),
        ("OPERATOR_TOKEN", &old_operator),
        ("OPERATOR_TOKEN", &new_operator),
    ] {
        secrets::note(kind, secret);
    }
    let before = Secrets { key: [&old, ""], operator: [&old_operator, ""] };
    let during = Secrets { key: [&new, &old], operator: [&new_operator, &old_operator] };
    let after = Secrets { key: [&new, ""], operator: [&new_operator, ""] };

    let (instance, _folder) = Instance::new_with(&before.variables()).await;
    let operator = Api::new(&instance.url, "127.0.0.1").with(&format!("Bearer {old_operator}"));
    let workspace = Workspace::made_by(&operator, &unique("t")).await;
    let made =
        workspace.admin.post(REGISTRATION_TOKENS, &json!({"name": "hosts"})).await.expect(201);
    let registration = workspace.anonymous.with_token(made["key"].as_str().unwrap());
    let (real, offline) = (workspace.server("real").await, workspace.server("offline").await);
    let agent = workspace.anonymous.with(&credential(&offline));
    let _real_agent = RealAgent::start(&workspace, &real).await;
    for name in ["alice", "bob", "carol"] {
        workspace.user_with(name, &json!({})).await;
    }
    let log = instance.state.join("worker.log");
    let ask_reset = async |email: &str| {
        workspace.anonymous.post("/api/auth/reset-password/", &json!({"email": email})).await.status
    };
    let link = async |email: &str| {
        format!("/api/auth/reset-password/confirm/{}/", key_of(mail_to(&log, email).await.link()))
    };
    let is_good =
        async |link: &str| workspace.anonymous.get(link).await.header("Location").contains("?key=");
    for email in ["alice@example.com", "bob@example.com"] {
        assert_eq!(ask_reset(email).await, 200);
    }
    let (used_link, late_link) = (link("alice@example.com").await, link("bob@example.com").await);
    keyed(&workspace.admin, "one", "true").await.expect(201);
    run_for_real(&workspace, &real).await;

    // What is stored is the plain SHA-256 of contract 4.2, in D1 and as the key of KV alike.
    let hash = credential_hash(Purpose::Token, &Secret::new(&workspace.login_token));
    let entries = instance.kv_entries(&workspace.slug);
    assert!(
        entries.iter().any(|entry| entry["name"] == format!("{}/{hash}", workspace.slug)),
        "{entries:?}"
    );
    let rows =
        instance.d1(&format!("SELECT count(*) AS n FROM sessions WHERE token_hash = '{hash}'"));
    assert_eq!(rows[0]["n"], 1);

    // During the rotation both secrets of each kind are accepted.
    let instance = restart(instance, during).await;
    for token in [&old_operator, &new_operator] {
        assert!(Secrets::accepts(&instance, token).await);
    }
    assert!(!Secrets::accepts(&instance, &unique("operator-of-another-service-than-this")).await);
    all_are_alive(&workspace, &registration, &agent).await;
    run_for_real(&workspace, &real).await;
    assert_eq!(ask_reset("carol@example.com").await, 200);
    let new_link = link("carol@example.com").await;
    for link in [&used_link, &late_link, &new_link] {
        assert!(is_good(link).await);
    }
    workspace
        .anonymous
        .post(&used_link, &json!({"new_password": "an entirely other one"}))
        .await
        .expect(200);
    // Idempotency keys are remembered by a hash under the current key: those from before the
    // rotation are forgotten.
    for replayed in ["", "true"] {
        assert_eq!(
            keyed(&workspace.admin, "one", "true").await.header("Idempotent-Replayed"),
            replayed
        );
    }

    // After it only the new ones are, and no credential was lost.
    let instance = restart(instance, after).await;
    assert!(
        Secrets::accepts(&instance, &new_operator).await
            && !Secrets::accepts(&instance, &old_operator).await
    );
    all_are_alive(&workspace, &registration, &agent).await;
    workspace.anonymous.logged_in("boss", PASSWORD).await.get("/api/status/").await.expect(200);
    assert!(is_good(&new_link).await && !is_good(&late_link).await);
    workspace.admin.post(TOKENS, &json!({"name": "another", "expires_at": null})).await.expect(201);
    run_for_real(&workspace, &real).await;
}

/// A command with an environment, which waits for an agent that is not connected.
async fn with_env(workspace: &Workspace, value: &str) -> Value {
    secrets::note("env", value);
    let body =
        json!({"server": "web-1", "line": "true", "env": {"VALUE": value}, "on_offline": "queue"});
    workspace.admin.post(COMMANDS, &body).await.expect(201)
}

#[tokio::test]
async fn a_waiting_environment_is_encrypted_and_outlives_a_rotation() {
    let [old, new] =
        ["secret-key-before-the-rotation", "secret-key-after-the-rotation"].map(unique);
    let operator = unique("operator-of-a-waiting-environment");
    let before = Secrets { key: [&old, ""], operator: [&operator, ""] };
    let during = Secrets { key: [&new, &old], operator: [&operator, ""] };
    let lost = Secrets { key: [&old, ""], operator: [&operator, ""] };
    let (instance, _folder) = Instance::new_with(&before.variables()).await;
    let api = Api::new(&instance.url, "127.0.0.1").with(&format!("Bearer {operator}"));
    let workspace = Workspace::made_by(&api, &unique("t")).await;
    let server = workspace.server("web-1").await;
    let values =
        ["waits-under-the-old-key", "waits-under-the-new-key", "is-lost-with-its-key"].map(unique);
    let stored = |instance: &Instance| {
        let inputs =
            "SELECT document ->> 'inputs' FROM commands WHERE document ->> 'inputs' IS NOT NULL";
        instance.read_objects("ServerLink", inputs)
    };

    with_env(&workspace, &values[0]).await;
    // Encrypted texts are random, so that leaks.rs, which searches all files, cannot find a value
    // in them by chance.
    let sealed = stored(&instance);
    assert!(
        sealed.len() == 1 && !sealed[0].contains("VALUE") && !sealed[0].contains(&values[0]),
        "{sealed:?}"
    );

    // During a rotation what waits is decrypted under the previous key, and what is new encrypted
    // under the new one.
    let instance = restart(instance, during).await;
    with_env(&workspace, &values[1]).await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    for value in &values[..2] {
        assert_eq!(agent.next_command().await["env"], json!({"VALUE": value}));
    }
    assert_eq!(stored(&instance), Vec::<String>::new(), "deleted when delivered");
    drop(agent);
    let cancelled = with_env_offline(&workspace, &server, &values[2]).await;
    let plain = json!({"server": "web-1", "line": "echo next", "on_offline": "queue"});
    let next = workspace.admin.post(COMMANDS, &plain).await.expect(201);

    // A key that no secret holds any more: the command says so and ends, and those behind it are
    // delivered.
    let instance = restart(instance, lost).await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert_eq!(agent.next_command().await["id"], next["id"]);
    let ended = workspace.admin.get(&at(COMMANDS, &cancelled)).await.expect(200);
    assert_eq!((&ended["status"]["text"], &ended["success"]), (&json!("Cancelled"), &json!(false)));
    let message = ended["status"]["message"].as_str().unwrap();
    assert!(message.contains("its environment or input cannot be decrypted"), "{message}");
    assert_eq!(stored(&instance), Vec::<String>::new());
}

/// The same once the agent is seen to be gone.
async fn with_env_offline(workspace: &Workspace, server: &Value, value: &str) -> Value {
    eventually("the agent to be gone", || async {
        let server = workspace.admin.get(&at(SERVERS, server)).await.expect(200);
        (server["is_connected"] == false).then_some(())
    })
    .await;
    with_env(workspace, value).await
}
