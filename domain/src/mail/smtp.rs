//! The client side of SMTP (RFC 5321), for sending one mail. The caller passes the bytes from the
//! server, and gets the next step.
//!
//! Credentials and the mail are never sent over an unencrypted connection. With
//! [`Security::StartTls`], the session continues only after [`SmtpStep::StartTls`].
//!
//! ```
//! use farhand_domain::mail::smtp::{MailWithEnvelope, SmtpStep, Security, SmtpSession};
//! let mail = MailWithEnvelope {
//!     from: "farhand@localhost".into(),
//!     to: "boss@example.com".into(),
//!     mime: "Subject: Hello\r\n".into(),
//! };
//! let mut session = SmtpSession::new(Security::StartTls, None, mail);
//! let next = session.receive(b"220 mx.example ESMTP\r\n");
//! assert_eq!(next, Ok(SmtpStep::Send("EHLO [127.0.0.1]\r\n".into())));
//! ```

use base64ct::{Base64, Encoding};

use crate::mail::message::MailFailure;
use crate::secret::Secret;

/// Maximum length of a server's reply, in bytes. A longer reply is an error.
const MAX_REPLY: usize = 16 * 1024;
/// Maximum number of characters of a reply that a [`MailFailure`] quotes.
const MAX_QUOTE: usize = 200;
/// EHLO needs a host name, but the Worker has none. All servers accept this form.
const EHLO: &str = "EHLO [127.0.0.1]\r\n";
/// Codes of replies about the sender's login. They are temporary failures, because the operator can
/// correct the login.
const NOT_AUTHENTICATED: [u16; 4] = [530, 534, 535, 538];

/// How the connection is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Security {
    /// TLS begins after the command STARTTLS.
    StartTls,
    /// TLS begins with the connection.
    Tls,
}

/// The login at the mail server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SmtpLogin {
    /// The username.
    pub username: String,
    /// The password.
    pub password: Secret,
}

/// The mail server of the deployment.
#[derive(Debug)]
pub struct SmtpServer {
    /// The host name.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// How the connection is encrypted.
    pub security: Security,
    /// The login; `None`: the server needs none.
    pub login: Option<SmtpLogin>,
}

/// A mail with its envelope. It has no `Debug`, because its text must not get into the log.
#[derive(Clone)]
pub struct MailWithEnvelope {
    /// The sender's address ([`crate::mail::message::is_address`]).
    pub from: String,
    /// The recipient's address ([`crate::mail::message::is_address`]).
    pub to: String,
    /// The text form of the mail, in lines that end with CR LF
    /// ([`crate::mail::message::MailMessage::mime`]).
    pub mime: String,
}

/// What to do with the connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SmtpStep {
    /// Read more: the reply is not complete.
    Read,
    /// Send this, then read.
    Send(String),
    /// Begin TLS, then send this, then read.
    StartTls(String),
    /// The server has accepted the mail. The session has ended.
    Delivered,
}

/// What the next reply of the server is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Greeting,
    PlainHello,
    StartTls,
    Hello,
    Username,
    Password,
    Authentication,
    Sender,
    Recipient,
    Data,
    Text,
}

/// An SMTP session that sends one mail.
pub struct SmtpSession {
    security: Security,
    login: Option<SmtpLogin>,
    mail: MailWithEnvelope,
    stage: Stage,
    received: Vec<u8>,
}

/// A complete reply of the server.
struct Reply {
    code: u16,
    lines: Vec<String>,
    /// The length in bytes.
    length: usize,
}

impl SmtpSession {
    /// A session on a new connection.
    pub fn new(security: Security, login: Option<SmtpLogin>, mail: MailWithEnvelope) -> Self {
        Self { security, login, mail, stage: Stage::Greeting, received: Vec::new() }
    }

    /// Takes bytes from the server, in pieces of any size, and returns the next step. Empty `bytes`
    /// mean that the server closed the connection.
    ///
    /// # Errors
    /// The server did not accept the mail. The session has ended.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<SmtpStep, MailFailure> {
        if bytes.is_empty() {
            return Err(self.broken("it was closed"));
        }
        self.received.extend_from_slice(bytes);
        let Some(reply) = Reply::read(&self.received)? else {
            if self.received.len() > MAX_REPLY {
                return Err(MailFailure::Temporary("the server's answer does not end".to_owned()));
            }
            return Ok(SmtpStep::Read);
        };
        // Each command waits for its reply. Bytes that arrived before TLS must not count as a reply
        // after it.
        let is_last = self.stage == Stage::Text;
        if reply.length != self.received.len() && !is_last {
            return Err(MailFailure::Temporary(
                "the server answered more than it was asked".to_owned(),
            ));
        }
        self.received.clear();
        self.step(&reply)
    }

    /// The failure if the connection broke. `cause`: the error.
    pub fn broken(&self, cause: &str) -> MailFailure {
        MailFailure::Temporary(format!("the connection failed at {}: {cause}", self.stage_name()))
    }

    fn step(&mut self, reply: &Reply) -> Result<SmtpStep, MailFailure> {
        let is_wanted = match self.stage {
            Stage::Username | Stage::Password => reply.code == 334,
            Stage::Data => reply.code == 354,
            _ => (200..300).contains(&reply.code),
        };
        if !is_wanted {
            return Err(self.refusal(reply));
        }
        let (stage, next) = match self.stage {
            Stage::Greeting if self.security == Security::StartTls => {
                (Stage::PlainHello, SmtpStep::Send(EHLO.to_owned()))
            }
            Stage::Greeting => (Stage::Hello, SmtpStep::Send(EHLO.to_owned())),
            Stage::PlainHello if reply.offers("STARTTLS", None) => {
                (Stage::StartTls, SmtpStep::Send("STARTTLS\r\n".to_owned()))
            }
            Stage::PlainHello => {
                return Err(MailFailure::Temporary(
                    "the server does not offer STARTTLS".to_owned(),
                ));
            }
            Stage::StartTls => (Stage::Hello, SmtpStep::StartTls(EHLO.to_owned())),
            Stage::Hello => self.authenticate(reply)?,
            Stage::Username => (Stage::Password, self.encoded(|login| login.username.clone())),
            Stage::Password => {
                (Stage::Authentication, self.encoded(|login| login.password.expose().to_owned()))
            }
            Stage::Authentication => self.sender(),
            Stage::Sender => {
                (Stage::Recipient, SmtpStep::Send(format!("RCPT TO:<{}>\r\n", self.mail.to)))
            }
            Stage::Recipient => (Stage::Data, SmtpStep::Send("DATA\r\n".to_owned())),
            Stage::Data => (Stage::Text, SmtpStep::Send(stuffed(&self.mail.mime))),
            Stage::Text => (Stage::Text, SmtpStep::Delivered),
        };
        self.stage = stage;
        Ok(next)
    }

    fn sender(&self) -> (Stage, SmtpStep) {
        (Stage::Sender, SmtpStep::Send(format!("MAIL FROM:<{}>\r\n", self.mail.from)))
    }

    /// Chooses the next command from the extensions in the reply to EHLO. The connection is
    /// encrypted.
    fn authenticate(&self, reply: &Reply) -> Result<(Stage, SmtpStep), MailFailure> {
        let Some(login) = &self.login else { return Ok(self.sender()) };
        if reply.offers("AUTH", Some("PLAIN")) {
            let both = Base64::encode_string(
                format!("\0{}\0{}", login.username, login.password.expose()).as_bytes(),
            );
            Ok((Stage::Authentication, SmtpStep::Send(format!("AUTH PLAIN {both}\r\n"))))
        } else if reply.offers("AUTH", Some("LOGIN")) {
            Ok((Stage::Username, SmtpStep::Send("AUTH LOGIN\r\n".to_owned())))
        } else {
            Err(MailFailure::Temporary(
                "the server offers neither AUTH PLAIN nor AUTH LOGIN".to_owned(),
            ))
        }
    }

    /// Replies to a prompt of AUTH LOGIN with a part of the login.
    fn encoded(&self, value: impl FnOnce(&SmtpLogin) -> String) -> SmtpStep {
        let value = self.login.as_ref().map(value).unwrap_or_default();
        SmtpStep::Send(format!("{}\r\n", Base64::encode_string(value.as_bytes())))
    }

    /// The name of the stage, for the log.
    fn stage_name(&self) -> &'static str {
        match self.stage {
            Stage::Greeting => "the greeting",
            Stage::PlainHello => "EHLO",
            // The runtime does not always report that TLS failed.
            Stage::Hello => "EHLO over TLS",
            Stage::StartTls => "STARTTLS",
            Stage::Username | Stage::Password | Stage::Authentication => "AUTH",
            Stage::Sender => "MAIL",
            Stage::Recipient => "RCPT",
            Stage::Data => "DATA",
            Stage::Text => "the end of the mail",
        }
    }

    fn refusal(&self, reply: &Reply) -> MailFailure {
        let is_about_mail =
            matches!(self.stage, Stage::Sender | Stage::Recipient | Stage::Data | Stage::Text);
        let got_secret = matches!(
            self.stage,
            Stage::Username | Stage::Password | Stage::Authentication | Stage::Text
        );
        // The reply to a secret may repeat the secret.
        let words = if got_secret { reply.enhanced_code() } else { reply.quote() };
        let text = format!("at {} the server answered {} {words}", self.stage_name(), reply.code)
            .trim_end()
            .to_owned();
        if is_about_mail
            && (500..600).contains(&reply.code)
            && !NOT_AUTHENTICATED.contains(&reply.code)
        {
            MailFailure::Permanent(text)
        } else {
            MailFailure::Temporary(text)
        }
    }
}

impl Reply {
    /// Reads a reply of one or more lines. Returns `None` if the reply is not complete yet.
    fn read(bytes: &[u8]) -> Result<Option<Self>, MailFailure> {
        let mut lines = Vec::new();
        let mut length = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            length += line.len();
            let text = String::from_utf8_lossy(line);
            let Some(text) = text.strip_suffix('\n') else { return Ok(None) };
            let text = text.trim_end_matches('\r');
            let code = text.get(..3).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
            let code = code.and_then(|digits| digits.parse().ok());
            let (Some(code), separator) = (code, text.as_bytes().get(3)) else {
                return Err(MailFailure::Temporary("the server does not speak SMTP".to_owned()));
            };
            lines.push(text.get(4..).unwrap_or_default().to_owned());
            if separator != Some(&b'-') {
                return Ok(Some(Self { code, lines, length }));
            }
        }
        Ok(None)
    }

    /// Whether a reply to EHLO has an extension and, if given, its parameter.
    fn offers(&self, extension: &str, parameter: Option<&str>) -> bool {
        self.lines.iter().skip(1).any(|line| {
            let mut words = line.split([' ', '=']);
            words.next().is_some_and(|word| word.eq_ignore_ascii_case(extension))
                && parameter
                    .is_none_or(|wanted| words.any(|word| word.eq_ignore_ascii_case(wanted)))
        })
    }

    /// The last line of the reply, for the log.
    fn quote(&self) -> String {
        let line = self.lines.last().map(String::as_str).unwrap_or_default();
        line.chars().filter(|c| !c.is_control()).take(MAX_QUOTE).collect()
    }

    /// The enhanced status code (RFC 3463), such as `5.7.8`. Empty if the reply has none.
    fn enhanced_code(&self) -> String {
        let word = self.lines.last().and_then(|line| line.split(' ').next()).unwrap_or_default();
        word.chars()
            .take_while(|c| c.is_ascii_digit() || *c == '.')
            .take("5.999.999".len())
            .collect()
    }
}

/// The form of a mail after DATA. A line that begins with a dot gets a second dot, and a line with
/// a single dot ends the mail.
fn stuffed(mime: &str) -> String {
    let mut data = String::with_capacity(mime.len() + 8);
    for line in mime.split_inclusive('\n') {
        if line.starts_with('.') {
            data.push('.');
        }
        data.push_str(line);
    }
    if !data.ends_with('\n') {
        data.push_str("\r\n");
    }
    data + ".\r\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &str = "hunter2-of-mail";

    fn session(security: Security, with_login: bool) -> SmtpSession {
        let login = SmtpLogin { username: "farhand".into(), password: Secret::new(PASSWORD) };
        let mail = MailWithEnvelope {
            from: "farhand@localhost".into(),
            to: "boss@example.com".into(),
            mime: "Subject: Hello\r\n\r\nsecret text\r\n.\r\n".into(),
        };
        SmtpSession::new(security, with_login.then_some(login), mail)
    }

    fn send(text: &str) -> Result<SmtpStep, MailFailure> {
        Ok(SmtpStep::Send(text.to_owned()))
    }

    /// Passes each text of a script to a session, and compares the results.
    #[track_caller]
    fn check(session: &mut SmtpSession, script: &[(&str, Result<SmtpStep, MailFailure>)]) {
        for (said, expected) in script {
            assert_eq!(session.receive(said.as_bytes()), *expected, "{said}");
        }
    }

    /// A session that has logged in and sent MAIL.
    fn authenticated() -> SmtpSession {
        let mut session = session(Security::Tls, true);
        for said in ["220 hi\r\n", "250-hi\r\n250 AUTH PLAIN\r\n", "235 ok\r\n"] {
            session.receive(said.as_bytes()).unwrap();
        }
        session
    }

    const MAIL: &str = "MAIL FROM:<farhand@localhost>\r\n";
    const RCPT: &str = "RCPT TO:<boss@example.com>\r\n";
    const BODY: &str = "Subject: Hello\r\n\r\nsecret text\r\n..\r\n.\r\n";

    #[test]
    fn a_mail_is_sent_with_starttls_and_auth_plain() {
        let auth = format!(
            "AUTH PLAIN {}\r\n",
            Base64::encode_string(format!("\0farhand\0{PASSWORD}").as_bytes())
        );
        check(
            &mut session(Security::StartTls, true),
            &[
                ("220 mx.example ESMTP\r\n", send(EHLO)),
                ("250-mx.example\r\n250-AUTH PLAIN\r\n250 STARTTLS\r\n", send("STARTTLS\r\n")),
                ("220 go ahead\r\n", Ok(SmtpStep::StartTls(EHLO.into()))),
                ("250-mx.example\r\n250 AUTH LOGIN PLAIN\r\n", send(&auth)),
                ("235 2.7.0 ok\r\n", send(MAIL)),
                ("250 ok\r\n", send(RCPT)),
                ("251 ok\r\n", send("DATA\r\n")),
                ("354 go ahead\r\n", send(BODY)),
                ("250 taken\r\n221 bye\r\n", Ok(SmtpStep::Delivered)),
            ],
        );
    }

    #[test]
    fn auth_login_is_used_if_plain_is_not_offered() {
        let encoded = |text: &str| send(&format!("{}\r\n", Base64::encode_string(text.as_bytes())));
        check(
            &mut session(Security::Tls, true),
            &[
                ("220-mx.example\r\n220 hello\r\n", send(EHLO)),
                ("250-mx.example\r\n250 auth=login\r\n", send("AUTH LOGIN\r\n")),
                ("334 VXNlcm5hbWU6\r\n", encoded("farhand")),
                ("334 UGFzc3dvcmQ6\r\n", encoded(PASSWORD)),
                ("235 ok\r\n", send(MAIL)),
            ],
        );
    }

    #[test]
    fn replies_may_arrive_in_pieces() {
        let mut session = session(Security::Tls, false);
        let pieces = [
            ("2", Ok(SmtpStep::Read)),
            ("20 hi\r", Ok(SmtpStep::Read)),
            ("\n", send(EHLO)),
            ("250-hi\n", Ok(SmtpStep::Read)),
        ];
        check(&mut session, &pieces);
        check(&mut session, &[("250\n", send(MAIL))]);
    }

    #[track_caller]
    fn temporary(mut session: SmtpSession, script: &[&str], text: &str) {
        let (last, before) = script.split_last().unwrap();
        for said in before {
            session.receive(said.as_bytes()).unwrap();
        }
        assert_eq!(
            session.receive(last.as_bytes()),
            Err(MailFailure::Temporary(text.into())),
            "{script:?}"
        );
    }

    #[test]
    fn no_secret_is_sent_over_a_plain_connection() {
        let no = "the server does not offer STARTTLS";
        temporary(
            session(Security::StartTls, true),
            &["220 hi\r\n", "250-hi\r\n250 AUTH PLAIN\r\n"],
            no,
        );
        temporary(
            session(Security::StartTls, false),
            &["220 hi\r\n", "250 STARTTLS.example\r\n"],
            no,
        );
        let hello = "250-hi\r\n250 STARTTLS\r\n";
        let refused = "at STARTTLS the server answered 454 not now";
        temporary(
            session(Security::StartTls, true),
            &["220 hi\r\n", hello, "454 not now\r\n"],
            refused,
        );
        // An attacker injects a reply before TLS, which must not count after it.
        let injected = "the server answered more than it was asked";
        temporary(
            session(Security::StartTls, true),
            &["220 hi\r\n", hello, "220 go\r\n250 AUTH LOGIN\r\n"],
            injected,
        );
        temporary(
            session(Security::StartTls, true),
            &["220 hi\r\n", hello, "220 go\r\n250-"],
            injected,
        );
    }

    #[test]
    fn refusals_before_the_mail_are_temporary() {
        let new = || session(Security::Tls, true);
        temporary(
            new(),
            &["554 5.3.2 no service\r\n"],
            "at the greeting the server answered 554 5.3.2 no service",
        );
        temporary(
            new(),
            &["220 hi\r\n", "502 what?\r\n"],
            "at EHLO over TLS the server answered 502 what?",
        );
        let none = "the server offers neither AUTH PLAIN nor AUTH LOGIN";
        temporary(new(), &["220 hi\r\n", "250-AUTH PLAIN\r\n250 AUTH CRAM-MD5\r\n"], none);
        // Some servers repeat a command that they do not understand.
        let hello = "250-hi\r\n250 AUTH PLAIN\r\n";
        let echo = format!("535 5.7.8 AUTH PLAIN {PASSWORD}\r\n");
        temporary(new(), &["220 hi\r\n", hello, &echo], "at AUTH the server answered 535 5.7.8");
        temporary(
            new(),
            &["220 hi\r\n", hello, ""],
            "the connection failed at AUTH: it was closed",
        );
        temporary(new(), &["HTTP/1.1 400 Bad Request\r\n"], "the server does not speak SMTP");
        temporary(new(), &["\u{fc}\u{fc}\r\n"], "the server does not speak SMTP");
        temporary(new(), &["\r\n"], "the server does not speak SMTP");
        let endless = "220-la\r\n".repeat(MAX_REPLY / 8 + 1);
        temporary(new(), &[&endless], "the server's answer does not end");
    }

    #[test]
    fn refusals_of_the_mail_are_permanent_or_temporary() {
        let permanent = |text: &str| Err(MailFailure::Permanent(text.to_owned()));
        let temporary = |text: &str| Err(MailFailure::Temporary(text.to_owned()));
        let cases = [
            (
                0,
                "550 5.7.1 no\x07 relaying\r\n",
                permanent("at MAIL the server answered 550 5.7.1 no relaying"),
            ),
            (0, "530 5.7.0 log in\r\n", temporary("at MAIL the server answered 530 5.7.0 log in")),
            (0, "421 bye\r\n", temporary("at MAIL the server answered 421 bye")),
            (1, "550-unknown\r\n550 user\r\n", permanent("at RCPT the server answered 550 user")),
            (1, "451 later\r\n", temporary("at RCPT the server answered 451 later")),
            (2, "554 no\r\n", permanent("at DATA the server answered 554 no")),
            (2, "250 ok\r\n", temporary("at DATA the server answered 250 ok")),
            (
                3,
                "554 5.7.1 spam: secret text\r\n",
                permanent("at the end of the mail the server answered 554 5.7.1"),
            ),
            (
                3,
                "452 4.3.1 secret text\r\n",
                temporary("at the end of the mail the server answered 452 4.3.1"),
            ),
            (3, "451 secret text\r\n", temporary("at the end of the mail the server answered 451")),
            (3, "", temporary("the connection failed at the end of the mail: it was closed")),
        ];
        for (before, said, expected) in cases {
            let mut session = authenticated();
            for said in &["250 ok\r\n", "250 ok\r\n", "354 go\r\n"][..before] {
                session.receive(said.as_bytes()).unwrap();
            }
            assert_eq!(session.receive(said.as_bytes()), expected, "{said}");
        }
    }

    #[test]
    fn dots_at_the_start_of_lines_are_doubled() {
        assert_eq!(stuffed(".\r\n..a\r\nb.\r\n"), "..\r\n...a\r\nb.\r\n.\r\n");
        assert_eq!(stuffed("a"), "a\r\n.\r\n");
        assert_eq!(stuffed(""), "\r\n.\r\n");
    }
}
