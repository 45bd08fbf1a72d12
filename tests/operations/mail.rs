//! Mail, on its way out: through Cloudflare's binding and over SMTP. What asks for one here is the
//! reset of a password.

use std::path::Path;
use std::time::Duration;

use farhand_tests::client::{PASSWORD, unique};
use farhand_tests::mail::{Mail, mail_to};
use farhand_tests::smtp::{self, SmtpServer, mail_of};
use farhand_tests::{Api, Instance, setting_of_instance};
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

/// How long it may take until a mail is tried again, after a server that let us wait.
const TRIED_AGAIN_WITHIN: Duration = Duration::from_secs(120);

/// Makes a workspace whose superuser has this address, and has a mail sent there; returns what its
/// link begins with.
async fn cause_mail(operator: &Api, address: &str) -> String {
    let slug = unique("t");
    let admin = json!({"username": "boss", "email": address, "password": PASSWORD});
    let made = operator
        .post("/operator/workspaces/", &json!({"slug": slug, "admin": admin}))
        .await
        .expect(201);
    let anonymous = operator.anonymous().under(&format!("{slug}.local.localhost"));
    let asked = anonymous.post("/api/auth/reset-password/", &json!({"email": address})).await;
    assert_eq!(asked.expect(200), Value::Null);
    format!("{}/api/auth/reset-password/confirm/", made["base_url"].as_str().unwrap())
}

/// Asserts that the mail is the one that was caused.
#[track_caller]
fn check(mail: &Mail, address: &str, link: &str) {
    assert_eq!((mail.from.as_str(), mail.to.as_str()), ("farhand@localhost", address));
    assert!(!mail.subject.is_empty());
    assert!(mail.link().starts_with(link), "{}", mail.link());
}

/// Asserts the headers that are our own to make.
#[track_caller]
fn check_headers(mail: &Mail) {
    let id = mail.header("Message-ID");
    let id = id.strip_prefix('<').and_then(|id| id.strip_suffix("@localhost>"));
    assert!(id.is_some_and(|id| Uuid::parse_str(id).is_ok()), "{}", mail.raw);
    assert!(mail.header("Date").ends_with(" +0000"), "{}", mail.raw);
    assert_eq!(mail.header("MIME-Version"), "1.0");
    assert_eq!(mail.header("Content-Type"), "text/plain; charset=utf-8");
}

/// The variables that name a server's port and the account there.
fn account(port: &str) -> [(&str, &str); 4] {
    [
        ("SMTP_HOST", "localhost"),
        ("SMTP_PORT", port),
        ("SMTP_USERNAME", smtp::USERNAME),
        ("SMTP_PASSWORD", smtp::PASSWORD),
    ]
}

/// Starts an instance that hands its mails to a server, whose certificate it trusts or not.
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
async fn without_an_smtp_server_cloudflare_sends_it() {
    let address = format!("{}@example.com", unique("boss"));
    let link = cause_mail(&Api::operator(), &address).await;
    let log = Path::new(&setting_of_instance("FARHAND_STATE_DIR")).join("worker.log");
    check(&mail_to(&log, &address).await, &address, &link);
}

#[tokio::test]
async fn over_starttls_and_again_where_that_makes_sense() {
    let [good, later, cut, gone] =
        ["good", "later", "cut", "gone"].map(|name| format!("{name}@example.com"));
    let mut server =
        SmtpServer::with_account(&["--later", &later, "--cut", &cut, "--refuse", &gone]).await;
    let (instance, _folder) = instance_for(&server, true, &[]).await;
    let operator = instance.operator();

    let link = cause_mail(&operator, &good).await;
    let event = server.next("mail").await;
    assert_eq!((&event["from"], &event["to"]), (&json!("farhand@localhost"), &json!([good])));
    assert_eq!((&event["secure"], &event["user"]), (&json!(true), &json!(smtp::USERNAME)));
    let mail = mail_of(&event);
    check(&mail, &good, &link);
    check_headers(&mail);

    // One that is refused for good comes first, so that it would have come again before the others
    // did.
    cause_mail(&operator, &gone).await;
    assert_eq!(server.next("recipient").await["answer"], 550);
    cause_mail(&operator, &cut).await;
    let link = cause_mail(&operator, &later).await;
    let mut events = Vec::new();
    while events
        .iter()
        .filter(|event: &&Value| event["answer"] == 250 && event["event"] == "mail")
        .count()
        < 2
    {
        events.extend(server.next_within(TRIED_AGAIN_WITHIN, "mail").await);
    }
    assert!(events.iter().all(|event| event["to"] != json!(gone)), "{events:?}");
    for (address, expected) in
        [(&later, [json!(451), json!(250)]), (&cut, [Value::Null, json!(250)])]
    {
        let is_mail = |event: &&Value| event["event"] == "mail" && event["to"] == json!([address]);
        let tries: Vec<Value> = events.iter().filter(is_mail).cloned().collect();
        assert_eq!(answers(&tries), expected.iter().collect::<Vec<_>>());
        // The very same mail, Message-ID and all; of the one that was cut off the server has the
        // beginning.
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
    check(&mail_of(last), &later, &link);
    // Neither the password nor what a mail says is in the log.
    let log = std::fs::read_to_string(instance.state.join("worker.log")).unwrap();
    assert!(!log.contains(smtp::PASSWORD) && !log.contains(&link), "{log}");
}

#[tokio::test]
async fn a_mail_survives_the_end_of_all_that_was_to_send_it() {
    let address = "boss@example.com";
    let mut server = SmtpServer::with_account(&["--later", address]).await;
    let (instance, folder) = instance_for(&server, true, &[]).await;
    let link = cause_mail(&instance.operator(), address).await;
    assert_eq!(server.next("mail").await["answer"], 451);
    instance.kill().await;
    // Nobody asks again: what was stored is enough. The link leads to where the service is now.
    let port = server.port.to_string();
    let trusted = ("NODE_EXTRA_CA_CERTS", server.certificate.to_str().unwrap());
    let instance =
        Instance::restart_with(folder.path(), &[&[trusted][..], &account(&port)].concat()).await;
    let events = server.next_within(TRIED_AGAIN_WITHIN, "mail").await;
    let link = link.replace(
        link.split('/').nth(2).unwrap().rsplit(':').next().unwrap(),
        instance.url.rsplit(':').next().unwrap(),
    );
    check(&mail_of(events.last().unwrap()), address, &link);
}

#[tokio::test]
async fn over_tls_with_auth_login_and_not_waiting_for_a_silent_server() {
    let mut server = SmtpServer::with_account(&["--tls", "--auth", "LOGIN", "--silent", "1"]).await;
    let (instance, _folder) = instance_for(&server, true, &[("SMTP_SECURITY", "tls")]).await;
    let link = cause_mail(&instance.operator(), "boss@example.com").await;
    let events = server.next_within(TRIED_AGAIN_WITHIN, "mail").await;
    let came = events.iter().filter(|event| event["event"] == "connection").count();
    assert_eq!(came, 2, "{events:?}");
    let event = events.last().unwrap();
    assert_eq!((&event["secure"], &event["user"]), (&json!(true), &json!(smtp::USERNAME)));
    assert_eq!(event["answer"], 250);
    check(&mail_of(event), "boss@example.com", &link);
}

#[tokio::test]
async fn nothing_is_said_in_clear_or_to_a_stranger() {
    // First it offers no encryption, then with a certificate that nobody vouches for.
    let mut server = SmtpServer::with_account(&["--clear", "1"]).await;
    let (instance, _folder) = instance_for(&server, false, &[]).await;
    cause_mail(&instance.operator(), "boss@example.com").await;
    let mut events = Vec::new();
    for _ in 0..3 {
        events.extend(server.next_within(TRIED_AGAIN_WITHIN, "connection").await);
    }
    let verbs: Vec<&Value> =
        events.iter().map(|event| &event["verb"]).filter(|verb| !verb.is_null()).collect();
    assert_eq!(verbs, ["EHLO", "EHLO", "STARTTLS"], "{events:?}");
}
