//! Addresses and texts of mails: they never end a header or a line. The first line of the input is
//! an address, the second a subject, the rest the text.

use farhand_domain::mail::message::{MailMessage, is_address};
use farhand_domain::time::Timestamp;
use farhand_domain::people::user::normalized_email;

/// Maximum length of a line of a mail, in bytes (RFC 5322, 2.1.1).
const LONGEST_LINE: usize = 998;

pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.splitn(3, '\n').map(str::to_owned);
    let mut next = || lines.next().unwrap_or_default();
    let (to, subject, text) = (next(), next(), next());
    if is_address(&to) {
        assert!(to.contains('@') && to.bytes().all(|byte| byte.is_ascii_graphic() && !b"<>".contains(&byte)), "{to:?}");
    }
    if let Some(email) = normalized_email(&to) {
        assert_eq!(normalized_email(&email).as_deref(), Some(&*email));
        assert_eq!(normalized_email(&format!(" {} ", to.to_ascii_uppercase())).as_deref(), Some(&*email));
    }
    let date = Timestamp::from_millis(1_795_224_225_000);
    let message =
        MailMessage { id: "01936d3e-7a00-7000-8000-000000000000".parse().expect("an id"), date, to, subject, text };
    let is_good = is_address(&message.to) && !message.subject.contains(char::is_control);
    assert_eq!(message.check().is_ok(), is_good);
    if !is_good {
        return;
    }
    let mime = message.mime("farhand@example.com");
    let plain =
        MailMessage { subject: "x".to_owned(), text: "x".to_owned(), ..message.clone() }.mime("farhand@example.com");
    assert!(mime.is_ascii() && mime.ends_with("\r\n"));
    let names = |mime: &str| {
        let head = mime.split("\r\n\r\n").next().unwrap_or_default().to_owned();
        let named = head.split("\r\n").filter(|line| !line.starts_with([' ', '\t']));
        named.map(|line| line.split(':').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&mime), names(&plain), "a text adds no header");
    for line in mime.split("\r\n") {
        assert!(line.len() <= LONGEST_LINE && !line.contains(['\r', '\n']), "{line:?}");
    }
}
