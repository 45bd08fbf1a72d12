//! Rotation of `SECRET_KEY` and `OPERATOR_TOKEN` (`docs/authentication.md`). An instance is
//! restarted several times with other secrets. Credentials stay valid. Reset links and keyed hashes
//! depend on the secrets.

use farhand_domain::secret::{Purpose, Secret, credential_hash};
use farhand_tests::agents::{ScriptedAgent, credential, own_account};
use farhand_tests::client::{PASSWORD, unique};
use farhand_tests::commands::wait_until_ended_within;
use farhand_tests::mail::{key_of, mail_to};
use farhand_tests::people::{COMMANDS, SERVERS, item_path};
use farhand_tests::{Api, Instance, RealAgent, Reply, Workspace, eventually, secrets};
use serde_json::{Value, json};
use std::time::Duration;

const TOKENS: &str = "/api/auth/tokens/";
const REGISTRATION_TOKENS: &str = "/api/servers/registration-tokens/";

/// The secrets of an instance: key and operator token, each with its predecessor.
#[derive(Clone, Copy)]
struct InstanceSecrets<'a> {
    key: [&'a str; 2],
    operator: [&'a str; 2],
}

impl InstanceSecrets<'_> {
    /// The environment variables for these secrets.
    fn variables(&self) -> [(&'static str, &str); 4] {
        [
            ("SECRET_KEY", self.key[0]),
            ("SECRET_KEY_PREVIOUS", self.key[1]),
            ("OPERATOR_TOKEN", self.operator[0]),
            ("OPERATOR_TOKEN_PREVIOUS", self.operator[1]),
        ]
    }

    /// True if the operator API accepts a token.
    async fn accepts(instance: &Instance, token: &str) -> bool {
        let operator =
            Api::new(&instance.url, "127.0.0.1").with_authorization(&format!("Bearer {token}"));
        operator.get("/operator/workspaces/").await.status == 200
    }
}

/// Restarts an instance with other secrets on the same state and port.
async fn restart(instance: Instance, secrets: InstanceSecrets<'_>) -> Instance {
    let (port, state) = (instance.port(), instance.state.clone());
    instance.stop().await;
    // The log names files of mails, and the runtime deletes those when it ends.
    std::fs::rename(state.join("worker.log"), state.join(unique("worker.log"))).unwrap();
    Instance::restart_at(port, &state, &secrets.variables()).await
}

/// Creates a queued command with an `Idempotency-Key`. No agent ever connects to its server.
async fn queue_with_key(api: &Api, key: &str, line: &str) -> Reply {
    let body = json!({"server": "offline", "line": line, "on_offline": "queue"});
    api.send(api.request("POST", COMMANDS).header("Idempotency-Key", key).json(&body)).await
}

/// Time limit for the real agent to reconnect. Its delay grows with each short connection.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(180);

/// Waits until the real agent is connected, and runs a command on it.
async fn run_on_real_agent(workspace: &Workspace, server: &Value) {
    let body = json!({"server": server["id"], "line": "echo here", "username": own_account(), "on_offline": "queue"});
    let made = workspace.admin.post(COMMANDS, &body).await.expect(201);
    let done =
        wait_until_ended_within(RECONNECT_TIMEOUT, &workspace.admin, made["id"].as_str().unwrap())
            .await;
    assert_eq!(done["result"], "here\n", "{done}");
}

/// Asserts that one credential of each kind is accepted.
async fn assert_all_accepted(workspace: &Workspace, registration: &Api, agent: &Api) {
    for api in [&workspace.admin, &workspace.session()] {
        api.get("/api/status/").await.expect(200);
    }
    agent.patch("/api/servers/servers/-/status/", &json!({})).await.expect(204);
    let body = json!({"name": unique("host"), "platform": "debian"});
    registration.post("/api/servers/servers/register/", &body).await.expect(201);
}

#[tokio::test]
async fn credentials_survive_the_rotation_of_secrets() {
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
        secrets::record(kind, secret);
    }
    let before = InstanceSecrets { key: [&old, ""], operator: [&old_operator, ""] };
    let during = InstanceSecrets { key: [&new, &old], operator: [&new_operator, &old_operator] };
    let after = InstanceSecrets { key: [&new, ""], operator: [&new_operator, ""] };

    let (instance, _folder) = Instance::new_with(&before.variables()).await;
    let operator =
        Api::new(&instance.url, "127.0.0.1").with_authorization(&format!("Bearer {old_operator}"));
    let workspace = Workspace::create_with(&operator, &unique("t")).await;
    let made =
        workspace.admin.post(REGISTRATION_TOKENS, &json!({"name": "hosts"})).await.expect(201);
    let registration = workspace.anonymous.with_token(made["key"].as_str().unwrap());
    let (real, offline) = (workspace.server("real").await, workspace.server("offline").await);
    let agent = workspace.anonymous.with_authorization(&credential(&offline));
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
    queue_with_key(&workspace.admin, "one", "true").await.expect(201);
    run_on_real_agent(&workspace, &real).await;

    // Contract 4.2: D1 and the KV key hold the plain SHA-256 of the token.
    let hash = credential_hash(Purpose::Token, &Secret::new(&workspace.login_token));
    let entries = instance.kv_entries(&workspace.slug);
    assert!(
        entries.iter().any(|entry| entry["name"] == format!("{}/{hash}", workspace.slug)),
        "{entries:?}"
    );
    let rows =
        instance.d1(&format!("SELECT count(*) AS n FROM sessions WHERE token_hash = '{hash}'"));
    assert_eq!(rows[0]["n"], 1);

    // During the rotation, both secrets of each kind are accepted.
    let instance = restart(instance, during).await;
    for token in [&old_operator, &new_operator] {
        assert!(InstanceSecrets::accepts(&instance, token).await);
    }
    assert!(
        !InstanceSecrets::accepts(&instance, &unique("operator-of-another-service-than-this"))
            .await
    );
    assert_all_accepted(&workspace, &registration, &agent).await;
    run_on_real_agent(&workspace, &real).await;
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
    // Idempotency keys are stored as a hash under the current key, so keys from before the rotation
    // have no effect.
    for replayed in ["", "true"] {
        assert_eq!(
            queue_with_key(&workspace.admin, "one", "true").await.header("Idempotent-Replayed"),
            replayed
        );
    }

    // After the rotation, only the new secrets are accepted. Every credential still works.
    let instance = restart(instance, after).await;
    assert!(
        InstanceSecrets::accepts(&instance, &new_operator).await
            && !InstanceSecrets::accepts(&instance, &old_operator).await
    );
    assert_all_accepted(&workspace, &registration, &agent).await;
    workspace.anonymous.logged_in("boss", PASSWORD).await.get("/api/status/").await.expect(200);
    assert!(is_good(&new_link).await && !is_good(&late_link).await);
    workspace.admin.post(TOKENS, &json!({"name": "another", "expires_at": null})).await.expect(201);
    run_on_real_agent(&workspace, &real).await;
}

/// Creates a waiting command with an environment, for an agent that is not connected.
async fn queue_with_env(workspace: &Workspace, value: &str) -> Value {
    secrets::record("env", value);
    let body =
        json!({"server": "web-1", "line": "true", "env": {"VALUE": value}, "on_offline": "queue"});
    workspace.admin.post(COMMANDS, &body).await.expect(201)
}

#[tokio::test]
async fn a_waiting_environment_survives_a_rotation_encrypted() {
    let [old, new] =
        ["secret-key-before-the-rotation", "secret-key-after-the-rotation"].map(unique);
    let operator = unique("operator-of-a-waiting-environment");
    let before = InstanceSecrets { key: [&old, ""], operator: [&operator, ""] };
    let during = InstanceSecrets { key: [&new, &old], operator: [&operator, ""] };
    let lost = InstanceSecrets { key: [&old, ""], operator: [&operator, ""] };
    let (instance, _folder) = Instance::new_with(&before.variables()).await;
    let api =
        Api::new(&instance.url, "127.0.0.1").with_authorization(&format!("Bearer {operator}"));
    let workspace = Workspace::create_with(&api, &unique("t")).await;
    let server = workspace.server("web-1").await;
    let values =
        ["waits-under-the-old-key", "waits-under-the-new-key", "is-lost-with-its-key"].map(unique);
    let stored = |instance: &Instance| {
        let inputs =
            "SELECT document ->> 'inputs' FROM commands WHERE document ->> 'inputs' IS NOT NULL";
        instance.read_objects("ServerLink", inputs)
    };

    queue_with_env(&workspace, &values[0]).await;
    // Ciphertexts are random, so they can never contain a secret by chance when `leaks.rs` searches
    // them.
    let sealed = stored(&instance);
    assert!(
        sealed.len() == 1 && !sealed[0].contains("VALUE") && !sealed[0].contains(&values[0]),
        "{sealed:?}"
    );

    // During a rotation, waiting commands are decrypted with the previous key. New ones are
    // encrypted with the new key.
    let instance = restart(instance, during).await;
    queue_with_env(&workspace, &values[1]).await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    for value in &values[..2] {
        assert_eq!(agent.next_command().await["env"], json!({"VALUE": value}));
    }
    assert_eq!(
        stored(&instance),
        Vec::<String>::new(),
        "the stored environment is deleted on delivery"
    );
    drop(agent);
    let cancelled = queue_with_env_when_offline(&workspace, &server, &values[2]).await;
    let plain = json!({"server": "web-1", "line": "echo next", "on_offline": "queue"});
    let next = workspace.admin.post(COMMANDS, &plain).await.expect(201);

    // If neither secret contains the key any more, the command ends with an explanation. The
    // commands behind it are delivered.
    let instance = restart(instance, lost).await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert_eq!(agent.next_command().await["id"], next["id"]);
    let ended = workspace.admin.get(&item_path(COMMANDS, &cancelled)).await.expect(200);
    assert_eq!((&ended["status"]["text"], &ended["success"]), (&json!("Cancelled"), &json!(false)));
    let message = ended["status"]["message"].as_str().unwrap();
    assert!(message.contains("its environment or input cannot be decrypted"), "{message}");
    assert_eq!(stored(&instance), Vec::<String>::new());
}

/// Like [`queue_with_env`], after the service noticed that the agent is disconnected.
async fn queue_with_env_when_offline(workspace: &Workspace, server: &Value, value: &str) -> Value {
    eventually("the agent to be disconnected", || async {
        let server = workspace.admin.get(&item_path(SERVERS, server)).await.expect(200);
        (server["is_connected"] == false).then_some(())
    })
    .await;
    queue_with_env(workspace, value).await
}
