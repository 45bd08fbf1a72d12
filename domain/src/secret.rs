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
        let of = |secret| mac(b"comparison", "compare", secret);
        of(self).ct_eq(&of(other)).into()
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

/// By what a credential may be found: its keyed hash, and while the pepper is being rotated also the one under the previous.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hashes {
    /// Under the pepper of now, by which it is stored from now on.
    pub current: String,
    /// Under the pepper before it, where that is still good.
    pub previous: Option<String>,
}

impl Hashes {
    /// Tells whether a stored hash is one of them.
    ///
    /// ```
    /// # use farhand_domain::secret::{Pepper, Purpose, Secret};
    /// let secret = Secret::new("s3cret");
    /// let old = Pepper::new(b"old").hash(Purpose::Token, &secret);
    /// let rotating = Pepper::new(b"new").with_previous(b"old");
    /// assert!(rotating.hashes(Purpose::Token, &secret).include(&old));
    /// assert!(!Pepper::new(b"new").hashes(Purpose::Token, &secret).include(&old));
    /// ```
    pub fn include(&self, stored: &str) -> bool {
        self.current == stored || self.previous.as_deref() == Some(stored)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn mac(key: &[u8], label: &str, secret: &Secret) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(label.as_bytes());
    mac.update(&[0]);
    mac.update(secret.expose().as_bytes());
    mac.finalize().into_bytes().into()
}

/// The key under which credentials are hashed: the Worker secret `TOKEN_PEPPER`. While it is being rotated, what was hashed
/// under the one before it, `TOKEN_PEPPER_PREVIOUS`, is found as well.
#[derive(Clone)]
pub struct Pepper {
    current: Vec<u8>,
    previous: Option<Vec<u8>>,
}

impl Pepper {
    /// Takes the secret's bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self { current: bytes.to_vec(), previous: None }
    }

    /// The same beside the one before it. An empty one is none, and the same one once more is none either.
    #[must_use]
    pub fn with_previous(self, bytes: &[u8]) -> Self {
        let previous = Some(bytes).filter(|bytes| !bytes.is_empty() && *bytes != self.current);
        Self { previous: previous.map(<[u8]>::to_vec), ..self }
    }

    /// The keyed hash of a credential, in hexadecimal: what D1, KV and the objects hold in its place.
    pub fn hash(&self, purpose: Purpose, secret: &Secret) -> String {
        Self::hash_under(&self.current, purpose, secret)
    }

    /// The keyed hashes by which a credential may be found.
    pub fn hashes(&self, purpose: Purpose, secret: &Secret) -> Hashes {
        let previous = self.previous.as_ref().map(|key| Self::hash_under(key, purpose, secret));
        Hashes { current: self.hash(purpose, secret), previous }
    }

    fn hash_under(key: &[u8], purpose: Purpose, secret: &Secret) -> String {
        let label = match purpose {
            Purpose::Token => "token",
            Purpose::AgentKey => "agent-key",
            Purpose::RegistrationToken => "registration-token",
            Purpose::Address => "address",
            Purpose::GuessedName => "guessed-name",
            Purpose::IdempotencyKey => "idempotency-key",
            Purpose::CommandBody => "command-body",
        };
        hex(&mac(key, label, secret))
    }

    /// The key of the link that resets a password: the request's id, and a keyed hash of it. So nothing of the key needs to
    /// be stored, be it where the request is kept or where its mail waits to be sent.
    pub fn reset_key(&self, request: Uuid) -> Secret {
        Self::reset_key_under(&self.current, request)
    }

    fn reset_key_under(key: &[u8], request: Uuid) -> Secret {
        let id = request.simple().to_string();
        let mac = mac(key, "reset-key", &Secret::new(&id));
        Secret::new(format!("{id}{}", hex(&mac)))
    }

    /// The request that a key of such a link is for; `None` where it was made with neither pepper.
    pub fn reset_request(&self, key: &Secret) -> Option<Uuid> {
        let request = Uuid::try_parse(key.expose().get(..32)?).ok()?;
        let mut peppers = [Some(&self.current), self.previous.as_ref()].into_iter().flatten();
        peppers.any(|pepper| Self::reset_key_under(pepper, request).equals(key)).then_some(request)
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
    fn what_was_made_before_a_rotation_is_found_during_it() {
        let secret = Secret::new("s3cret");
        let (old, new) = (Pepper::new(b"old"), Pepper::new(b"new"));
        let rotating = new.clone().with_previous(b"old");
        let hashes = rotating.hashes(Purpose::Token, &secret);
        assert_eq!(hashes.current, new.hash(Purpose::Token, &secret));
        assert_eq!(hashes.previous, Some(old.hash(Purpose::Token, &secret)));
        assert!(hashes.include(&hashes.current) && !hashes.include("") && !hashes.include(&hashes.current[1..]));
        assert!(!hashes.include(&Pepper::new(b"other").hash(Purpose::Token, &secret)));
        let request = Uuid::from_u128(7);
        assert_eq!(rotating.reset_key(request), new.reset_key(request));
        for (pepper, found) in [(&old, Some(request)), (&new, Some(request)), (&Pepper::new(b"other"), None)] {
            assert_eq!(rotating.reset_request(&pepper.reset_key(request)), found);
        }
        // An unset secret is an empty one, and the same one twice makes no second hash.
        for none in [&b""[..], b"new"] {
            assert_eq!(new.clone().with_previous(none).hashes(Purpose::Token, &secret).previous, None);
        }
    }

    #[test]
    fn debug_shows_nothing() {
        let shown = format!("{:?} {:?}", Secret::new("hunter2"), Pepper::new(b"hunter2").with_previous(b"hunter22"));
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn comparison() {
        assert!(Secret::new("abc").equals(&Secret::new("abc")));
        assert!(!Secret::new("abc").equals(&Secret::new("abd")));
        assert!(!Secret::new("abc").equals(&Secret::new("ab")));
    }
}
