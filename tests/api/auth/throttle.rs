//! The throttles of guesses (contract 4.5).

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

/// Asserts that an answer is a throttle's, and returns the seconds that it names.
#[track_caller]
fn throttled(reply: &Reply) -> u64 {
    reply.expect_detail(429, Some("THROTTLED"));
    reply.header("Retry-After").parse().expect("Retry-After is whole seconds")
}

async fn fail(api: &Api, username: &str, times: usize) {
    for _ in 0..times {
        api.log_in(username, WRONG).await.expect_fields(403, &["non_field_errors"]);
    }
}

#[tokio::test]
async fn ten_failures_of_a_name_from_an_address() {
    let workspace = Workspace::new().await;
    let api = workspace.anonymous.from_address("192.0.2.1");
    for username in ["boss", "nobody-here"] {
        fail(&api, username, 10).await;
        let seconds = throttled(&api.log_in(username, WRONG).await);
        assert!((1..=300).contains(&seconds), "{seconds}");
        // Not even the right one is looked at now, and names have no case.
        throttled(&api.log_in(username, PASSWORD).await);
        throttled(&api.log_in(&username.to_uppercase(), PASSWORD).await);
    }
    // From anywhere else the user comes in, and what was let in before goes on.
    workspace.anonymous.from_address("192.0.2.2").log_in("boss", PASSWORD).await.expect(200);
    workspace.session().from_address("192.0.2.1").get("/api/status/").await.expect(200);
    workspace.admin.from_address("192.0.2.1").get("/api/status/").await.expect(200);
    // Other names from that address, and the same name in another workspace, are none of its
    // business.
    fail(&api, "somebody-else", 1).await;
    Workspace::new()
        .await
        .anonymous
        .from_address("192.0.2.1")
        .log_in("boss", PASSWORD)
        .await
        .expect(200);
}

#[tokio::test]
async fn a_success_clears_the_pair() {
    let workspace = Workspace::new().await;
    for _ in 0..3 {
        fail(&workspace.anonymous, "boss", 9).await;
        workspace.anonymous.log_in("boss", PASSWORD).await.expect(200);
    }
}

#[tokio::test]
async fn fifty_failures_of_an_address() {
    let workspace = Workspace::new().await;
    // Whoever has an IPv6 address has the whole /64.
    for batch in 0..5 {
        let api = workspace.anonymous.from_address(&format!("2001:db8:0:1::{batch}"));
        fail(&api, &format!("user{batch}"), 10).await;
    }
    let api = workspace.anonymous.from_address("2001:db8:0:1:ffff::1");
    throttled(&api.log_in("boss", PASSWORD).await);
    workspace.anonymous.from_address("2001:db8:0:2::1").log_in("boss", PASSWORD).await.expect(200);
}

#[tokio::test]
async fn counters_end_with_their_workspace_and_begin_with_none() {
    let slug = farhand_tests::client::unique("t");
    let workspace = Workspace::with_slug(&slug).await;
    fail(&workspace.anonymous, "boss", 10).await;
    throttled(&workspace.anonymous.log_in("boss", PASSWORD).await);
    Api::operator().delete(&format!("/operator/workspaces/{slug}/?now=true")).await.expect(204);
    // Where there is no workspace, nothing is counted, and nothing but that is told.
    for _ in 0..12 {
        workspace.anonymous.log_in("boss", WRONG).await.expect_detail(404, None);
    }
    let again = Workspace::with_slug(&slug).await;
    fail(&again.anonymous, "boss", 1).await;
}

#[tokio::test]
async fn windows_end_and_one_address_cannot_lock_a_user_out() {
    // "5 minutes" are three seconds here.
    let (instance, _state) = Instance::new_with(&[("LOGIN_WINDOW_SECONDS", "3")]).await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    let from = |number: usize| workspace.anonymous.from_address(&format!("192.0.2.{number}"));
    from(2).log_in("boss", PASSWORD).await.expect(200);
    // One address fails as often as its windows let it: more than the hundred of a name's hour.
    let (failures, refusals) = (Cell::new(0), Cell::new(0));
    eventually_within(Duration::from_secs(180), "a hundred failures and more", || async {
        let api = from(1);
        for reply in join_all((0..12).map(|_| api.log_in("boss", WRONG))).await {
            if reply.status == 403 {
                failures.set(failures.get() + 1);
            } else {
                assert!((1..=3).contains(&throttled(&reply)), "until the window ends");
                refusals.set(refusals.get() + 1);
            }
        }
        (failures.get() > 110).then_some(())
    })
    .await;
    assert!(refusals.get() > 0);
    // Its share of the hundred is 20; others make them full.
    for number in 3..11 {
        fail(&from(number), "boss", 10).await;
    }
    for number in [1, 11] {
        let seconds = throttled(&from(number).log_in("boss", PASSWORD).await);
        assert!((4..=3600).contains(&seconds), "{seconds}");
    }
    // Strangers fill no counter of an address that the user logged in from; its own failures do.
    fail(&from(2), "boss", 9).await;
    from(2).log_in("boss", PASSWORD).await.expect(200);
    eventually_within(Duration::from_secs(120), "the address's own limit", || async {
        let api = from(2);
        let replies = join_all((0..12).map(|_| api.log_in("boss", WRONG))).await;
        replies.iter().any(|reply| reply.status == 429).then_some(())
    })
    .await;
    workspace.session().get("/api/status/").await.expect(200);
    workspace.admin.get("/api/status/").await.expect(200);
    fail(&from(12), "somebody-else", 1).await;
}

#[tokio::test]
async fn guesses_at_once_are_counted_one_by_one() {
    let workspace = Workspace::new().await;
    workspace.user_with("alice", &json!({})).await;
    // An address that they logged in from: as strangers, not so many could wait for their hashing.
    let from_home = workspace.anonymous.from_address("192.0.2.7");
    for username in ["alice", "boss"] {
        from_home.log_in(username, PASSWORD).await.expect(200);
    }
    let at_once = async |username: &'static str, password: &'static str, times: usize| {
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
    // Those who know the password are not kept from it by each other.
    assert_eq!(at_once("boss", PASSWORD, 12).await, [200; 12]);
    // Of another one: a success clears the pair when its object hears of it, which is after the
    // answer.
    let statuses = at_once("alice", WRONG, 30).await;
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
    throttled(&alice.post("/api/auth/change-password/", &right).await);
    throttled(
        &alice
            .patch("/api/iam/users/-/", &json!({"password": PASSWORD, "email": "new@example.com"}))
            .await,
    );
    throttled(&workspace.anonymous.log_in("alice", PASSWORD).await);
    // The session lives on, and from elsewhere the password can be changed.
    assert_eq!(alice.get("/api/iam/users/-/").await.expect(200)["email"], "alice@example.com");
    alice.from_address("192.0.2.9").post("/api/auth/change-password/", &right).await.expect(200);
}

#[tokio::test]
async fn what_is_no_guess_does_not_count() {
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
async fn who_may_not_log_in_takes_the_same_work() {
    let workspace = Workspace::new().await;
    workspace.user_with("gone", &json!({"is_active": false})).await;
    let log = Path::new(&instance_setting("FARHAND_STATE_DIR")).join("worker.log");
    // The Worker writes to its log how many rounds of hashing each check took.
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
async fn ceilings_of_a_network_and_of_a_workspace() {
    let ceilings = [("LOGIN_FAILURES_PER_SITE", "5"), ("LOGIN_FAILURES_PER_WORKSPACE", "8")];
    let (instance, _state) = Instance::new_with(&ceilings).await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    let from = |address: &str| workspace.anonymous.from_address(address);
    from("192.0.2.1").log_in("boss", PASSWORD).await.expect(200);
    for network in 0..5 {
        fail(&from(&format!("2001:db8:0:{network}::1")), &format!("user{network}"), 1).await;
    }
    throttled(&from("2001:db8:0:ffff::1").log_in("boss", PASSWORD).await);
    from("2001:db8:1::1").log_in("boss", PASSWORD).await.expect(200);
    for host in 0..3 {
        fail(&from(&format!("198.51.100.{host}")), "boss", 1).await;
    }
    // The workspace's ceiling is the same for names that exist and names that do not.
    for username in ["boss", "nobody-here"] {
        let seconds = throttled(&from("198.51.100.9").log_in(username, PASSWORD).await);
        assert!((1..=300).contains(&seconds), "{seconds}");
    }
    // Known addresses are no strangers: they are let in, and their failures do not count.
    fail(&from("192.0.2.1"), "boss", 2).await;
    from("192.0.2.1").log_in("boss", PASSWORD).await.expect(200);
    // Nor are callers with a credential: they prove their current password from any address.
    let change = json!({"password": PASSWORD, "new_password": "an entirely other one"});
    workspace
        .admin
        .from_address("198.51.100.9")
        .post("/api/auth/change-password/", &change)
        .await
        .expect(200);
    let other = Workspace::made_by(&instance.operator(), "other").await;
    fail(&other.anonymous.from_address("198.51.100.9"), "boss", 1).await;
}

#[tokio::test]
async fn logins_that_wait_for_their_hashing_hold_up_no_other_request() {
    // Each hashing takes a second or more.
    let (instance, _state) = Instance::new_with(&[("PBKDF2_ITERATIONS", "2000000")]).await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    let home = workspace.anonymous.from_address("192.0.2.1");
    home.log_in("boss", PASSWORD).await.expect(200);
    let (ended, refused) = (Cell::new(0), Cell::new(0));
    let bodies = RefCell::new(BTreeMap::<String, Vec<String>>::new());
    let strangers = join_all((0..24).map(|number: usize| {
        let api = workspace.anonymous.from_address(&format!("2001:db8:{number:x}::1"));
        let username = if number.is_multiple_of(2) { "boss" } else { "nobody-here" };
        let (ended, refused, bodies) = (&ended, &refused, &bodies);
        async move {
            let reply = api.log_in(username, WRONG).await;
            if reply.status == 429 {
                throttled(&reply);
                bodies
                    .borrow_mut()
                    .entry(reply.text.clone())
                    .or_default()
                    .push(username.to_owned());
                refused.set(refused.get() + 1);
            } else {
                reply.expect_fields(403, &["non_field_errors"]);
                ended.set(ended.get() + 1);
            }
        }
    }));
    let others = async {
        eventually("a full queue", || async { (refused.get() > 0).then_some(()) }).await;
        workspace.admin.get("/api/events/commands/").await.expect(200);
        assert!(ended.get() < 2, "a read waited for {} hashings", ended.get());
        // The user's own login, from an address that they logged in from before, waits for the one
        // that runs alone.
        home.log_in("boss", PASSWORD).await.expect(200);
        assert!(ended.get() < 6, "a known address waited for {} hashings", ended.get());
    };
    join(strangers, others).await;
    // One hashed, eight waited. A refusal is the same for a name that exists and one that does not.
    assert!(ended.get() >= 1 && refused.get() >= 24 - 9, "{} {}", ended.get(), refused.get());
    let bodies = bodies.into_inner();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    let names = bodies.into_values().next().unwrap();
    assert!(
        ["boss", "nobody-here"].iter().all(|name| names.iter().any(|other| other == name)),
        "{names:?}"
    );
}

#[tokio::test]
async fn a_login_that_was_cut_off_leaves_its_place() {
    let (instance, _state) = Instance::new_with(&[("PBKDF2_ITERATIONS", "2000000")]).await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
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
    eventually("a free place", || async {
        (stranger.log_in("boss", PASSWORD).await.status == 200).then_some(())
    })
    .await;
}
