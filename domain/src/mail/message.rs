//! Mails: their parts, and their text form (RFC 5322, with MIME).

use base64ct::{Base64, Encoding};
use email_address::{EmailAddress, Options};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::time::Timestamp;

/// Maximum length of an ASCII subject that is not encoded, in characters. The line of the header is
/// then shorter than 78 characters.
const MAX_PLAIN_SUBJECT: usize = 60;
/// Maximum number of bytes in an encoded word. RFC 2047 allows a line of 76 characters, including
/// the name of the header.
const MAX_WORD: usize = 39;

/// A mail to send. It has no `Debug`, because its text must not get into the log.
#[derive(Clone, Serialize, Deserialize)]
pub struct MailMessage {
    /// The id in the Message-ID. It is the same for each attempt to send, so that a recipient can
    /// recognise a duplicate.
    pub id: Uuid,
    /// When the mail was written.
    pub date: Timestamp,
    /// The recipient's address.
    pub to: String,
    /// The subject: one line.
    pub subject: String,
    /// The body: plain text.
    pub text: String,
}

/// Why a mail was not sent. The text is for the log. It never contains a part of the mail's text or
/// a password.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MailFailure {
    /// Another attempt may succeed.
    Temporary(String),
    /// The server will never accept the mail.
    Permanent(String),
}

/// Whether mail can be sent to or from an address. A valid address cannot end a header or an SMTP
/// command, and has only ASCII characters.
pub fn is_address(text: &str) -> bool {
    let options = Options::default().without_display_text().without_domain_literal();
    text.bytes().all(|b| b.is_ascii_graphic() && b != b'<' && b != b'>')
        && EmailAddress::parse_with_options(text, options).is_ok()
}

impl MailMessage {
    /// Refuses texts that could end a header or an SMTP command.
    ///
    /// # Errors
    /// The address is invalid ([`is_address`]), or the subject has control characters.
    pub fn check(&self) -> Result<(), MailFailure> {
        if !is_address(&self.to) {
            return Err(MailFailure::Permanent(
                "the recipient's address cannot be sent to".to_owned(),
            ));
        }
        if self.subject.contains(char::is_control) {
            return Err(MailFailure::Permanent("the subject has control characters".to_owned()));
        }
        Ok(())
    }

    /// The text form of the mail: ASCII, in lines that end with CR LF. The lines have at most 78
    /// characters, except for long addresses.
    pub fn mime(&self, from: &str) -> String {
        let Self { id, to, .. } = self;
        let domain = from.rsplit('@').next().unwrap_or_default();
        let date = self.date.to_rfc_5322();
        let subject = subject(&self.subject);
        let lines = self.text.replace("\r\n", "\n").replace('\n', "\r\n");
        let text = quoted_printable::encode_to_str(lines);
        format!(
            "From: <{from}>\r\n\
             To: <{to}>\r\n\
             Subject: {subject}\r\n\
             Date: {date}\r\n\
             Message-ID: <{id}@{domain}>\r\n\
             MIME-Version: 1.0\r\n\
             Content-Type: text/plain; charset=utf-8\r\n\
             Content-Transfer-Encoding: quoted-printable\r\n\
             \r\n\
             {text}\r\n"
        )
    }
}

/// The value of the header Subject: the text, or encoded words (RFC 2047).
fn subject(text: &str) -> String {
    if text.is_ascii() && text.len() <= MAX_PLAIN_SUBJECT && !text.contains("=?") {
        return text.to_owned();
    }
    let mut words = vec![String::new()];
    for character in text.chars() {
        match words.last_mut() {
            Some(word) if word.len() + character.len_utf8() <= MAX_WORD => word.push(character),
            _ => words.push(character.into()),
        }
    }
    let encoded =
        words.iter().map(|word| format!("=?utf-8?B?{}?=", Base64::encode_string(word.as_bytes())));
    encoded.collect::<Vec<_>>().join("\r\n ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quoted_printable::ParseMode;

    use super::*;

    fn message(subject: &str, text: &str) -> MailMessage {
        let date = Timestamp::parse("2026-11-21T01:23:45.678Z").unwrap();
        MailMessage {
            id: Uuid::nil(),
            date,
            to: "boss@example.com".into(),
            subject: subject.into(),
            text: text.into(),
        }
    }

    #[test]
    fn a_mail_has_its_headers_and_text() {
        let mime =
            message("Reset your password", "Hello,\n\n.\nGrüße\n").mime("farhand@mail.example");
        let expected = "From: <farhand@mail.example>\r\n\
                        To: <boss@example.com>\r\n\
                        Subject: Reset your password\r\n\
                        Date: Sat, 21 Nov 2026 01:23:45 +0000\r\n\
                        Message-ID: <00000000-0000-0000-0000-000000000000@mail.example>\r\n\
                        MIME-Version: 1.0\r\n\
                        Content-Type: text/plain; charset=utf-8\r\n\
                        Content-Transfer-Encoding: quoted-printable\r\n\
                        \r\n\
                        Hello,\r\n\r\n.\r\nGr=C3=BC=C3=9Fe\r\n\r\n";
        assert_eq!(mime, expected);
    }

    #[test]
    fn a_subject_is_plain_or_encoded() {
        assert_eq!(subject("Reset your password"), "Reset your password");
        assert_eq!(subject("Grüße"), "=?utf-8?B?R3LDvMOfZQ==?=");
        // A text that looks like an encoded word is encoded, so that it is shown unchanged.
        assert_eq!(subject("=?x"), "=?utf-8?B?PT94?=");
        let long = subject(&"ü".repeat(30));
        assert_eq!(long.split("\r\n ").count(), 2, "{long}");
    }

    #[test]
    fn addresses_cannot_end_a_header() {
        for good in
            ["boss@example.com", "farhand@localhost", "a.b+c@x-y.example", "o'neil@example.com"]
        {
            assert!(is_address(good), "{good}");
        }
        for bad in [
            "",
            "boss",
            "@example.com",
            "boss@",
            "boss@example.com\r\nRCPT TO:<eve@example.com>",
            "boss@example.com> SIZE=1 <",
            "<boss@example.com>",
            "Boss <boss@example.com>",
            "boss@example.com\n",
            "\"a b\"@example.com",
            "grüße@example.com",
            "boss@exämple.com",
            "boss@[127.0.0.1]",
            "a@example.com,b@example.com",
        ] {
            assert!(!is_address(bad), "{bad:?}");
        }
    }

    #[test]
    fn texts_that_could_end_a_header_are_refused() {
        assert_eq!(message("Hello", "").check(), Ok(()));
        for subject in ["Hello\r\nBcc: <eve@example.com>", "Hello\nBcc: x", "Hello\rx", "Hello\0"] {
            assert!(
                matches!(message(subject, "").check(), Err(MailFailure::Permanent(_))),
                "{subject:?}"
            );
        }
        let to = "boss@example.com\r\nBcc: <eve@example.com>".to_owned();
        assert!(matches!(
            MailMessage { to, ..message("Hello", "") }.check(),
            Err(MailFailure::Permanent(_))
        ));
    }

    proptest! {
        #[test]
        fn any_text_and_subject_can_be_decoded_again(text in "(?s).*", subject in "\\PC*") {
            let mail = message(&subject, &text);
            prop_assert_eq!(mail.check(), Ok(()));
            let mime = mail.mime("farhand@localhost");
            prop_assert!(mime.is_ascii());
            let lines: Vec<&str> = mime.split("\r\n").collect();
            for line in &lines {
                prop_assert!(line.len() <= 78 && !line.contains(['\r', '\n']), "{line:?}");
            }
            let (head, body) = mime.split_once("\r\n\r\n").unwrap();
            // A line begins with the name of a header, or continues the line before.
            let names = head.split("\r\n").filter(|line| !line.starts_with(' ')).count();
            prop_assert_eq!(names, 8);
            let decoded = quoted_printable::decode(body, ParseMode::Strict).unwrap();
            let normal = text.replace("\r\n", "\n").replace('\n', "\r\n");
            prop_assert_eq!(String::from_utf8(decoded).unwrap(), normal + "\r\n");
        }
    }
}
