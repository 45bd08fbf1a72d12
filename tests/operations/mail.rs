//! Outgoing mail, through Cloudflare's binding and over SMTP. The tests cause it with password
//! resets.

use std::path::Path;
use std::time::Duration;

use farhand_tests::client::{PASSWORD, unique};
use farhand_tests::mail::{Mail, mail_to};
use farhand_tests::people::{USERS, item_path};
use farhand_tests::smtp::{self, SmtpServer, mail_of};
use farhand_tests::{Api, Instance, Workspace, eventually, instance_setting};
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

const TOKENS: &str = "/api/auth/tokens/";
/// Time limit for a mail to be retried after a server did not respond.
const RETRY_TIMEOUT: Duration = Duration::from_secs(120);

/// Creates a workspace whose superuser has this address, and requests a password reset. Returns the
/// beginning of the link in the mail.
async fn request_reset(operator: &Api, address: &str) -> String {
    let slug = unique("t");
    let admin = json!({"username": "boss", "email": address, "password": PASSWORD});
    let made = operator
        .post("/operator/workspaces/", &json!({"slug": slug, "admin": admin}))
        .await
        .expect(201);
    let anonymous = operator.anonymous().with_host(&format!("{slug}.local.localhost"));
    let reply = anonymous.post("/api/auth/reset-password/", &json!({"email": address})).await;
    assert_eq!(reply.expect(200), Value::Null);
    format!("{}/api/auth/reset-password/confirm/", made["base_url"].as_str().unwrap())
}

/// Asserts that a mail is the requested one.
#[track_caller]
fn assert_mail(mail: &Mail, address: &str, link: &str) {
    assert_eq!((mail.from.as_str(), mail.to.as_str()), ("farhand@localhost", address));
    assert!(!mail.subject.is_empty());
    assert!(mail.link().starts_with(link), "{}", mail.link());
}

/// Asserts the headers that the service itself generates.
#[track_caller]
fn assert_headers(mail: &Mail) {
    let id = mail.header("Message-ID");
    let id = id.strip_prefix('<').and_then(|id| id.strip_suffix("@localhost>"));
    assert!(id.is_some_and(|id| Uuid::parse_str(id).is_ok()), "{}", mail.raw);
    assert!(mail.header("Date").ends_with(" +0000"), "{}", mail.raw);
    assert_eq!(mail.header("MIME-Version"), "1.0");
    assert_eq!(mail.header("Content-Type"), "text/plain; charset=utf-8");
}

/// The variables for a server's port and account.
fn account(port: &str) -> [(&str, &str); 4] {
    [
        ("SMTP_HOST", "localhost"),
        ("SMTP_PORT", port),
        ("SMTP_USERNAME", smtp::USERNAME),
        ("SMTP_PASSWORD", smtp::PASSWORD),
    ]
}

/// Starts an instance that sends mails to a server, and trusts its certificate or not.
async fn instance_for(
    server: &SmtpServer,
    trusts: bool,
    more: &[(&str, &str)],
) -> (Instance, TempDir) {
    let port = server.port.to_string();
    let mut variables = account(&port).to_vec();
    if trusts {
        variables.push(("NODE_EXTRA_CA_CERTS", server.certificate.to_str().unwrap()));
    }
    variables.extend(more);
    Instance::new_with(&variables).await
}

fn answers(events: &[Value]) -> Vec<&Value> {
    events.iter().map(|event| &event["answer"]).collect()
}

#[tokio::test]
async fn without_smtp_settings_cloudflare_sends_the_mail() {
    let address = format!("{}@example.com", unique("boss"));
    let link = request_reset(&Api::operator(), &address).await;
    let log = Path::new(&instance_setting("FARHAND_STATE_DIR")).join("worker.log");
    assert_mail(&mail_to(&log, &address).await, &address, &link);
}

#[tokio::test]
async fn starttls_is_used_and_temporary_failures_are_retried() {
    let [good, later, cut, gone] =
        ["good", "later", "cut", "gone"].map(|name| format!("{name}@example.com"));
    let mut server =
        SmtpServer::with_account(&["--later", &later, "--cut", &cut, "--refuse", &gone]).await;
    let (instance, _folder) = instance_for(&server, true, &[]).await;
    let operator = instance.operator();

    let link = request_reset(&operator, &good).await;
    let event = server.next("mail").await;
    assert_eq!((&event["from"], &event["to"]), (&json!("farhand@localhost"), &json!([good])));
    assert_eq!((&event["secure"], &event["user"]), (&json!(true), &json!(smtp::USERNAME)));
    let mail = mail_of(&event);
    assert_mail(&mail, &good, &link);
    assert_headers(&mail);

    // The permanently refused mail is sent first. If the service retried it, the retry would arrive
    // before the retries of the other mails.
    request_reset(&operator, &gone).await;
    assert_eq!(server.next("recipient").await["answer"], 550);
    request_reset(&operator, &cut).await;
    let link = request_reset(&operator, &later).await;
    let mut events = Vec::new();
    while events
        .iter()
        .filter(|event: &&Value| event["answer"] == 250 && event["event"] == "mail")
        .count()
        < 2
    {
        events.extend(server.next_within(RETRY_TIMEOUT, "mail").await);
    }
    assert!(events.iter().all(|event| event["to"] != json!(gone)), "{events:?}");
    for (address, expected) in
        [(&later, [json!(451), json!(250)]), (&cut, [Value::Null, json!(250)])]
    {
        let is_mail = |event: &&Value| event["event"] == "mail" && event["to"] == json!([address]);
        let tries: Vec<Value> = events.iter().filter(is_mail).cloned().collect();
        assert_eq!(answers(&tries), expected.iter().collect::<Vec<_>>());
        // The retry is the same mail, with the same Message-ID. The server received only the
        // beginning of the interrupted mail.
        let [first, second] = [&tries[0], &tries[1]].map(|event| event["mime"].as_str().unwrap());
        assert!(
            first.contains("\r\nMessage-ID: ") && second.starts_with(first),
            "{first}\n{second}"
        );
    }
    let last = events
        .iter()
        .rfind(|event| event["event"] == "mail" && event["to"] == json!([later]))
        .unwrap();
    assert_mail(&mail_of(last), &later, &link);
    // The log contains neither the password nor the text of a mail.
    let log = std::fs::read_to_string(instance.state.join("worker.log")).unwrap();
    assert!(!log.contains(smtp::PASSWORD) && !log.contains(&link), "{log}");
}

/// Receives as many mails as expected, in any order, and asserts their recipients and subjects.
async fn expect_notices(server: &mut SmtpServer, expected: &[(&str, &str)]) -> Vec<Mail> {
    let mut mails = Vec::new();
    while mails.len() < expected.len() {
        let event = server.next("mail").await;
        if event["answer"] == 250 {
            mails.push(mail_of(&event));
        }
    }
    let mut received: Vec<_> =
        mails.iter().map(|mail| (mail.to.as_str(), mail.subject.as_str())).collect();
    let mut expected = expected.to_vec();
    received.sort_unstable();
    expected.sort_unstable();
    assert_eq!(received, expected, "{mails:?}");
    for mail in &mails {
        assert_headers(mail);
        assert_eq!(mail.text.trim_end().lines().count(), 1, "{}", mail.text);
        assert!(mail.text.contains("acme") && !mail.text.contains("://"), "{}", mail.text);
    }
    mails
}

const BOSS: &str = "boss@example.com";
const ALICE: &str = "alice@example.com";
const PASSWORD_SET: &str = "A Farhand password was set";
const SUPERUSER: &str = "A new Farhand superuser";
const TOKEN: &str = "A Farhand API token without limits";
const LOGIN: &str = "A Farhand login from a new network";

/// A mail that a test did not expect makes the next expectation fail.
#[tokio::test]
async fn acts_that_could_take_an_account_cause_mails() {
    let renamed = "alice@example.org";
    // The mail server is out of order at the first mail to the new address, and the request
    // succeeds nevertheless.
    let mut server = SmtpServer::with_account(&["--later", renamed]).await;
    let (instance, _folder) = instance_for(&server, true, &[]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let (session, token) = (workspace.session(), &workspace.admin);
    expect_notices(&mut server, &[(BOSS, TOKEN)]).await;

    // A token with a list causes no mail until it loses its list.
    let limited = json!({"name": "ci", "expires_at": null, "acl": {"read_only": true}});
    let limited = session.post(TOKENS, &limited).await.expect(201);
    let limited = item_path(TOKENS, &limited);
    session.patch(&limited, &json!({"name": "cd"})).await.expect(200);
    session.patch(&limited, &json!({"acl": null})).await.expect(200);
    expect_notices(&mut server, &[(BOSS, TOKEN)]).await;

    // A user is created by a session without a mail, and by a token with one.
    let user = |name: &str| json!({"username": name, "email": format!("{name}@example.com"), "password": PASSWORD});
    let alice = session.post(USERS, &user("alice")).await.expect(201);
    token.post(USERS, &user("bob")).await.expect(201);
    let mail = expect_notices(&mut server, &[(BOSS, "A new Farhand user")]).await.remove(0);
    assert!(mail.text.contains("bob") && !mail.text.contains(PASSWORD), "{}", mail.text);

    // The first login of a user, and logins from known networks, cause no mail. Of the logins from
    // new networks, the first one of a day does.
    // The service stores them after the response: `known` is the number of known addresses and
    // networks of alice and bob then.
    let stored = || instance.read_objects("Throttle", "SELECT address FROM known_addresses").len();
    let known_of_boss = stored();
    let log_in = async |username: &str, address: &str, known: usize| {
        let client = workspace.anonymous.from_address(address);
        client.log_in(username, PASSWORD).await.expect(200);
        eventually("the known networks", || async {
            (stored() == known_of_boss + known).then_some(())
        })
        .await;
    };
    log_in("alice", "192.0.2.1", 2).await;
    log_in("alice", "192.0.2.254", 3).await;
    log_in("alice", "192.0.2.1", 3).await;
    log_in("bob", "2001:db8:0:1::1", 5).await;
    log_in("bob", "2001:db8:0:2::1", 6).await;
    log_in("alice", "192.0.3.1", 8).await;
    let mail = expect_notices(&mut server, &[(ALICE, LOGIN)]).await.remove(0);
    assert!(mail.text.contains("192.0.3.1"), "{}", mail.text);
    log_in("alice", "198.51.100.1", 10).await;
    log_in("bob", "2001:db8:1::1", 12).await;
    expect_notices(&mut server, &[("bob@example.com", LOGIN)]).await;

    let path = format!("{USERS}{}/", alice["id"]);
    session.patch(&path, &json!({"email": renamed, "first_name": "A"})).await.expect(200);
    let changed = "A Farhand e-mail address was changed";
    expect_notices(&mut server, &[(ALICE, changed), (renamed, changed)]).await;
    session.patch(&path, &json!({"email": renamed, "first_name": "B"})).await.expect(200);
    session.patch(&path, &json!({"is_staff": true})).await.expect(200);
    session.patch(&path, &json!({"is_superuser": true})).await.expect(200);
    expect_notices(&mut server, &[(BOSS, SUPERUSER), (renamed, SUPERUSER)]).await;
    session.patch(&path, &json!({"is_superuser": false})).await.expect(200);

    // All superusers get a mail if a token sets a password.
    let password = json!({"password": "correct horse battery 7"});
    session.put("/api/users/users/alice/", &password).await.expect(200);
    expect_notices(&mut server, &[(renamed, PASSWORD_SET)]).await;
    token.put("/api/users/users/bob/", &password).await.expect(200);
    expect_notices(&mut server, &[("bob@example.com", PASSWORD_SET), (BOSS, PASSWORD_SET)]).await;
    // Another kind has its own limit: the fifth mail of a kind says that it is the last one.
    for number in 3..8 {
        let body = json!({"name": number.to_string(), "expires_at": null});
        session.post(TOKENS, &body).await.expect(201);
    }
    let mails = expect_notices(&mut server, &[(BOSS, TOKEN); 3]).await;
    let last = mails.iter().filter(|mail| mail.text.contains("last mail")).count();
    assert_eq!(last, 1, "{mails:?}");
    // The own password, without the current one.
    session.put("/api/users/users/boss/", &password).await.expect(200);
    expect_notices(&mut server, &[(BOSS, PASSWORD_SET)]).await;
}

#[tokio::test]
async fn a_mail_survives_a_crash_of_the_service() {
    let address = "boss@example.com";
    let mut server = SmtpServer::with_account(&["--later", address]).await;
    let (instance, folder) = instance_for(&server, true, &[]).await;
    let link = request_reset(&instance.operator(), address).await;
    assert_eq!(server.next("mail").await["answer"], 451);
    instance.kill().await;
    // The stored mail is sent without a new request. Its link has the service's new port.
    let port = server.port.to_string();
    let trusted = ("NODE_EXTRA_CA_CERTS", server.certificate.to_str().unwrap());
    let instance =
        Instance::restart_with(folder.path(), &[&[trusted][..], &account(&port)].concat()).await;
    let events = server.next_within(RETRY_TIMEOUT, "mail").await;
    let link = link.replace(
        link.split('/').nth(2).unwrap().rsplit(':').next().unwrap(),
        instance.url.rsplit(':').next().unwrap(),
    );
    assert_mail(&mail_of(events.last().unwrap()), address, &link);
}

#[tokio::test]
async fn tls_and_auth_login_work_and_silent_servers_time_out() {
    let mut server = SmtpServer::with_account(&["--tls", "--auth", "LOGIN", "--silent", "1"]).await;
    let (instance, _folder) = instance_for(&server, true, &[("SMTP_SECURITY", "tls")]).await;
    let link = request_reset(&instance.operator(), "boss@example.com").await;
    let events = server.next_within(RETRY_TIMEOUT, "mail").await;
    let connections = events.iter().filter(|event| event["event"] == "connection").count();
    assert_eq!(connections, 2, "{events:?}");
    let event = events.last().unwrap();
    assert_eq!((&event["secure"], &event["user"]), (&json!(true), &json!(smtp::USERNAME)));
    assert_eq!(event["answer"], 250);
    assert_mail(&mail_of(event), "boss@example.com", &link);
}

#[tokio::test]
async fn nothing_is_sent_unencrypted_or_to_untrusted_servers() {
    // The server offers no encryption at first, and then a certificate that the service does not
    // trust.
    let mut server = SmtpServer::with_account(&["--clear", "1"]).await;
    let (instance, _folder) = instance_for(&server, false, &[]).await;
    request_reset(&instance.operator(), "boss@example.com").await;
    let mut events = Vec::new();
    for _ in 0..3 {
        events.extend(server.next_within(RETRY_TIMEOUT, "connection").await);
    }
    let verbs: Vec<&Value> =
        events.iter().map(|event| &event["verb"]).filter(|verb| !verb.is_null()).collect();
    assert_eq!(verbs, ["EHLO", "EHLO", "STARTTLS"], "{events:?}");
}
