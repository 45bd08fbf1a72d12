//! Runs SMTP sessions with any replies of a mail server. The first byte of the input chooses the
//! encryption and whether the session has a login. Each line after it is a reply or a part of one.

use farhand_domain::mail::message::MailFailure;
use farhand_domain::secret::Secret;
use farhand_domain::mail::smtp::{SmtpLogin, MailWithEnvelope, SmtpStep, Security, SmtpSession};

/// Maximum length of an input, in bytes.
const MAX_LENGTH: usize = 8 * 1024;
/// The password, and the encoded forms that AUTH sends.
const SECRETS: [&str; 3] = ["open sesame", "b3BlbiBzZXNhbWU=", "AGZhcmhhbmQAb3BlbiBzZXNhbWU="];
const TEXT: &str = "the text of the mail";

fn session(kind: u8) -> SmtpSession {
    let security = if kind & 1 == 0 { Security::StartTls } else { Security::Tls };
    let login = SmtpLogin { username: "farhand".to_owned(), password: Secret::new("open sesame") };
    let mime = format!("Subject: x\r\n\r\n{TEXT}\r\n.\r\n..\r\n");
    let mail = MailWithEnvelope { from: "farhand@example.com".to_owned(), to: "boss@example.com".to_owned(), mime };
    SmtpSession::new(security, (kind & 2 == 0).then_some(login), mail)
}

/// All steps of a session, without [`SmtpStep::Read`].
fn run<'a>(kind: u8, pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Result<SmtpStep, MailFailure>> {
    let mut session = session(kind);
    let mut steps = Vec::new();
    for piece in pieces {
        match session.receive(piece) {
            Ok(SmtpStep::Read) => {}
            step => {
                let is_over = matches!(step, Ok(SmtpStep::Delivered) | Err(_));
                steps.push(step);
                if is_over {
                    break;
                }
            }
        }
    }
    steps
}

pub fn check(data: &[u8]) {
    let Some((kind, answers)) = data.split_first().filter(|(_, answers)| answers.len() <= MAX_LENGTH) else { return };
    let steps = run(*kind, answers.split_inclusive(|byte| *byte == b'\n'));
    assert_eq!(run(*kind, answers.chunks(1)), steps, "replies in smaller pieces have the same result");

    let mut is_encrypted = kind & 1 == 1;
    let mut sends_text = false;
    for step in &steps {
        let sent = match step {
            Ok(SmtpStep::StartTls(sent)) => {
                assert!(!is_encrypted);
                is_encrypted = true;
                sent
            }
            Ok(SmtpStep::Send(sent)) => sent,
            Ok(SmtpStep::Read | SmtpStep::Delivered) => continue,
            Err(MailFailure::Temporary(why) | MailFailure::Permanent(why)) => {
                // A failure may quote a secret only if the server sent it.
                let letters = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>();
                let said = letters(&String::from_utf8_lossy(answers));
                assert!(SECRETS.iter().all(|secret| said.contains(&letters(secret)) || !why.contains(secret)), "{why}");
                continue;
            }
        };
        let has_secret =
            sent.contains(TEXT) || SECRETS.iter().any(|secret| sent.contains(secret)) || sent.contains('@');
        assert!(is_encrypted || !has_secret, "{sent:?} before TLS");
        if sends_text {
            assert!(sent.ends_with("\r\n.\r\n") && sent.matches("\r\n.\r\n").count() == 1, "{sent:?}");
        } else {
            assert!(sent.ends_with("\r\n") && sent.matches(['\r', '\n']).count() == 2, "one line: {sent:?}");
        }
        sends_text = sent == "DATA\r\n";
    }
    let delivered = steps.contains(&Ok(SmtpStep::Delivered));
    assert!(!delivered || is_encrypted);
}
