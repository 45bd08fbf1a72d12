//! Mails, as a test reads them.

use std::path::Path;

use quoted_printable::ParseMode;
use serde_json::Value;

use crate::{Reply, Workspace, eventually, secrets, setting_of_instance};

/// What the local sink of the `send_email` binding says in the log before a mail's headers.
const CALLED: &str = "send_email binding called with MessageBuilder:";

/// A mail that arrived.
#[derive(Clone, Debug)]
pub struct Mail {
    /// The sender's address.
    pub from: String,
    /// The recipient's address.
    pub to: String,
    /// The subject.
    pub subject: String,
    /// The text, decoded.
    pub text: String,
    /// All of it as it arrived, or what the sink has of it.
    pub raw: String,
}

impl Mail {
    /// Reads a mail of one part in quoted-printable.
    pub fn parse(raw: &str) -> Self {
        let (_, body) = raw.split_once("\r\n\r\n").expect("a mail has headers and a body");
        let text = quoted_printable::decode(body, ParseMode::Strict).unwrap();
        Self::with_headers_of(raw, String::from_utf8(text).unwrap())
    }

    fn with_headers_of(raw: &str, text: String) -> Self {
        let mut mail = Self {
            from: String::new(),
            to: String::new(),
            subject: String::new(),
            text,
            raw: raw.to_owned(),
        };
        let address =
            |value: String| value.trim_start_matches('<').trim_end_matches('>').to_owned();
        mail.from = address(mail.header("From"));
        mail.to = address(mail.header("To"));
        mail.subject = mail.header("Subject");
        mail
    }

    /// The value of a header that stands on one line.
    pub fn header(&self, name: &str) -> String {
        let prefix = format!("{name}: ");
        let mut lines = self.raw.lines().take_while(|line| !line.is_empty());
        let value = lines.find_map(|line| line.strip_prefix(&prefix));
        value.unwrap_or_else(|| panic!("no {name}: {}", self.raw)).to_owned()
    }

    /// The only link in the text.
    pub fn link(&self) -> &str {
        let mut links = self.text.split_whitespace().filter(|word| word.contains("://"));
        let link = links.next().unwrap_or_else(|| panic!("no link: {}", self.text));
        assert_eq!(links.next(), None, "{}", self.text);
        secrets::note("reset_key", key_of(link));
        link
    }
}

/// The key in a link of a password reset, or in its path.
pub fn key_of(link: &str) -> &str {
    link.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

/// The path of the link in the mail for a reset that is asked for now, for the address of a user of
/// a workspace on the instance under test.
pub async fn reset_link(
    workspace: &Workspace,
    email: &str,
    ask: impl Future<Output = Reply>,
) -> String {
    let log = Path::new(&setting_of_instance("FARHAND_STATE_DIR")).join("worker.log");
    let base = format!("://{}.", workspace.slug);
    let mine = || -> Vec<Mail> {
        mails_to(&log, email).into_iter().filter(|mail| mail.text.contains(&base)).collect()
    };
    let before = mine().len();
    assert_eq!(ask.await.expect(200), Value::Null);
    let mail = eventually("the mail", || async { mine().into_iter().nth(before) }).await;
    let link = mail.link();
    let path = link.find("/api/").unwrap_or_else(|| panic!("{link} leads nowhere"));
    link[path..].to_owned()
}

/// All mails to an address that the local sink of the `send_email` binding took so far: its log
/// names their files.
pub fn mails_to(log_file: &Path, address: &str) -> Vec<Mail> {
    let log = std::fs::read_to_string(log_file).unwrap();
    let wanted = format!("\nTo: {address}\n");
    let calls = log.split(CALLED).skip(1).filter_map(|call| {
        // The headers, an empty line, the file's name. The log may not be written to its end yet.
        let (headers, rest) = call.trim_start().split_once("\n\n")?;
        let (file, _) = rest.strip_prefix("Text: ")?.split_once('\n')?;
        let is_wanted = format!("{headers}\n").contains(&wanted);
        // It has a link in it, so it is not for others of this machine to read.
        let state = log_file
            .parent()
            .and_then(|folder| folder.canonicalize().ok())
            .expect("the log is in a folder");
        assert!(Path::new(file).starts_with(&state), "{file} is not in {}", state.display());
        is_wanted.then(|| Mail::with_headers_of(headers, std::fs::read_to_string(file).unwrap()))
    });
    calls.collect()
}

/// The first mail to an address that the local sink of the `send_email` binding takes. The log is
/// `worker.log` in an instance's state folder.
pub async fn mail_to(log: &Path, address: &str) -> Mail {
    eventually("the mail", || async { mails_to(log, address).into_iter().next() }).await
}
