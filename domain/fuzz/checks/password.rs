//! The rules for passwords. The first line of the input is the username, the second the e-mail
//! address, the rest the password.

use farhand_domain::people::password::{PersonalTexts, violations};

pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.splitn(3, '\n');
    let mut next = || lines.next().unwrap_or_default();
    let (username, email, password) = (next(), next(), next());
    let found = violations(password, PersonalTexts { username, email });
    let says = |word: &str| found.iter().any(|message| message.contains(word));
    assert_eq!(says("too short"), password.chars().count() < 8, "{found:?}");
    assert_eq!(says("numeric"), !password.is_empty() && password.chars().all(char::is_numeric), "{found:?}");
    assert!(password.chars().count() <= 128 || !found.is_empty());
    assert!(password.is_empty() || password != username || !found.is_empty(), "{found:?}");
    assert!(password.is_empty() || password.to_lowercase() != email.to_lowercase() || !found.is_empty(), "{found:?}");
}
