//! Passwords: the rules for new ones, and their hashes.

use std::borrow::Cow;

use pbkdf2::password_hash::{CustomizedPasswordHasher, PasswordVerifier};
use pbkdf2::phc::PasswordHash;
use pbkdf2::{Params, Pbkdf2};
use similar::{Algorithm, capture_diff_slices, diff_ratio};

/// The fewest characters of a new password (spec.md, Limits).
pub const MIN_LENGTH: usize = 8;
/// The most characters of a new password (contract 4).
pub const MAX_LENGTH: usize = 128;
/// From this sequence-match ratio on, a password is too similar to what is known of its user (contract 4).
const TOO_SIMILAR: f32 = 0.7;
/// The fewest rounds of PBKDF2, whatever is configured (contract 4).
pub const MIN_ROUNDS: u32 = 100_000;

/// 20,500 common passwords in lower case, made by `scripts/common-passwords.mjs`, which tells the form.
const COMMON: &[u8] = include_bytes!("../data/common-passwords.bin");

/// What a password must not resemble.
#[derive(Clone, Copy, Debug)]
pub struct Personal<'a> {
    /// The user's name.
    pub username: &'a str,
    /// The user's e-mail address.
    pub email: &'a str,
}

/// All the rules that a new password breaks, as messages for its field (contract 4). None: it is good.
pub fn violations(password: &str, personal: Personal<'_>) -> Vec<Cow<'static, str>> {
    let mut messages = Vec::new();
    let length = password.chars().count();
    let lower = password.to_lowercase();
    if length < MIN_LENGTH {
        messages.push(format!("This password is too short. It must contain at least {MIN_LENGTH} characters.").into());
    }
    if length > MAX_LENGTH {
        messages.push(format!("This password is too long. It must contain at most {MAX_LENGTH} characters.").into());
    }
    if is_common(lower.trim()) {
        messages.push("This password is too common.".into());
    }
    if !password.is_empty() && password.chars().all(char::is_numeric) {
        messages.push("This password is entirely numeric.".into());
    }
    if length <= MAX_LENGTH {
        let local_part = personal.email.split('@').next().unwrap_or("");
        let email = [personal.email, local_part];
        if is_similar(&lower, personal.username) {
            messages.push("The password is too similar to the username.".into());
        }
        if email.into_iter().any(|part| is_similar(&lower, part)) {
            messages.push("The password is too similar to the email address.".into());
        }
    }
    messages
}

/// Looks for a password in the packed list. The list is sorted, but a scan of its 70 KB is fast enough for what
/// happens once a password change.
fn is_common(password: &str) -> bool {
    let wanted = password.as_bytes();
    // How many of the wanted bytes the entry at hand has at its beginning.
    let mut matched = 0;
    let mut at = 0;
    while at < COMMON.len() {
        let shared = usize::from(COMMON[at] - 1);
        let rest = &COMMON[at + 1..];
        let suffix = &rest[..rest.iter().position(|b| *b < 0x20).unwrap_or(rest.len())];
        // An entry that shares more with its forerunner than that matched differs where that one did.
        if shared <= matched {
            let common = suffix.iter().zip(&wanted[shared.min(wanted.len())..]).take_while(|(a, b)| a == b).count();
            if common == suffix.len() && shared + common == wanted.len() {
                return true;
            }
            matched = shared + common;
        }
        at += 1 + suffix.len();
    }
    false
}

fn is_similar(lower_password: &str, known: &str) -> bool {
    if known.is_empty() {
        return false;
    }
    let password: Vec<char> = lower_password.chars().collect();
    let known: Vec<char> = known.to_lowercase().chars().collect();
    let operations = capture_diff_slices(Algorithm::Lcs, &password, &known);
    diff_ratio(&operations, password.len(), known.len()) >= TOO_SIMILAR
}

/// The outcome of a check of a password that was right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verified {
    /// The hash was made with fewer rounds than are configured now, and should be made again.
    pub outdated: bool,
}

fn params(rounds: u32) -> Params {
    Params::new(rounds.max(MIN_ROUNDS)).unwrap_or(Params::RECOMMENDED)
}

/// The PHC string of PBKDF2-HMAC-SHA-256 over a password.
pub fn hash(password: &str, salt: [u8; 16], rounds: u32) -> String {
    Pbkdf2::SHA256
        .hash_password_customized(password.as_bytes(), &salt, None, None, params(rounds))
        .expect("the salt's length and the rounds are in the crate's bounds")
        .to_string()
}

/// Checks a password against a PHC string, in time that does not depend on where they differ.
///
/// Where there is no account, or it may not log in, `stored` is `None`: the same work is done, and it is wrong.
pub fn verify(password: &str, stored: Option<&str>, rounds: u32) -> Option<Verified> {
    let parsed = stored.and_then(|text| PasswordHash::new(text).ok());
    let Some(parsed) = parsed else {
        // Its result is of no use to anyone; the time that it takes is.
        std::hint::black_box(hash(password, [0; 16], rounds));
        return None;
    };
    let stored_rounds = Params::try_from(&parsed).map(Params::rounds).ok()?;
    if Pbkdf2::SHA256.verify_password(password.as_bytes(), &parsed).is_err() {
        // A hash of fewer rounds must not tell an account that exists from one that does not.
        let missing = params(rounds).rounds().saturating_sub(stored_rounds);
        if missing > 0 {
            let mut work = [0; 32];
            pbkdf2::pbkdf2_hmac::<sha2::Sha256>(password.as_bytes(), &[0; 16], missing, &mut work);
            std::hint::black_box(work);
        }
        return None;
    }
    Some(Verified { outdated: stored_rounds < params(rounds).rounds() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Personal<'_> = Personal { username: "zoraquill", email: "j.doe@example.com" };

    #[track_caller]
    fn check(password: &str, expected: &[&str]) {
        let found = violations(password, NOBODY);
        assert_eq!(found.len(), expected.len(), "{password}: {found:?}");
        for (message, word) in found.iter().zip(expected) {
            assert!(message.contains(word), "{password}: {message}");
        }
    }

    #[test]
    fn all_failures_together() {
        check("correct horse battery", &[]);
        check("Tr0ub4dor&3", &[]);
        check("12345", &["too short", "too common", "entirely numeric"]);
        check("", &["too short"]);
        check("password", &["too common"]);
        check("PassWord1", &["too common"]);
        check("9182736455463728", &["entirely numeric"]);
        check(&"x1y".repeat(43), &["too long"]);
        check("zoraquill", &["username"]);
        check("ZoraQuill1", &["username"]);
        check("lliuqaroz!", &[]);
        check("J.Doe@Example.com", &["email"]);
    }

    #[test]
    fn the_list_of_common_passwords_is_whole() {
        let mut entry = Vec::new();
        let (mut entries, mut at) = (Vec::<Vec<u8>>::new(), 0);
        while at < COMMON.len() {
            entry.truncate(usize::from(COMMON[at] - 1));
            at += 1;
            while at < COMMON.len() && COMMON[at] >= 0x20 {
                entry.push(COMMON[at]);
                at += 1;
            }
            entries.push(entry.clone());
        }
        assert!(entries.len() >= 20_000, "contract 4 asks for 20,000");
        assert!(entries.is_sorted());
        for entry in &entries {
            let text = std::str::from_utf8(entry).unwrap();
            assert!(is_common(text), "{text}");
        }
        for other in ["", "correct horse battery", "passwore", "passwordd1x", "zzzzzzzzzzzzzzzzz"] {
            assert!(!is_common(other), "{other}");
        }
    }

    #[test]
    fn hashes_are_phc_strings_and_verify() {
        let stored = hash("secret words", [7; 16], 100_000);
        assert!(stored.starts_with("$pbkdf2-sha256$i=100000,l=32$"), "{stored}");
        assert_eq!(verify("secret words", Some(&stored), 100_000), Some(Verified { outdated: false }));
        assert_eq!(verify("secret words", Some(&stored), 100_001), Some(Verified { outdated: true }));
        assert_eq!(verify("secret word", Some(&stored), 100_000), None);
        assert_eq!(verify("secret word", Some(&stored), 100_001), None);
        assert_eq!(verify("", Some(""), 100_000), None);
        assert_eq!(verify("", None, 100_000), None);
    }

    #[test]
    fn rounds_have_a_floor() {
        assert!(hash("secret words", [7; 16], 1).contains("i=100000,"));
    }
}
