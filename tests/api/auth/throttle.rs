//! The throttling of login attempts (contract 4.5).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farhand_tests::client::PASSWORD;
use farhand_tests::{
    Api, Instance, Reply, Workspace, eventually, eventually_within, instance_setting,
};
use futures_util::future::{join, join_all};
use serde_json::{Value, json};

const WRONG: &str = "not the right one";

/// Asserts a response of the throttle, and returns its `Retry-After`.
#[track_caller]
fn expect_throttled(reply: &Reply) -> u64 {
    reply.expect_detail(429, Some("THROTTLED"));
    reply.header("Retry-After").parse().expect("Retry-After is whole seconds")
}

async fn fail_logins(api: &Api, username: &str, times: usize) {
    for _ in 0..times {
        api.log_in(username, WRONG).await.expect_fields(403, &["non_field_errors"]);
    }
}

#[tokio::test]
async fn ten_failures_block_a_name_from_an_address() {
    let workspace = Workspace::new().await;
    let api = workspace.anonymous.from_address("192.0.2.1");
    for username in ["boss", "nobody-here"] {
        fail_logins(&api, username, 10).await;
        let seconds = expect_throttled(&api.log_in(username, WRONG).await);
        assert!((1..=300).contains(&seconds), "{seconds}");
        // Even the right password is refused now. User names are not case-sensitive.
        expect_throttled(&api.log_in(username, PASSWORD).await);
        expect_throttled(&api.log_in(&username.to_uppercase(), PASSWORD).await);
    }
    // The user can log in from another address, and existing sessions stay valid.
    workspace.anonymous.from_address("192.0.2.2").log_in("boss", PASSWORD).await.expect(200);
    workspace.session().from_address("192.0.2.1").get("/api/status/").await.expect(200);
    workspace.admin.from_address("192.0.2.1").get("/api/status/").await.expect(200);
    // Other names from this address, and the same name in another workspace, are not affected.
    fail_logins(&api, "somebody-else", 1).await;
    Workspace::new()
        .await
        .anonymous
        .from_address("192.0.2.1")
        .log_in("boss", PASSWORD)
        .await
        .expect(200);
}

#[tokio::test]
async fn a_success_resets_the_counter_of_name_and_address() {
    let workspace = Workspace::new().await;
    for _ in 0..3 {
        fail_logins(&workspace.anonymous, "boss", 9).await;
        workspace.anonymous.log_in("boss", PASSWORD).await.expect(200);
    }
}

#[tokio::test]
async fn fifty_failures_block_an_address() {
    let workspace = Workspace::new().await;
    // The owner of an IPv6 address controls its whole /64.
    for batch in 0..5 {
        let api = workspace.anonymous.from_address(&format!("2001:db8:0:1::{batch}"));
        fail_logins(&api, &format!("user{batch}"), 10).await;
    }
    let api = workspace.anonymous.from_address("2001:db8:0:1:ffff::1");
    expect_throttled(&api.log_in("boss", PASSWORD).await);
    workspace.anonymous.from_address("2001:db8:0:2::1").log_in("boss", PASSWORD).await.expect(200);
}

#[tokio::test]
async fn counters_are_deleted_with_their_workspace() {
    let (instance, _state) = Instance::new_with(&[("WORKSPACE_GRACE_DAYS", "0")]).await;
    let operator = instance.operator();
    let workspace = Workspace::create_with(&operator, "acme").await;
    fail_logins(&workspace.anonymous, "boss", 10).await;
    expect_throttled(&workspace.anonymous.log_in("boss", PASSWORD).await);
    operator.delete("/operator/workspaces/acme/").await.expect(204);
    // Without a workspace, nothing is counted, and the response says only that there is no
    // workspace.
    for _ in 0..12 {
        workspace.anonymous.log_in("boss", WRONG).await.expect_detail(404, None);
    }
    let again = Workspace::create_with(&operator, "acme").await;
    fail_logins(&again.anonymous, "boss", 1).await;
}

#[tokio::test]
async fn one_address_cannot_lock_out_a_user() {
    // The window of five minutes is three seconds here.
    let (instance, _state) = Instance::new_with(&[("LOGIN_WINDOW_SECONDS", "3")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let from = |number: usize| workspace.anonymous.from_address(&format!("192.0.2.{number}"));
    from(2).log_in("boss", PASSWORD).await.expect(200);
    // One address fails as often as its window allows. This exceeds the hourly limit of a name,
    // which is 100.
    let (failures, refusals) = (Cell::new(0), Cell::new(0));
    eventually_within(Duration::from_secs(180), "a hundred failures and more", || async {
        let api = from(1);
        for reply in join_all((0..12).map(|_| api.log_in("boss", WRONG))).await {
            if reply.status == 403 {
                failures.set(failures.get() + 1);
            } else {
                assert!(
                    (1..=3).contains(&expect_throttled(&reply)),
                    "the delay ends with the window"
                );
                refusals.set(refusals.get() + 1);
            }
        }
        (failures.get() > 110).then_some(())
    })
    .await;
    assert!(refusals.get() > 0);
    // One address can fill at most 20 of these 100, so other addresses fill the rest.
    for number in 3..11 {
        fail_logins(&from(number), "boss", 10).await;
    }
    for number in [1, 11] {
        let seconds = expect_throttled(&from(number).log_in("boss", PASSWORD).await);
        assert!((4..=3600).contains(&seconds), "{seconds}");
    }
    // Failures from unknown addresses do not count against addresses from which the user has logged
    // in. Failures from such a known address do.
    fail_logins(&from(2), "boss", 9).await;
    from(2).log_in("boss", PASSWORD).await.expect(200);
    eventually_within(Duration::from_secs(120), "the address's own limit", || async {
        let api = from(2);
        let replies = join_all((0..12).map(|_| api.log_in("boss", WRONG))).await;
        replies.iter().any(|reply| reply.status == 429).then_some(())
    })
    .await;
    workspace.session().get("/api/status/").await.expect(200);
    workspace.admin.get("/api/status/").await.expect(200);
    fail_logins(&from(12), "somebody-else", 1).await;
}

#[tokio::test]
async fn concurrent_attempts_are_all_counted() {
    let workspace = Workspace::new().await;
    workspace.user_with("alice", &json!({})).await;
    // Uses a known address, because fewer logins from unknown addresses may wait for hashing.
    let from_home = workspace.anonymous.from_address("192.0.2.7");
    for username in ["alice", "boss"] {
        from_home.log_in(username, PASSWORD).await.expect(200);
    }
    let log_in_concurrently =
        async |username: &'static str, password: &'static str, times: usize| {
            let logins: Vec<_> = (0..times)
                .map(|_| {
                    let api = from_home.clone();
                    tokio::spawn(async move { api.log_in(username, password).await.status })
                })
                .collect();
            let mut statuses = Vec::new();
            for login in logins {
                statuses.push(login.await.unwrap());
            }
            statuses.sort_unstable();
            statuses
        };
    // Concurrent logins with the right password do not block each other.
    assert_eq!(log_in_concurrently("boss", PASSWORD, 12).await, [200; 12]);
    // Uses another user, because a success may be reported to the counter's object only after the
    // response.
    let statuses = log_in_concurrently("alice", WRONG, 30).await;
    assert_eq!(statuses, [[403; 10].as_slice(), &[429; 20]].concat());
}

#[tokio::test]
async fn wrong_current_passwords_count_too() {
    let workspace = Workspace::new().await;
    let alice = workspace.user("alice").await;
    let change = json!({"password": WRONG, "new_password": "an entirely other one"});
    let email = json!({"password": WRONG, "email": "new@example.com"});
    for _ in 0..5 {
        alice.post("/api/auth/change-password/", &change).await.expect_fields(400, &["password"]);
        alice.patch("/api/iam/users/-/", &email).await.expect_fields(400, &["password"]);
    }
    let right = json!({"password": PASSWORD, "new_password": "an entirely other one"});
    expect_throttled(&alice.post("/api/auth/change-password/", &right).await);
    expect_throttled(
        &alice
            .patch("/api/iam/users/-/", &json!({"password": PASSWORD, "email": "new@example.com"}))
            .await,
    );
    expect_throttled(&workspace.anonymous.log_in("alice", PASSWORD).await);
    // The session stays valid, and the password can be changed from another address.
    assert_eq!(alice.get("/api/iam/users/-/").await.expect(200)["email"], "alice@example.com");
    alice.from_address("192.0.2.9").post("/api/auth/change-password/", &right).await.expect(200);
}

#[tokio::test]
async fn successful_logins_of_a_user_are_limited() {
    let (instance, _state) = Instance::new_with(&[("LOGINS_PER_USER", "3")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let user = workspace.user("ann").await;
    let at = |address: &str| workspace.anonymous.from_address(address);
    // The harness logged the user in once. A wrong password counts elsewhere.
    at("192.0.2.1").log_in("ann", PASSWORD).await.expect(200);
    fail_logins(&at("192.0.2.1"), "ann", 1).await;
    at("192.0.2.2").log_in("ann", PASSWORD).await.expect(200);
    // From any address, and with any case, it is the same user.
    let reply = at("192.0.2.3").log_in("ANN", PASSWORD).await;
    let seconds = expect_throttled(&reply);
    assert!((1..=3_600).contains(&seconds), "{seconds}");
    let change = json!({"password": PASSWORD, "new_password": "another good passphrase"});
    expect_throttled(&user.post("/api/auth/change-password/", &change).await);
    // Sessions stay valid, and other users log in.
    user.get("/api/status/").await.expect(200);
    at("192.0.2.1").log_in("boss", PASSWORD).await.expect(200);
}

#[tokio::test]
async fn invalid_input_does_not_count_as_an_attempt() {
    let workspace = Workspace::new().await;
    for _ in 0..12 {
        let api = &workspace.anonymous;
        api.post("/api/auth/login/", &json!({"username": "boss"}))
            .await
            .expect_fields(403, &["password"]);
        let change = json!({"password": PASSWORD, "new_password": "12345"});
        workspace
            .admin
            .post("/api/auth/change-password/", &change)
            .await
            .expect_fields(400, &["new_password"]);
        workspace
            .admin
            .post("/api/auth/change-password/", &json!({}))
            .await
            .expect_fields(400, &["new_password", "password"]);
    }
    workspace.anonymous.log_in("boss", PASSWORD).await.expect(200);
}

#[tokio::test]
async fn every_failed_login_takes_the_same_hashing_work() {
    let workspace = Workspace::new().await;
    workspace.user_with("gone", &json!({"is_active": false})).await;
    let log = Path::new(&instance_setting("FARHAND_STATE_DIR")).join("worker.log");
    // The Worker logs the number of hash rounds of each password check.
    let rounds = async |username: &str, password: &str, status: u16| {
        let id = farhand_tests::client::unique("work");
        let request =
            workspace.anonymous.request("POST", "/api/auth/login/").header("X-Request-Id", &id);
        let request = request.json(&json!({"username": username, "password": password}));
        assert_eq!(workspace.anonymous.send(request).await.status, status, "{username}");
        eventually("the log's line", || async {
            let text = std::fs::read_to_string(&log).unwrap();
            let is_check = |line: &&str| line.contains(&id) && line.contains("password_checked");
            let lines: Vec<&str> = text.lines().filter(is_check).collect();
            let counted = lines
                .iter()
                .filter_map(|line| serde_json::from_str::<Value>(&line[line.find('{')?..]).ok());
            let counted: Vec<Value> = counted.map(|line| line["hash_rounds"].clone()).collect();
            (!counted.is_empty()).then_some(counted)
        })
        .await
    };
    let right = rounds("boss", PASSWORD, 200).await;
    assert_eq!(right, [json!(100_000)]);
    for (username, password) in
        [("boss", WRONG), ("nobody-here", WRONG), ("gone", PASSWORD), ("gone", WRONG), ("b c", "x")]
    {
        assert_eq!(rounds(username, password, 403).await, right, "{username}");
    }
}

#[tokio::test]
async fn networks_and_workspaces_have_limits_of_failures() {
    let ceilings = [("LOGIN_FAILURES_PER_SITE", "5"), ("LOGIN_FAILURES_PER_WORKSPACE", "8")];
    let (instance, _state) = Instance::new_with(&ceilings).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let from = |address: &str| workspace.anonymous.from_address(address);
    from("192.0.2.1").log_in("boss", PASSWORD).await.expect(200);
    for network in 0..5 {
        fail_logins(&from(&format!("2001:db8:0:{network}::1")), &format!("user{network}"), 1).await;
    }
    expect_throttled(&from("2001:db8:0:ffff::1").log_in("boss", PASSWORD).await);
    from("2001:db8:1::1").log_in("boss", PASSWORD).await.expect(200);
    for host in 0..3 {
        fail_logins(&from(&format!("198.51.100.{host}")), "boss", 1).await;
    }
    // The limit of the workspace applies to existing and unknown names alike.
    for username in ["boss", "nobody-here"] {
        let seconds = expect_throttled(&from("198.51.100.9").log_in(username, PASSWORD).await);
        assert!((1..=300).contains(&seconds), "{seconds}");
    }
    // Known addresses are exempt: they can log in, and their failures do not count.
    fail_logins(&from("192.0.2.1"), "boss", 2).await;
    from("192.0.2.1").log_in("boss", PASSWORD).await.expect(200);
    // Callers with a credential are exempt too. They can confirm their password from any address.
    let change = json!({"password": PASSWORD, "new_password": "an entirely other one"});
    workspace
        .admin
        .from_address("198.51.100.9")
        .post("/api/auth/change-password/", &change)
        .await
        .expect(200);
    let other = Workspace::create_with(&instance.operator(), "other").await;
    fail_logins(&other.anonymous.from_address("198.51.100.9"), "boss", 1).await;
}

#[tokio::test]
async fn logins_waiting_for_hashing_block_no_other_request() {
    // Each hash takes a second or more.
    let (instance, _state) = Instance::new_with(&[("PBKDF2_ITERATIONS", "2000000")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let home = workspace.anonymous.from_address("192.0.2.1");
    home.log_in("boss", PASSWORD).await.expect(200);
    let (failed, refused) = (Cell::new(0), Cell::new(0));
    let bodies = RefCell::new(BTreeMap::<String, Vec<String>>::new());
    let strangers = join_all((0..24).map(|number: usize| {
        let api = workspace.anonymous.from_address(&format!("2001:db8:{number:x}::1"));
        let username = if number.is_multiple_of(2) { "boss" } else { "nobody-here" };
        let (failed, refused, bodies) = (&failed, &refused, &bodies);
        async move {
            let reply = api.log_in(username, WRONG).await;
            if reply.status == 429 {
                expect_throttled(&reply);
                bodies
                    .borrow_mut()
                    .entry(reply.text.clone())
                    .or_default()
                    .push(username.to_owned());
                refused.set(refused.get() + 1);
            } else {
                reply.expect_fields(403, &["non_field_errors"]);
                failed.set(failed.get() + 1);
            }
        }
    }));
    let others = async {
        eventually("a full queue", || async { (refused.get() > 0).then_some(()) }).await;
        workspace.admin.get("/api/events/commands/").await.expect(200);
        assert!(failed.get() < 2, "a read waited for {} logins", failed.get());
        // A login from a known address waits only for the hash that is being computed.
        home.log_in("boss", PASSWORD).await.expect(200);
        assert!(failed.get() < 6, "a known address waited for {} logins", failed.get());
    };
    join(strangers, others).await;
    // One login was hashed, and eight waited. The refusal is the same for existing and unknown
    // names.
    assert!(failed.get() >= 1 && refused.get() >= 24 - 9, "{} {}", failed.get(), refused.get());
    let bodies = bodies.into_inner();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    let names = bodies.into_values().next().unwrap();
    assert!(
        ["boss", "nobody-here"].iter().all(|name| names.iter().any(|other| other == name)),
        "{names:?}"
    );
}

#[tokio::test]
async fn a_disconnected_login_leaves_the_queue() {
    let (instance, _state) = Instance::new_with(&[("PBKDF2_ITERATIONS", "2000000")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let refused = Arc::new(AtomicBool::new(false));
    let logins = (0..14).map(|number| {
        let (api, refused) =
            (workspace.anonymous.from_address(&format!("2001:db8:{number:x}::1")), refused.clone());
        tokio::spawn(async move {
            if api.log_in("boss", WRONG).await.status == 429 {
                refused.store(true, Ordering::Relaxed);
            }
        })
    });
    let logins: Vec<_> = logins.collect();
    let stranger = workspace.anonymous.from_address("198.51.100.1");
    eventually("a full queue", || async { refused.load(Ordering::Relaxed).then_some(()) }).await;
    logins.iter().for_each(tokio::task::JoinHandle::abort);
    eventually("a free place in the queue", || async {
        (stranger.log_in("boss", PASSWORD).await.status == 200).then_some(())
    })
    .await;
}
