//! Received mails: from the SMTP server, or from the local sink of the `send_email` binding.

use std::path::Path;

use quoted_printable::ParseMode;
use serde_json::Value;

use crate::{Reply, Workspace, eventually, instance_setting, secrets};

/// The sink logs this line before the headers of each mail.
const SINK_LOG_PREFIX: &str = "send_email binding called with MessageBuilder:";

/// A received mail.
#[derive(Clone, Debug)]
pub struct Mail {
    pub from: String,
    pub to: String,
    pub subject: String,
    /// The decoded text.
    pub text: String,
    /// The whole mail. Mails of the sink have only the headers here.
    pub raw: String,
}

impl Mail {
    /// Parses a mail with one quoted-printable part.
    pub fn parse(raw: &str) -> Self {
        let (_, body) = raw.split_once("\r\n\r\n").expect("a mail has headers and a body");
        let text = quoted_printable::decode(body, ParseMode::Strict).unwrap();
        Self::from_headers(raw, String::from_utf8(text).unwrap())
    }

    fn from_headers(raw: &str, text: String) -> Self {
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

    /// The value of a header that occupies one line.
    pub fn header(&self, name: &str) -> String {
        let prefix = format!("{name}: ");
        let mut lines = self.raw.lines().take_while(|line| !line.is_empty());
        let value = lines.find_map(|line| line.strip_prefix(&prefix));
        value.unwrap_or_else(|| panic!("the mail has no header {name}: {}", self.raw)).to_owned()
    }

    /// The only link in the text. Its key is recorded as a secret.
    pub fn link(&self) -> &str {
        let mut links = self.text.split_whitespace().filter(|word| word.contains("://"));
        let link = links.next().unwrap_or_else(|| panic!("the mail has no link: {}", self.text));
        assert_eq!(links.next(), None, "{}", self.text);
        secrets::record("reset_key", key_of(link));
        link
    }
}

/// The key in the link, or in the path, of a password reset.
pub fn key_of(link: &str) -> &str {
    link.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

/// Performs `request` for a password reset, and waits for the mail. Returns the path of the
/// link in it. The user belongs to a workspace on the shared instance.
pub async fn reset_link(
    workspace: &Workspace,
    email: &str,
    request: impl Future<Output = Reply>,
) -> String {
    let log = Path::new(&instance_setting("FARHAND_STATE_DIR")).join("worker.log");
    let base = format!("://{}.", workspace.slug);
    let mine = || -> Vec<Mail> {
        mails_to(&log, email).into_iter().filter(|mail| mail.text.contains(&base)).collect()
    };
    let before = mine().len();
    assert_eq!(request.await.expect(200), Value::Null);
    let mail = eventually("the mail", || async { mine().into_iter().nth(before) }).await;
    let link = mail.link();
    let path = link.find("/api/").unwrap_or_else(|| panic!("{link} is not a link to the API"));
    link[path..].to_owned()
}

/// All mails to an address that the sink has received so far. The sink's log names their files.
pub fn mails_to(log_file: &Path, address: &str) -> Vec<Mail> {
    let log = std::fs::read_to_string(log_file).unwrap();
    let wanted = format!("\nTo: {address}\n");
    let calls = log.split(SINK_LOG_PREFIX).skip(1).filter_map(|call| {
        // The headers, an empty line, the file name. The sink may still be writing the end of the
        // log.
        let (headers, rest) = call.trim_start().split_once("\n\n")?;
        let (file, _) = rest.strip_prefix("Text: ")?.split_once('\n')?;
        let is_wanted = format!("{headers}\n").contains(&wanted);
        // The mail contains a link with a secret key, so no other user of this machine may read it.
        let state = log_file
            .parent()
            .and_then(|folder| folder.canonicalize().ok())
            .expect("the log is in a folder");
        assert!(
            Path::new(file).starts_with(&state),
            "{file} is outside the state folder {}",
            state.display()
        );
        is_wanted.then(|| Mail::from_headers(headers, std::fs::read_to_string(file).unwrap()))
    });
    calls.collect()
}

/// Waits for the first mail with a link to an address: notices have none. `log` is `worker.log` in
/// an instance's state folder.
pub async fn mail_to(log: &Path, address: &str) -> Mail {
    let has_link = |mail: &Mail| mail.text.contains("://");
    eventually("the mail", || async { mails_to(log, address).into_iter().find(has_link) }).await
}
