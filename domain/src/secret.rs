//! Secrets: credentials in plain form, which are never stored, and their keyed hashes, which are.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use uuid::Uuid;

/// The length of login tokens, API keys and agent keys, in characters (spec.md, Limits).
pub const TOKEN_LENGTH: usize = 128;

const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
/// Random bytes from here on are dropped, so that each character of the alphabet is equally likely.
const UNBIASED: u8 = 248;

/// A credential in plain form. It has no `Display`, and its `Debug` shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a credential that came in.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// A new token of [`TOKEN_LENGTH`] characters of `[A-Za-z0-9]`, drawn from a source of random bytes.
    pub fn generate<E>(mut random: impl FnMut(&mut [u8]) -> Result<(), E>) -> Result<Self, E> {
        let mut token = String::with_capacity(TOKEN_LENGTH);
        let mut bytes = [0; TOKEN_LENGTH + 32];
        while token.len() < TOKEN_LENGTH {
            random(&mut bytes)?;
            let unbiased = bytes.iter().filter(|b| **b < UNBIASED);
            let characters = unbiased.map(|b| char::from(ALPHABET[usize::from(*b) % ALPHABET.len()]));
            token.extend(characters.take(TOKEN_LENGTH - token.len()));
        }
        Ok(Self(token))
    }

    /// The plain text, for the one response that shows it and for hashing.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Compares in time that does not depend on where the texts differ.
    pub fn equals(&self, other: &Self) -> bool {
        // Hashes are of one length, and a hash that matches in part says nothing of the text.
        let key = Pepper::new(b"comparison");
        key.mac("compare", self).ct_eq(&key.mac("compare", other)).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What a credential is for. It goes into the hash, so that a hash of one kind is never found as another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A login token or an API key: one kind, told apart by where the hash is found (contract 4).
    Token,
    /// An agent's key.
    AgentKey,
    /// What an agent registers its server with.
    RegistrationToken,
    /// An e-mail address that a password reset was asked for: not a credential, but nobody else's business.
    Address,
    /// A username that somebody tried to log in with: it may be a password that was typed in the wrong place.
    GuessedName,
    /// An Idempotency-Key, which may be anything that a client thinks up.
    IdempotencyKey,
    /// The body of a request for a command, whose environment may hold credentials.
    CommandBody,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The key under which credentials are hashed: the Worker secret `TOKEN_PEPPER`.
#[derive(Clone)]
pub struct Pepper(Vec<u8>);

impl Pepper {
    /// Takes the secret's bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    fn mac(&self, label: &str, secret: &Secret) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(label.as_bytes());
        mac.update(&[0]);
        mac.update(secret.expose().as_bytes());
        mac.finalize().into_bytes().into()
    }

    /// The keyed hash of a credential, in hexadecimal: what D1, KV and the objects hold in its place.
    pub fn hash(&self, purpose: Purpose, secret: &Secret) -> String {
        let label = match purpose {
            Purpose::Token => "token",
            Purpose::AgentKey => "agent-key",
            Purpose::RegistrationToken => "registration-token",
            Purpose::Address => "address",
            Purpose::GuessedName => "guessed-name",
            Purpose::IdempotencyKey => "idempotency-key",
            Purpose::CommandBody => "command-body",
        };
        hex(&self.mac(label, secret))
    }

    /// The key of the link that resets a password: the request's id, and a keyed hash of it. So nothing of the key needs to
    /// be stored, be it where the request is kept or where its mail waits to be sent.
    pub fn reset_key(&self, request: Uuid) -> Secret {
        let id = request.simple().to_string();
        let mac = self.mac("reset-key", &Secret::new(&id));
        Secret::new(format!("{id}{}", hex(&mac)))
    }

    /// The request that a key of such a link is for; `None` where it was not made with this pepper.
    pub fn reset_request(&self, key: &Secret) -> Option<Uuid> {
        let request = Uuid::try_parse(key.expose().get(..32)?).ok()?;
        self.reset_key(request).equals(key).then_some(request)
    }
}

impl fmt::Debug for Pepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pepper(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_128_alphanumeric_characters() {
        let mut next = 0u8;
        let source = |bytes: &mut [u8]| {
            for byte in bytes {
                *byte = next;
                next = next.wrapping_add(7);
            }
            Ok::<_, ()>(())
        };
        let token = Secret::generate(source).unwrap();
        assert_eq!(token.expose().len(), TOKEN_LENGTH);
        assert!(token.expose().bytes().all(|b| b.is_ascii_alphanumeric()));
    }

    #[test]
    fn every_character_is_equally_likely() {
        let mut counts = [0; 256];
        for byte in 0..UNBIASED {
            counts[usize::from(ALPHABET[usize::from(byte) % ALPHABET.len()])] += 1;
        }
        assert!(ALPHABET.iter().all(|c| counts[usize::from(*c)] == 4));
    }

    #[test]
    fn a_failing_source_makes_no_token() {
        assert_eq!(Secret::generate(|_| Err("dry")).unwrap_err(), "dry");
    }

    #[test]
    fn hashes_depend_on_pepper_and_purpose() {
        let secret = Secret::new("abc");
        let (one, two) = (Pepper::new(b"one"), Pepper::new(b"two"));
        let hash = one.hash(Purpose::Token, &secret);
        assert_eq!(hash.len(), 64);
        assert_eq!(hash, one.hash(Purpose::Token, &Secret::new("abc")));
        assert_ne!(hash, two.hash(Purpose::Token, &secret));
        assert_ne!(hash, one.hash(Purpose::AgentKey, &secret));
    }

    #[test]
    fn reset_keys_name_their_request() {
        let (one, two) = (Pepper::new(b"one"), Pepper::new(b"two"));
        let request = Uuid::from_u128(7);
        let key = one.reset_key(request);
        assert_eq!(key.expose().len(), 96);
        assert_eq!(one.reset_request(&key), Some(request));
        assert_eq!(two.reset_request(&key), None);
        let text = key.expose();
        for bad in
            ["", "x", &text[..95], &format!("{text}0"), &text.to_uppercase(), &text.replace('0', "ä"), &text[..32]]
        {
            assert_eq!(one.reset_request(&Secret::new(bad)), None, "{bad}");
        }
        let other = format!("{}{}", Uuid::from_u128(8).simple(), &text[32..]);
        assert_eq!(one.reset_request(&Secret::new(other)), None);
    }

    #[test]
    fn debug_shows_nothing() {
        let shown = format!("{:?} {:?}", Secret::new("hunter2"), Pepper::new(b"hunter2"));
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn comparison() {
        assert!(Secret::new("abc").equals(&Secret::new("abc")));
        assert!(!Secret::new("abc").equals(&Secret::new("abd")));
        assert!(!Secret::new("abc").equals(&Secret::new("ab")));
    }
}
