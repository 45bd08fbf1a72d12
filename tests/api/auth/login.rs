//! `/api/auth/login/` (contract 4.4).

use farhand_domain::time::Timestamp;
use farhand_tests::client::{PASSWORD, unique};
use farhand_tests::{Api, Instance, Workspace, eventually};
use reqwest::multipart::Form;
use serde_json::{Value, json};

const PATH: &str = "/api/auth/login/";
const LIFETIME: f64 = 14.0 * 24.0 * 3600.0;

/// Logs in, and asserts that the token in the response is valid for 14 days.
async fn assert_login(workspace: &Workspace, body: &Value) {
    let token = body["token"].as_str().unwrap();
    assert!(token.len() == 128 && token.bytes().all(|b| b.is_ascii_alphanumeric()), "{token}");
    assert_eq!(body.as_object().unwrap().len(), 2, "{body}");
    let expires_at = Timestamp::parse(body["expires_at"].as_str().unwrap()).unwrap();
    let me = workspace.anonymous.with_token(token).get("/api/iam/users/-/").await.expect(200);
    assert_eq!(me["username"], "boss");
    let logged_in = Timestamp::parse(me["last_login"].as_str().unwrap()).unwrap();
    assert_eq!(expires_at.seconds_since(logged_in), LIFETIME, "valid for 14 days");
}

#[tokio::test]
async fn login_accepts_json_and_both_kinds_of_form() {
    let workspace = Workspace::new().await;
    let api = &workspace.anonymous;
    let fields = [("username", "boss"), ("password", PASSWORD)];
    let mut tokens = Vec::new();
    for form in ["json", "urlencoded", "multipart"] {
        let request = api.request("POST", PATH);
        let request = match form {
            "json" => request.json(&json!({"username": "boss", "password": PASSWORD})),
            "urlencoded" => request.form(&fields),
            _ => request.multipart(
                fields.into_iter().fold(Form::new(), |form, (name, value)| form.text(name, value)),
            ),
        };
        let body = api.send(request).await.expect(200);
        assert_login(&workspace, &body).await;
        tokens.push(body["token"].to_string());
    }
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 3, "each login has its own token");
    // User names are not case-sensitive.
    let upper =
        api.post(PATH, &json!({"username": "BOSS", "password": PASSWORD})).await.expect(200);
    assert_login(&workspace, &upper).await;
}

#[tokio::test]
async fn a_login_token_lives_in_kv_and_in_d1_as_a_session() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let session = workspace.session();
    let entries = instance.kv_entries(&workspace.slug);
    assert_eq!(entries.len(), 1, "an API token has no entry: {entries:?}");
    let name = entries[0]["name"].as_str().unwrap();
    let hash = name.split('/').nth(1).unwrap();
    assert!(hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()), "{name}");
    let rows = instance.d1(&format!(
        "SELECT expires_at, user_agent, remote_ip FROM sessions WHERE token_hash = '{hash}'"
    ));
    let expires_at = Timestamp::parse(rows[0]["expires_at"].as_str().unwrap()).unwrap();
    assert_eq!(rows[0]["remote_ip"], "127.0.0.1");
    // The expiry in KV may be later, because KV uses it only to delete the entry.
    let slack = entries[0]["expiration"].as_f64().unwrap() - expires_at.as_millis() as f64 / 1000.0;
    assert!((60.0..=24.0 * 3600.0).contains(&slack), "{slack}");

    // D1 decides: without its KV entry, the token is still valid. An isolate that has not seen the
    // entry within ten minutes writes it again.
    instance.kv_delete(name);
    assert!(instance.kv_entries(&workspace.slug).is_empty());
    session.get("/api/status/").await.expect(200);
    let port = instance.port();
    instance.stop().await;
    let instance = Instance::restart_at(port, state.path(), &[]).await;
    session.get("/api/status/").await.expect(200);
    eventually("the entry's repair", || async {
        (instance.kv_entries(&workspace.slug) == entries).then_some(())
    })
    .await;

    session.call("POST", "/api/auth/logout/").await.expect(200);
    let left = instance.d1(&format!("SELECT id FROM sessions WHERE token_hash = '{hash}'"));
    assert_eq!(left, json!([]));
    eventually("the entry to be deleted", || async {
        instance.kv_entries(&workspace.slug).is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_isolate_caches_kv_entries_but_d1_decides() {
    let (instance, _state) = Instance::new().await;
    let (workspace, other) = (
        Workspace::create_with(&instance.operator(), "acme").await,
        Workspace::create_with(&instance.operator(), "other").await,
    );
    let body = json!({"username": "boss", "password": PASSWORD});
    let token = workspace.anonymous.post(PATH, &body).await.expect(200)["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let session = workspace.anonymous.with_token(&token);
    let reads = async |api: &Api, status: u16| {
        let id = unique("kv");
        let reply = api.send(api.request("GET", "/api/status/").header("X-Request-Id", &id)).await;
        assert_eq!(reply.status, status, "{}", reply.text);
        instance.request_log_line(&id).await["kv_reads"].as_u64().unwrap()
    };
    assert_eq!(reads(&session, 200).await, 1);
    assert_eq!(reads(&session, 200).await, 0);
    // The cache of an isolate is per workspace.
    let elsewhere = other.anonymous.with_token(&token);
    assert_eq!(reads(&elsewhere, 403).await, 1);
    assert_eq!(reads(&session, 200).await, 0);
    // Simulates another isolate that moved the expiry. This isolate reads the entry again, and
    // caches the new expiry.
    let entries = instance.kv_entries(&workspace.slug);
    instance.d1("UPDATE sessions SET expires_at = strftime('%Y-%m-%dT%H:%M:%f000+00:00', expires_at, '+1 seconds')");
    assert_eq!(reads(&session, 200).await, 0);
    assert_eq!(reads(&session, 200).await, 1);
    eventually("the entry's repair", || async {
        (instance.kv_entries(&workspace.slug) != entries).then_some(())
    })
    .await;
    eventually("the isolate to remember the repaired entry", || async {
        (reads(&session, 200).await == 0).then_some(())
    })
    .await;
    // A lost entry is written again when the expiry moves.
    let [entry] = <[Value; 1]>::try_from(
        instance
            .kv_entries(&workspace.slug)
            .into_iter()
            .filter(|entry| !entries.contains(entry))
            .collect::<Vec<_>>(),
    )
    .unwrap();
    instance.kv_delete(entry["name"].as_str().unwrap());
    assert_eq!(reads(&session, 200).await, 0);
    instance
        .d1("UPDATE sessions SET refreshed_at = strftime('%Y-%m-%dT%H:%M:%f000+00:00', refreshed_at, '-601 seconds')");
    assert_eq!(reads(&session, 200).await, 0);
    let count = entries.len();
    eventually("the entry", || async {
        (instance.kv_entries(&workspace.slug).len() == count).then_some(())
    })
    .await;
    eventually("the isolate to remember the entry", || async {
        (reads(&session, 200).await == 0).then_some(())
    })
    .await;
    // D1 alone decides. Although the entry is in KV and in the cache, the deleted session is
    // refused at the next request.
    instance.d1("DELETE FROM sessions");
    assert_eq!(reads(&session, 403).await, 0);
    eventually("the entry to be deleted", || async {
        (instance.kv_entries(&workspace.slug).len() < count).then_some(())
    })
    .await;
    assert_eq!(reads(&session, 403).await, 1);
}

#[tokio::test]
async fn a_session_expires_14_days_after_its_last_use() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let session = workspace.session();
    // Ages the stored session by some seconds: its last refresh and its expiry.
    let age = async |seconds: u32| {
        let aged = |column: &str| {
            format!(
                "{column} = strftime('%Y-%m-%dT%H:%M:%f000+00:00', {column}, '-{seconds} seconds')"
            )
        };
        instance.d1(&format!(
            "UPDATE sessions SET {}, {}",
            aged("expires_at"),
            aged("refreshed_at")
        ));
    };
    let expires_at =
        async || instance.d1("SELECT expires_at FROM sessions")[0]["expires_at"].clone();
    let before = expires_at().await;
    session.get("/api/status/").await.expect(200);
    assert_eq!(expires_at().await, before, "the expiry moves at most every ten minutes");
    age(601).await;
    let aged = expires_at().await;
    assert_ne!(aged, before);
    session.get("/api/status/").await.expect(200);
    eventually("the expiry to move", || async {
        (expires_at().await.as_str() > aged.as_str()).then_some(())
    })
    .await;
    // KV gets the same expiry.
    let expiry =
        Timestamp::parse(expires_at().await.as_str().unwrap()).unwrap().as_millis() as f64 / 1000.0;
    eventually("KV to have the new expiry", || async {
        let kept = instance.kv_entries(&workspace.slug)[0]["expiration"].as_f64().unwrap();
        (kept > expiry).then_some(())
    })
    .await;
    // The session is valid just before its expiry, and invalid 14 days and ten minutes after its
    // last use. This ages stored values, which takes some seconds. Tests in
    // `farhand_domain::people::session` check the rule to the microsecond.
    age(14 * 24 * 3600 + 60).await;
    session.get("/api/status/").await.expect(200);
    eventually("the expiry to move", || async {
        (expires_at().await.as_str() > aged.as_str()).then_some(())
    })
    .await;
    age(14 * 24 * 3600 + 600).await;
    session.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    session.get("/api/iam/users/-/").await.expect_detail(403, Some("INVALID_TOKEN"));
    assert_eq!(
        session.get("/api/auth/is-authenticated/").await.expect(200),
        json!({"authenticated": false}),
        "a refused request does not renew the session"
    );
}

#[tokio::test]
async fn a_login_upgrades_a_hash_with_too_few_rounds() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let stored = async |instance: &Instance| {
        instance.d1("SELECT password FROM users")[0]["password"].clone()
    };
    let before = stored(&instance).await;
    assert!(before.as_str().unwrap().starts_with("$pbkdf2-sha256$i=100000,l=32$"), "{before}");
    workspace.anonymous.log_in("boss", PASSWORD).await.expect(200);
    assert_eq!(stored(&instance).await, before, "the hash has the configured number of rounds");
    instance.stop().await;
    let instance = Instance::restart_with(state.path(), &[("PBKDF2_ITERATIONS", "150000")]).await;
    let api = workspace.anonymous.with_url(&instance.url);
    api.log_in("boss", "not the right one").await.expect_fields(403, &["non_field_errors"]);
    assert_eq!(stored(&instance).await, before, "a failed login does not change the hash");
    api.log_in("boss", PASSWORD).await.expect(200);
    let after = stored(&instance).await;
    assert!(after.as_str().unwrap().starts_with("$pbkdf2-sha256$i=150000,l=32$"), "{after}");
    // This is not a change of password, so earlier sessions stay valid.
    workspace.session().with_url(&instance.url).get("/api/status/").await.expect(200);
    api.log_in("boss", PASSWORD).await.expect(200);
    assert_eq!(stored(&instance).await, after);
}

#[tokio::test]
async fn login_ignores_the_authorization_header() {
    let workspace = Workspace::new().await;
    let login = json!({"username": "boss", "password": PASSWORD});
    for header in ["nonsense", "token=\"unknown\""] {
        workspace.anonymous.with_authorization(header).post(PATH, &login).await.expect(200);
    }
}

#[tokio::test]
async fn wrong_credentials_all_get_the_same_403() {
    let workspace = Workspace::new().await;
    let mut texts = Vec::new();
    for (username, password) in [
        ("boss", "wrong"),
        ("nobody-here", PASSWORD),
        ("boss", "correct horse batterY"),
        ("boss' --", PASSWORD),
    ] {
        let reply = workspace
            .anonymous
            .post(PATH, &json!({"username": username, "password": password}))
            .await;
        reply.expect_fields(403, &["non_field_errors"]);
        texts.push(reply.text);
    }
    texts.dedup();
    assert_eq!(texts.len(), 1, "{texts:?}");
}

#[tokio::test]
async fn missing_and_blank_fields_are_403_with_field_errors() {
    let api = Workspace::new().await.anonymous;
    for (body, wrong) in [
        (json!({}), &["password", "username"][..]),
        (json!({"username": "boss"}), &["password"]),
        (json!({"username": "", "password": " "}), &["password", "username"]),
        (json!({"username": null, "password": 7}), &["password", "username"]),
    ] {
        api.post(PATH, &body).await.expect_fields(403, wrong);
    }
    api.call("POST", PATH).await.expect_fields(403, &["password", "username"]);
    let form = api.send(api.request("POST", PATH).form(&[("username", "boss")])).await;
    form.expect_fields(403, &["password"]);
    let form = Form::new().text("password", PASSWORD);
    api.send(api.request("POST", PATH).multipart(form)).await.expect_fields(403, &["username"]);
}

#[tokio::test]
async fn unreadable_bodies_are_rejected() {
    let api = Workspace::new().await.anonymous;
    let send = |media_type: &'static str, body: &'static str| {
        let api = api.clone();
        async move {
            api.send(api.request("POST", PATH).header("Content-Type", media_type).body(body)).await
        }
    };
    send("application/json", "{").await.expect_fields(400, &["non_field_errors"]);
    send("application/json", "[]").await.expect_fields(400, &["non_field_errors"]);
    send("multipart/form-data; boundary=x", "nonsense")
        .await
        .expect_fields(400, &["non_field_errors"]);
    send("multipart/form-data", "nonsense").await.expect_fields(400, &["non_field_errors"]);
    send("text/plain", "username=boss").await.expect_detail(415, None);
    let large = api
        .request("POST", PATH)
        .header("Content-Type", "application/x-www-form-urlencoded")
        .body("x".repeat((1 << 20) + 1));
    api.send(large).await.expect_detail(413, None);
}
