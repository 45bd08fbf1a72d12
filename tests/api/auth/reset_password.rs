//! `/api/auth/reset-password/` and its links (contract 4.10).

use std::path::{Path, PathBuf};

use farhand_tests::client::{PASSWORD, unique};
use farhand_tests::mail::{key_of, mail_to, mails_to, reset_link};
use farhand_tests::{Api, Instance, Reply, Workspace, eventually, instance_setting};
use reqwest::multipart::Form;
use serde_json::{Value, json};

const PATH: &str = "/api/auth/reset-password/";
const NEW: &str = "an entirely other one";

fn log() -> PathBuf {
    Path::new(&instance_setting("FARHAND_STATE_DIR")).join("worker.log")
}

/// Asserts the status, and that the body is `null`.
#[track_caller]
fn expect_null(reply: &Reply, status: u16) {
    assert_eq!((reply.status, reply.text.as_str()), (status, "null"));
}

async fn request_reset(api: &Api, email: &str, status: u16) {
    expect_null(&api.post(PATH, &json!({"email": email})).await, status);
}

/// Creates a user with a unique address, and returns the address.
async fn user_with_address(workspace: &Workspace, username: &str) -> String {
    let email = format!("{}@example.com", unique(username));
    workspace.user_with(username, &json!({"email": email})).await;
    email
}

/// Creates a user, requests a reset, and returns the path of the link in the mail.
async fn link_for(workspace: &Workspace, username: &str) -> String {
    let email = user_with_address(workspace, username).await;
    let requested = async { workspace.anonymous.post(PATH, &json!({"email": email})).await };
    reset_link(workspace, &email, requested).await
}

fn path_of_link(workspace: &Workspace, link: &str) -> String {
    let port = workspace.anonymous.url.rsplit(':').next().unwrap();
    let base = format!("http://{}.local.localhost:{port}", workspace.slug);
    let path = link
        .strip_prefix(&base)
        .unwrap_or_else(|| panic!("{link} does not start with {base}"))
        .to_owned();
    let key = path
        .strip_prefix(&format!("{PATH}confirm/"))
        .and_then(|key| key.strip_suffix('/'))
        .unwrap();
    assert!(key.len() >= 64 && key.bytes().all(|b| b.is_ascii_alphanumeric()), "{key}");
    path
}

async fn confirm(workspace: &Workspace, path: &str, password: &str) -> Reply {
    workspace.anonymous.post(path, &json!({"new_password": password})).await
}

#[tokio::test]
async fn a_link_sets_the_password_once() {
    let workspace = Workspace::new().await;
    let path = link_for(&workspace, "alice").await;
    let sessions = [
        workspace.anonymous.logged_in("alice", PASSWORD).await,
        workspace.anonymous.logged_in("alice", PASSWORD).await,
    ];
    let token = json!({"name": "x", "expires_at": null});
    let made = sessions[0].post("/api/auth/tokens/", &token).await.expect(201);
    let token = workspace.anonymous.with_token(made["key"].as_str().unwrap());

    // The link redirects to the page. Nothing but the key is passed on.
    let opened = workspace.anonymous.get(&path).await;
    let base = workspace
        .anonymous
        .url
        .replace("127.0.0.1", &format!("{}.local.localhost", workspace.slug));
    assert_eq!((opened.status, opened.text.as_str()), (302, ""));
    assert_eq!(opened.header("Location"), format!("{base}/reset-password/?key={}", key_of(&path)));
    assert_eq!(opened.header("Referrer-Policy"), "no-referrer");
    // Opening a link does not use it up.
    assert_eq!(workspace.anonymous.call("HEAD", &path).await.status, 302);

    expect_null(&confirm(&workspace, &path, NEW).await, 200);
    for session in &sessions {
        session.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    }
    token.get("/api/status/").await.expect(200);
    workspace.anonymous.log_in("alice", PASSWORD).await.expect_fields(403, &["non_field_errors"]);
    workspace.anonymous.log_in("alice", NEW).await.expect(200);
    confirm(&workspace, &path, "yet another of those").await.expect_detail(404, None);
    let opened = workspace.anonymous.get(&path).await;
    assert_eq!(opened.header("Location"), format!("{base}/reset-password/?error=invalid"));
    workspace.anonymous.log_in("alice", NEW).await.expect(200);
}

#[tokio::test]
async fn a_rejected_password_does_not_use_up_the_link() {
    let workspace = Workspace::new().await;
    let path = link_for(&workspace, "alice").await;
    for body in [json!({}), json!({"new_password": null}), json!({"new_password": ""})] {
        workspace.anonymous.post(&path, &body).await.expect_fields(400, &["new_password"]);
    }
    let misspelt = workspace.anonymous.post(&path, &json!({"password": NEW})).await;
    misspelt.expect_fields(400, &["new_password", "password"]);
    let all = confirm(&workspace, &path, "12345").await.expect_fields(400, &["new_password"]);
    assert_eq!(all["new_password"].as_array().unwrap().len(), 3, "{all}");
    let similar =
        confirm(&workspace, &path, "alice!!x").await.expect_fields(400, &["new_password"]);
    assert!(similar.to_string().contains("too similar"), "{similar}");
    let malformed = workspace
        .anonymous
        .request("POST", &path)
        .header("Content-Type", "application/json")
        .body("{");
    workspace.anonymous.send(malformed).await.expect_fields(400, &["non_field_errors"]);
    let form = workspace.anonymous.request("POST", &path).form(&[("new_password", NEW)]);
    workspace.anonymous.send(form).await.expect_detail(415, None);
    workspace.anonymous.log_in("alice", PASSWORD).await.expect(200);
    expect_null(&confirm(&workspace, &path, NEW).await, 200);
}

#[tokio::test]
async fn invalid_keys_are_404_before_the_input_check() {
    let (workspace, elsewhere) = (Workspace::new().await, Workspace::new().await);
    let path = link_for(&workspace, "alice").await;
    let key = key_of(&path);
    let flipped =
        format!("{}{}", &key[..key.len() - 1], if key.ends_with('0') { '1' } else { '0' });
    let cut = &key[..key.len() - 1];
    for bad in
        [&flipped, cut, "x", "%00", "-", &key.to_uppercase(), &"0".repeat(96), &"9".repeat(5000)]
    {
        let path = format!("{PATH}confirm/{bad}/");
        for body in [json!({"new_password": NEW}), json!({})] {
            workspace.anonymous.post(&path, &body).await.expect_detail(404, None);
        }
        let opened = workspace.anonymous.get(&path).await;
        assert_eq!(opened.status, 302, "{bad}");
        assert!(
            opened.header("Location").ends_with("/reset-password/?error=invalid"),
            "{}",
            opened.header("Location")
        );
    }
    // Another workspace does not accept the key.
    confirm(&elsewhere, &path, NEW).await.expect_detail(404, None);
    assert!(elsewhere.anonymous.get(&path).await.header("Location").ends_with("?error=invalid"));
    workspace.anonymous.log_in("alice", PASSWORD).await.expect(200);
    expect_null(&confirm(&workspace, &path, NEW).await, 200);
}

#[tokio::test]
async fn of_concurrent_confirmations_one_succeeds() {
    let workspace = Workspace::new().await;
    let path = link_for(&workspace, "alice").await;
    let confirms: Vec<_> = (0..4)
        .map(|number| {
            let (api, path) = (workspace.anonymous.clone(), path.clone());
            let password = format!("an entirely other one {number}");
            tokio::spawn(async move {
                (api.post(&path, &json!({"new_password": password})).await.status, password)
            })
        })
        .collect();
    let (mut winners, mut others) = (Vec::new(), Vec::new());
    for confirm in confirms {
        let (status, password) = confirm.await.unwrap();
        if status == 200 { winners.push(password) } else { others.push(status) }
    }
    assert_eq!((winners.len(), others), (1, vec![404; 3]));
    workspace.anonymous.log_in("alice", &winners[0]).await.expect(200);
}

#[tokio::test]
async fn a_change_of_the_user_invalidates_pending_links() {
    let workspace = Workspace::new().await;
    // Each change invalidates both of two pending requests.
    for change in ["reset", "change-password", "superuser", "email", "deactivate", "delete"] {
        let username = format!("u-{change}");
        let email = user_with_address(&workspace, &username).await;
        request_reset(&workspace.anonymous, &email, 200).await;
        request_reset(&workspace.anonymous, &email, 200).await;
        let mails = eventually("both mails", || async {
            let mails = mails_to(&log(), &email);
            (mails.len() == 2).then_some(mails)
        })
        .await;
        let paths: Vec<String> =
            mails.iter().map(|mail| path_of_link(&workspace, mail.link())).collect();
        assert_ne!(paths[0], paths[1]);
        let (admin, by_name) = (&workspace.admin, format!("/api/users/users/{username}/"));
        let by_id = format!("/api/iam/users/{}/", admin.get(&by_name).await.expect(200)["id"]);
        match change {
            "reset" => expect_null(&confirm(&workspace, &paths[1], NEW).await, 200),
            "change-password" => {
                let session = workspace.anonymous.logged_in(&username, PASSWORD).await;
                let body = json!({"password": PASSWORD, "new_password": NEW});
                session.post("/api/auth/change-password/", &body).await.expect(200);
            }
            "superuser" => drop(admin.put(&by_name, &json!({"password": NEW})).await.expect(200)),
            "email" => {
                drop(admin.patch(&by_id, &json!({"email": "other@example.com"})).await.expect(200))
            }
            "deactivate" => {
                admin.patch(&by_id, &json!({"is_active": false})).await.expect(200);
                admin.patch(&by_id, &json!({"is_active": true})).await.expect(200);
            }
            _ => assert_eq!(admin.delete(&by_id).await.status, 204),
        }
        for path in &paths {
            confirm(&workspace, path, "yet another of those").await.expect_detail(404, None);
            assert!(
                workspace.anonymous.get(path).await.header("Location").ends_with("?error=invalid"),
                "{change}"
            );
        }
    }
    // A login or a change of names invalidates nothing.
    let path = link_for(&workspace, "quiet").await;
    let session = workspace.anonymous.logged_in("quiet", PASSWORD).await;
    session.patch("/api/iam/users/-/", &json!({"first_name": "Q"})).await.expect(200);
    expect_null(&confirm(&workspace, &path, NEW).await, 200);
}

#[tokio::test]
async fn known_and_unknown_addresses_get_equal_responses() {
    let workspace = Workspace::new().await;
    let known = user_with_address(&workspace, "alice").await;
    let inactive = user_with_address(&workspace, "gone").await;
    let id = workspace.admin.get("/api/users/users/gone/").await.expect(200)["id"].clone();
    workspace
        .admin
        .patch(&format!("/api/iam/users/{id}/"), &json!({"is_active": false}))
        .await
        .expect(200);
    let stranger = format!("{}@example.com", unique("stranger"));
    // An address may have five pending requests. The sixth request is refused, whatever the
    // spelling of the address, and whether the address is registered or not.
    for (email, client) in
        [(&known, "192.0.2.1"), (&stranger, "192.0.2.2"), (&inactive, "192.0.2.3")]
    {
        let api = workspace.anonymous.from_address(client);
        for spelling in [
            email.clone(),
            email.to_uppercase(),
            format!(" {email}\t"),
            email.clone(),
            email.clone(),
        ] {
            request_reset(&api, &spelling, 200).await;
        }
        for spelling in [email.clone(), email.to_uppercase()] {
            request_reset(&api, &spelling, 403).await;
        }
    }
    let mails = eventually("the mails", || async {
        let mails = mails_to(&log(), &known);
        (mails.len() == 5).then_some(mails)
    })
    .await;
    // A completed reset does not make room for another request, because that would reveal that the
    // address is registered.
    let path = path_of_link(&workspace, mails[4].link());
    expect_null(&confirm(&workspace, &path, NEW).await, 200);
    request_reset(&workspace.anonymous, &known, 403).await;
    request_reset(&workspace.anonymous, &stranger, 403).await;
    for email in [&stranger, &inactive] {
        assert_eq!(mails_to(&log(), email).len(), 0, "{email}");
    }
    // Each workspace counts separately.
    request_reset(&Workspace::new().await.anonymous, &stranger, 200).await;
}

#[tokio::test]
async fn invalid_addresses_are_ignored() {
    let workspace = Workspace::new().await;
    let api = &workspace.anonymous;
    for body in [
        json!({}),
        json!({"email": null}),
        json!({"email": ""}),
        json!({"email": 7}),
        json!({"email": ["boss@example.com"]}),
        json!({"email": "nonsense"}),
        json!({"email": "a@example.com\r\nBcc: b@example.com"}),
        json!({"email": format!("{}@example.com", "a".repeat(300))}),
    ] {
        expect_null(&api.post(PATH, &body).await, 200);
    }
    // Even an unreadable request gets no error text.
    let send = async |media_type: &str, body: String| {
        api.send(api.request("POST", PATH).header("Content-Type", media_type).body(body)).await
    };
    expect_null(&send("application/json", "{".to_owned()).await, 400);
    expect_null(&send("application/json", "[]".to_owned()).await, 400);
    expect_null(&send("text/plain", "email=boss@example.com".to_owned()).await, 415);
    expect_null(&send("application/json", "x".repeat((1 << 20) + 1)).await, 413);
    let form = api.request("POST", PATH).multipart(Form::new().text("email", "boss@example.com"));
    expect_null(&api.send(form).await, 415);
}

#[tokio::test]
async fn an_address_may_send_twenty_requests_an_hour() {
    let workspace = Workspace::new().await;
    let api = workspace.anonymous.from_address("192.0.2.77");
    for number in 0..20 {
        let body = if number % 2 == 0 {
            json!({})
        } else {
            json!({"email": format!("u{number}@example.com")})
        };
        expect_null(&api.post(PATH, &body).await, 200);
    }
    let reply = api.post(PATH, &json!({"email": "boss@example.com"})).await;
    expect_null(&reply, 429);
    let seconds: u64 = reply.header("Retry-After").parse().unwrap();
    assert!((1..=3600).contains(&seconds), "{seconds}");
    // Logins from this address, and requests from another one, have separate limits.
    api.log_in("boss", PASSWORD).await.expect(200);
    request_reset(&workspace.anonymous.from_address("192.0.2.78"), "x@example.com", 200).await;
}

#[tokio::test]
async fn a_link_is_valid_for_24_hours() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let log = instance.state.join("worker.log");
    for _ in 0..5 {
        request_reset(&workspace.anonymous, "boss@example.com", 200).await;
    }
    request_reset(&workspace.anonymous, "boss@example.com", 403).await;
    let path = path_of_link(&workspace, mail_to(&log, "boss@example.com").await.link());
    let age = async |seconds: u32| {
        let aged = |column: &str| {
            format!(
                "{column} = strftime('%Y-%m-%dT%H:%M:%f000+00:00', {column}, '-{seconds} seconds')"
            )
        };
        instance.d1(&format!("UPDATE reset_requests SET {}", aged("expires_at")));
    };
    age(23 * 3600).await;
    assert!(workspace.anonymous.get(&path).await.header("Location").contains("?key="));
    request_reset(&workspace.anonymous, "boss@example.com", 403).await;
    age(3600).await;
    assert!(workspace.anonymous.get(&path).await.header("Location").ends_with("?error=invalid"));
    confirm(&workspace, &path, NEW).await.expect_detail(404, None);
    request_reset(&workspace.anonymous, "boss@example.com", 200).await;
    // Expired rows are deleted, and no address is stored in plain text.
    let rows = instance.d1("SELECT * FROM reset_requests");
    assert_eq!(rows.as_array().unwrap().len(), 1, "{rows}");
    assert!(!rows.to_string().contains("boss"), "{rows}");
    let key = key_of(&path);
    assert!(!rows.to_string().contains(&key[32..]), "{rows}");
}

#[tokio::test]
async fn the_link_comes_from_the_configuration() {
    let variables = [
        ("BASE_URL", "https://{workspace}.eu7.farhand.example"),
        ("WEB_CLIENT_URL", "https://console.example/app/"),
    ];
    let (instance, _state) = Instance::new_with(&variables).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    // The link does not depend on the host name of the request.
    let api = workspace.anonymous.with_host("acme.local.localhost:1234");
    expect_null(&api.post(PATH, &json!({"email": "boss@example.com"})).await, 200);
    let mail = mail_to(&instance.state.join("worker.log"), "boss@example.com").await;
    let path = mail
        .link()
        .strip_prefix("https://acme.eu7.farhand.example")
        .unwrap_or_else(|| panic!("{}", mail.link()));
    assert!(mail.text.contains("boss") && mail.text.contains("acme"), "{}", mail.text);
    let opened = workspace.anonymous.get(path).await;
    assert_eq!(
        opened.header("Location"),
        format!("https://console.example/app/reset-password/?key={}", key_of(path))
    );
    let bad = workspace.anonymous.get(&format!("{PATH}confirm/x/")).await;
    assert_eq!(bad.header("Location"), "https://console.example/app/reset-password/?error=invalid");
    let left: Value =
        instance.d1("SELECT count(*) AS n FROM reset_requests WHERE user_id IS NOT NULL");
    assert_eq!(left[0]["n"], 1);
}

#[tokio::test]
async fn networks_and_workspaces_have_limits_of_requests() {
    let (instance, _state) =
        Instance::new_with(&[("RESETS_PER_SITE", "3"), ("RESETS_PER_WORKSPACE", "5")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let from = async |address: &str, email: &str, status: u16| {
        let reply =
            workspace.anonymous.from_address(address).post(PATH, &json!({"email": email})).await;
        expect_null(&reply, status);
        assert_eq!(status == 429, !reply.header("Retry-After").is_empty());
    };
    for number in 0..3 {
        from(&format!("2001:db8:0:{number}::1"), &format!("x{number}@example.com"), 200).await;
    }
    from("2001:db8:0:9::1", "x@example.com", 429).await;
    from("2001:db8:1::1", "boss@example.com", 200).await;
    from("192.0.2.1", "y@example.com", 200).await;
    // The limit does not depend on whether the address is registered. Refused requests are not
    // stored.
    from("192.0.2.2", "boss@example.com", 429).await;
    from("192.0.2.3", "y@example.com", 429).await;
    let rows = instance.d1("SELECT count(*) AS n FROM reset_requests");
    assert_eq!(rows[0]["n"], 5);
    let events = "SELECT count(*) AS n FROM audit_events WHERE action = 'user.request_reset'";
    assert!(instance.d1(events)[0]["n"].as_i64().unwrap() <= 5);
    let other = Workspace::create_with(&instance.operator(), "other").await;
    request_reset(&other.anonymous.from_address("192.0.2.2"), "boss@example.com", 200).await;
}
