//! Passwords: the rules for new passwords (contract 4.11), and their hashes (contract 4.6).

use std::borrow::Cow;

use base64ct::{Base64Unpadded, Encoding};
use pbkdf2::Params;
use pbkdf2::password_hash::phc::{Output, PasswordHash, Salt};
use sha2::block_api::compress256;
use sha2::{Digest, Sha256};
use similar::{Algorithm, capture_diff_slices, diff_ratio};
use subtle::ConstantTimeEq;

/// Minimum length of a new password, in characters (contract 4.11).
pub const MIN_LENGTH: usize = 8;
/// Maximum length of a new password, in characters (contract 4.11).
pub const MAX_LENGTH: usize = 128;
/// A password with this sequence-match ratio or more is too similar to a text about its user
/// (contract 4.11).
const TOO_SIMILAR: f32 = 0.7;
/// Minimum number of rounds of PBKDF2, even if fewer rounds are configured (contract 4.6).
pub const MIN_ROUNDS: u32 = 100_000;

/// 20,500 common passwords in lower case. `scripts/common-passwords.mjs` generates the file and
/// describes its form.
const COMMON: &[u8] = include_bytes!("../../data/common-passwords.bin");

/// Texts about a user that the password must not resemble.
#[derive(Clone, Copy, Debug)]
pub struct PersonalTexts<'a> {
    /// The username.
    pub username: &'a str,
    /// The user's e-mail address.
    pub email: &'a str,
}

/// The alphabet and rows of keys. A password that is part of one of them, forwards or backwards,
/// counts as common.
const SEQUENCES: [&str; 5] =
    ["abcdefghijklmnopqrstuvwxyz", "01234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm"];
/// A password that only repeats a unit of at most this number of characters counts as common.
const MAX_REPEATED: usize = 4;

/// Whether a password only repeats a short unit, or is part of one of the [`SEQUENCES`]. A list of
/// common passwords cannot contain all such passwords.
fn is_pattern(lower: &str) -> bool {
    let characters: Vec<char> = lower.chars().collect();
    let repeats = |unit: usize| {
        characters.len() >= 2 * unit && characters.windows(unit + 1).all(|w| w[0] == w[unit])
    };
    let reversed: String = characters.iter().rev().collect();
    (1..=MAX_REPEATED).any(repeats)
        || SEQUENCES.iter().any(|row| row.contains(lower) || row.contains(&reversed))
}

/// The messages for all rules that a new password violates (contract 4.11). Returns no message if
/// the password is valid.
pub fn violations(password: &str, personal: PersonalTexts<'_>) -> Vec<Cow<'static, str>> {
    let mut messages = Vec::new();
    let length = password.chars().count();
    let lower = password.to_lowercase();
    if length < MIN_LENGTH {
        messages.push(
            format!(
                "This password is too short. It must contain at least {MIN_LENGTH} characters."
            )
            .into(),
        );
    }
    if length > MAX_LENGTH {
        messages.push(
            format!("This password is too long. It must contain at most {MAX_LENGTH} characters.")
                .into(),
        );
    }
    if is_common(lower.trim()) || (length >= MIN_LENGTH && is_pattern(lower.trim())) {
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

/// Whether the packed list contains a password. The scan of 70 KB is fast enough, because passwords
/// rarely change.
///
/// An entry is a byte and a suffix. The byte is one more than the number of leading bytes that the
/// entry shares with the previous entry.
fn is_common(password: &str) -> bool {
    let wanted = password.as_bytes();
    // The number of bytes that the current entry shares with `wanted`.
    let mut matched = 0;
    let mut at = 0;
    while at < COMMON.len() {
        let shared = usize::from(COMMON[at] - 1);
        let rest = &COMMON[at + 1..];
        let suffix = &rest[..rest.iter().position(|b| *b < 0x20).unwrap_or(rest.len())];
        // If the entry shares more bytes with the previous entry than `wanted` does, it differs
        // from `wanted` at the same position as the previous entry.
        if shared <= matched {
            let common = suffix
                .iter()
                .zip(&wanted[shared.min(wanted.len())..])
                .take_while(|(a, b)| a == b)
                .count();
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

/// The result of a password check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PasswordCheck {
    /// Whether the password is correct.
    pub is_correct: bool,
    /// Whether the stored hash has fewer rounds than are configured now, and should be replaced.
    pub is_outdated: bool,
    /// The work of the check, in rounds of PBKDF2. It must not depend on whether the account
    /// exists.
    pub rounds: u32,
}

/// The length of a block of SHA-256, in bytes.
const BLOCK_BYTES: usize = 64;
/// The length of a SHA-256 hash, and of a password's hash, in bytes.
const HASH_BYTES: usize = 32;
/// The initial state of SHA-256 (FIPS 180-4, 5.3.3).
const INITIAL: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// The progress of a [`Derivation`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DerivationProgress {
    /// Some rounds are not computed yet.
    More,
    /// The derived key.
    Done([u8; HASH_BYTES]),
}

/// PBKDF2-HMAC-SHA-256 with a key of 32 bytes (RFC 8018, 5.2), in steps. The caller can do other
/// work between two steps.
///
/// Each round calls SHA-256's compression function twice, on states that already include the pads
/// of HMAC. The crate with that function is compiled for speed, but this crate is compiled for
/// size.
#[derive(Clone, Debug)]
pub struct Derivation {
    /// The state of SHA-256 after the inner pad of HMAC.
    inner: [u32; 8],
    /// The state of SHA-256 after the outer pad of HMAC.
    outer: [u32; 8],
    /// The last U of the RFC, in a block that is padded like the end of a message of one pad and
    /// one hash.
    block: [[u8; BLOCK_BYTES]; 1],
    /// The exclusive or of all U so far.
    key: [u8; HASH_BYTES],
    rounds: u32,
    left: u32,
}

fn bytes_of(state: [u32; 8]) -> [u8; HASH_BYTES] {
    let mut bytes = [0; HASH_BYTES];
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

impl Derivation {
    /// Begins a derivation with at least one round.
    pub fn new(password: &str, salt: &[u8], rounds: u32) -> Self {
        let mut padded = [0; BLOCK_BYTES];
        if password.len() > BLOCK_BYTES {
            padded[..HASH_BYTES].copy_from_slice(&Sha256::digest(password));
        } else {
            padded[..password.len()].copy_from_slice(password.as_bytes());
        }
        let (inner_pad, outer_pad) =
            (padded.map(|byte| byte ^ 0x36), padded.map(|byte| byte ^ 0x5c));
        let keyed = |pad: [u8; BLOCK_BYTES]| {
            let mut state = INITIAL;
            compress256(&mut state, &[pad]);
            state
        };
        // The first U covers the salt and the number of the only block of output, 1.
        let first = Sha256::new()
            .chain_update(inner_pad)
            .chain_update(salt)
            .chain_update(1u32.to_be_bytes())
            .finalize();
        let first = Sha256::new().chain_update(outer_pad).chain_update(first).finalize();
        let mut block = [0; BLOCK_BYTES];
        block[..HASH_BYTES].copy_from_slice(&first);
        block[HASH_BYTES] = 0x80;
        let bits = 8 * (BLOCK_BYTES + HASH_BYTES) as u64;
        block[BLOCK_BYTES - 8..].copy_from_slice(&bits.to_be_bytes());
        let rounds = rounds.max(1);
        Self {
            inner: keyed(inner_pad),
            outer: keyed(outer_pad),
            block: [block],
            key: first.into(),
            rounds,
            left: rounds - 1,
        }
    }

    /// Computes at most this number of rounds.
    pub fn step(&mut self, rounds: u32) -> DerivationProgress {
        let now = self.left.min(rounds);
        for _ in 0..now {
            for keyed in [self.inner, self.outer] {
                let mut state = keyed;
                compress256(&mut state, &self.block);
                self.block[0][..HASH_BYTES].copy_from_slice(&bytes_of(state));
            }
            for (key, byte) in self.key.iter_mut().zip(&self.block[0]) {
                *key ^= byte;
            }
        }
        self.left -= now;
        if self.left == 0 { DerivationProgress::Done(self.key) } else { DerivationProgress::More }
    }
}

/// Hashes a password with PBKDF2-HMAC-SHA-256, and returns the PHC string. `derive` runs a
/// derivation to its end.
pub async fn hash(
    password: &str,
    salt: [u8; 16],
    rounds: u32,
    derive: impl AsyncFn(Derivation) -> [u8; HASH_BYTES],
) -> String {
    let derivation = Derivation::new(password, &salt, rounds.max(MIN_ROUNDS));
    let rounds = derivation.rounds;
    let (salt, key) = (
        Base64Unpadded::encode_string(&salt),
        Base64Unpadded::encode_string(&derive(derivation).await),
    );
    format!("$pbkdf2-sha256$i={rounds},l={HASH_BYTES}${salt}${key}")
}

/// Parses a PHC string of [`hash`].
fn parse(stored: &str) -> Option<(Salt, u32, Output)> {
    let parsed = PasswordHash::new(stored).ok()?;
    let params = Params::try_from(&parsed).ok()?;
    Some((parsed.salt?, params.rounds(), parsed.hash?))
}

/// Checks a password against a PHC string in constant time. `derive` runs a derivation to its end.
///
/// `stored` is `None` if the account does not exist or may not log in. The check then does the same
/// work, and reports a wrong password.
pub async fn check(
    password: &str,
    stored: Option<&str>,
    rounds: u32,
    derive: impl AsyncFn(Derivation) -> [u8; HASH_BYTES],
) -> PasswordCheck {
    let wanted = rounds.max(MIN_ROUNDS);
    let mut work = 0;
    let parsed = stored.and_then(parse);
    let stored_rounds = parsed.as_ref().map_or(0, |(_, rounds, _)| *rounds);
    let mut is_correct = false;
    if let Some((salt, rounds, hash)) = parsed {
        let derivation = Derivation::new(password, &salt, rounds);
        work = derivation.rounds;
        is_correct = derive(derivation).await.ct_eq(hash.as_bytes()).into();
    }
    if !is_correct && work < wanted {
        // Only the time of this derivation matters, not its result.
        std::hint::black_box(derive(Derivation::new(password, &[0; 16], wanted - work)).await);
        work = wanted;
    }
    PasswordCheck { is_correct, is_outdated: stored_rounds < wanted, rounds: work }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use pbkdf2::Pbkdf2;
    use pbkdf2::password_hash::CustomizedPasswordHasher;
    use proptest::prelude::*;

    use super::*;

    const PERSON: PersonalTexts<'_> =
        PersonalTexts { username: "zoraquill", email: "j.doe@example.com" };

    #[track_caller]
    fn violates(password: &str, expected: &[&str]) {
        let found = violations(password, PERSON);
        assert_eq!(found.len(), expected.len(), "{password}: {found:?}");
        for (message, word) in found.iter().zip(expected) {
            assert!(message.contains(word), "{password}: {message}");
        }
    }

    #[test]
    fn all_violations_are_reported_together() {
        violates("correct horse battery", &[]);
        violates("Tr0ub4dor&3", &[]);
        violates("12345", &["too short", "too common", "entirely numeric"]);
        violates("", &["too short"]);
        violates("password", &["too common"]);
        violates("PassWord1", &["too common"]);
        for pattern in
            ["aaaaaaaa", "ZZZZZZZZZ", "abcabcabc", "qweqweqwe", "abcdefgh", "LKJHGFDSA", "       a"]
        {
            assert!(
                violations(pattern, PERSON).iter().any(|message| message.contains("too common")),
                "{pattern}"
            );
        }
        violates("abcdabcdx", &[]);
        violates("9182736455463728", &["entirely numeric"]);
        violates(&"x1y".repeat(43), &["too long", "too common"]);
        violates("zoraquill", &["username"]);
        violates("ZoraQuill1", &["username"]);
        violates("lliuqaroz!", &[]);
        violates("J.Doe@Example.com", &["email"]);
    }

    #[test]
    fn every_entry_of_the_packed_list_is_found() {
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
        assert!(entries.len() >= 20_000, "contract 4.11 asks for 20,000");
        assert!(entries.is_sorted());
        for entry in &entries {
            let text = std::str::from_utf8(entry).unwrap();
            assert!(is_common(text), "{text}");
        }
        for other in ["", "correct horse battery", "passwore", "passwordd1x", "zzzzzzzzzzzzzzzzz"] {
            assert!(!is_common(other), "{other}");
        }
    }

    /// Runs derivations in steps of this number of rounds.
    fn in_steps(rounds: u32) -> impl AsyncFn(Derivation) -> [u8; HASH_BYTES] {
        async move |mut derivation: Derivation| {
            loop {
                if let DerivationProgress::Done(key) = derivation.step(rounds) {
                    return key;
                }
            }
        }
    }

    /// The output of a future that is ready immediately.
    fn ready<T>(future: impl Future<Output = T>) -> T {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(future).poll(&mut context) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("it waits"),
        }
    }

    fn hash(password: &str, salt: [u8; 16], rounds: u32) -> String {
        ready(super::hash(password, salt, rounds, in_steps(15_000)))
    }

    fn check(password: &str, stored: Option<&str>, rounds: u32) -> PasswordCheck {
        ready(super::check(password, stored, rounds, in_steps(15_000)))
    }

    /// The PHC string of the crate `pbkdf2`.
    fn reference(password: &str, salt: &[u8], rounds: u32) -> String {
        let params = Params::new(rounds).unwrap();
        Pbkdf2::SHA256
            .hash_password_customized(password.as_bytes(), salt, None, None, params)
            .unwrap()
            .to_string()
    }

    proptest! {
        #[test]
        fn derived_keys_equal_those_of_the_crate(
            password in ".{0,200}", salt in proptest::collection::vec(any::<u8>(), 0..100), rounds in 1u32..40, step in 1u32..50,
        ) {
            let mut expected = [0; HASH_BYTES];
            pbkdf2::pbkdf2_hmac::<Sha256>(password.as_bytes(), &salt, rounds, &mut expected);
            let mut derivation = Derivation::new(&password, &salt, rounds);
            let mut steps = 0;
            let key = loop {
                steps += 1;
                if let DerivationProgress::Done(key) = derivation.step(step) {
                    break key;
                }
            };
            prop_assert_eq!(key, expected);
            prop_assert_eq!(steps, (rounds - 1).div_ceil(step).max(1));
        }
    }

    #[test]
    fn passwords_longer_than_a_block_are_derived() {
        for length in [0, 1, 55, 56, 63, 64, 65, 128, 1_000] {
            let password = "p".repeat(length);
            let mut expected = [0; HASH_BYTES];
            pbkdf2::pbkdf2_hmac::<Sha256>(password.as_bytes(), b"salt", 3, &mut expected);
            let mut derivation = Derivation::new(&password, b"salt", 3);
            assert_eq!(derivation.step(0), DerivationProgress::More);
            assert_eq!(derivation.step(1), DerivationProgress::More);
            assert_eq!(derivation.step(9), DerivationProgress::Done(expected), "{length}");
            assert_eq!(derivation.step(9), DerivationProgress::Done(expected));
        }
    }

    #[test]
    fn phc_strings_equal_those_of_the_crate() {
        assert_eq!(
            hash("\u{e9}\u{1f511}", [200; 16], 100_000),
            reference("\u{e9}\u{1f511}", &[200; 16], 100_000)
        );
    }

    #[test]
    fn hashes_are_phc_strings_and_verify() {
        let stored = hash("secret words", [7; 16], 100_000);
        assert!(stored.starts_with("$pbkdf2-sha256$i=100000,l=32$"), "{stored}");
        let right = |rounds| check("secret words", Some(&stored), rounds);
        assert_eq!(
            right(100_000),
            PasswordCheck { is_correct: true, is_outdated: false, rounds: 100_000 }
        );
        assert_eq!(
            right(100_001),
            PasswordCheck { is_correct: true, is_outdated: true, rounds: 100_000 }
        );
        assert!(!check("secret word", Some(&stored), 100_000).is_correct);
        // Computed by Python's hashlib.pbkdf2_hmac.
        let other = "$pbkdf2-sha256$i=100000,l=32$AAECAwQFBgcICQoLDA0ODw$BJO7D07E5L9WUb9Rtu+lTcbLNE+br0ZbRboN5gK7XyM";
        assert!(check("secret words", Some(other), 100_000).is_correct);
    }

    #[test]
    fn an_unknown_account_takes_the_same_work() {
        let stored = hash("secret words", [7; 16], 100_000);
        for rounds in [1, 100_000, 150_000] {
            let wanted = rounds.max(MIN_ROUNDS);
            for account in [None, Some(stored.as_str()), Some(""), Some("$pbkdf2-sha256$nonsense")]
            {
                let checked = check("secret word", account, rounds);
                assert_eq!((checked.is_correct, checked.rounds), (false, wanted), "{account:?}");
            }
        }
    }

    #[test]
    fn rounds_have_a_minimum() {
        assert!(hash("secret words", [7; 16], 1).contains("i=100000,"));
    }
}
