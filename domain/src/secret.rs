//! Secrets: credentials and their stored hashes, and the keys that are derived from `SECRET_KEY`.

use std::fmt;

use crate::hash::hex;
use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Key, Nonce};
use base64ct::{Base64, Encoding};
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;

/// The length of login tokens, API keys and agent keys, in characters (contract 4.2).
pub const TOKEN_LENGTH: usize = 128;

const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
/// Random bytes of this value or more are dropped, so that all characters of the alphabet are
/// equally likely.
const UNBIASED_LIMIT: u8 = 248;

/// A credential in plain form. It has no `Display`, and its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a credential.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// A new token: [`TOKEN_LENGTH`] characters of `[A-Za-z0-9]`. `random` fills a slice with
    /// random bytes.
    ///
    /// # Errors
    /// The error of `random`.
    pub fn generate<E>(mut random: impl FnMut(&mut [u8]) -> Result<(), E>) -> Result<Self, E> {
        let mut token = String::with_capacity(TOKEN_LENGTH);
        let mut bytes = [0; TOKEN_LENGTH + 32];
        while token.len() < TOKEN_LENGTH {
            random(&mut bytes)?;
            let unbiased = bytes.iter().filter(|b| **b < UNBIASED_LIMIT);
            let characters =
                unbiased.map(|b| char::from(ALPHABET[usize::from(*b) % ALPHABET.len()]));
            token.extend(characters.take(TOKEN_LENGTH - token.len()));
        }
        Ok(Self(token))
    }

    /// Whether the text has the form of a token from [`Secret::generate`]. Other texts need no
    /// lookup.
    pub fn is_token(&self) -> bool {
        self.0.len() == TOKEN_LENGTH && self.0.bytes().all(|b| b.is_ascii_alphanumeric())
    }

    /// The plain text, for hashing and for the only response that shows it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Compares in constant time.
    pub fn equals(&self, other: &Self) -> bool {
        // Digests have the same length, and a partly equal digest reveals nothing about the text.
        let digest = |secret: &Self| Sha256::digest(secret.expose());
        digest(self).ct_eq(&digest(other)).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The kind of a credential. The stored hash depends on it, so the hash of one kind never matches
/// another kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A login token or an API key. Both have this kind, because the table with the hash
    /// distinguishes them (contract 4.2).
    Token,
    /// An agent's key.
    AgentKey,
    /// A registration token, with which an agent registers its server.
    RegistrationToken,
    /// The secret in the URL of a channel's WebSocket (contract 21.6).
    Channel,
}

impl Purpose {
    fn label(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::AgentKey => "agent-key",
            Self::RegistrationToken => "registration-token",
            Self::Channel => "channel",
        }
    }
}

/// The hash of a credential, in hexadecimal. D1, KV and the objects store it instead of the
/// credential.
///
/// The hash needs no key and need not be slow: a credential of [`TOKEN_LENGTH`] random characters
/// has over 700 bits of entropy, so it cannot be guessed.
///
/// ```
/// # use farhand_domain::secret::{Purpose, Secret, credential_hash};
/// let secret = Secret::new("s3cret");
/// let hash = credential_hash(Purpose::Token, &secret);
/// assert_eq!(hash.len(), 64);
/// assert_ne!(hash, credential_hash(Purpose::AgentKey, &secret));
/// ```
pub fn credential_hash(purpose: Purpose, secret: &Secret) -> String {
    let prefix = format!("farhand {} 1\0", purpose.label());
    hex(&Sha256::new().chain_update(prefix).chain_update(secret.expose()).finalize())
}

/// A kind of text that can be guessed or may contain a credential. Only its keyed hash is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guessable {
    /// An e-mail address for which a password reset was requested.
    Address,
    /// The username of a login attempt. It may be a password that the user typed into the wrong
    /// field.
    Username,
    /// An Idempotency-Key, whose text the client chooses.
    IdempotencyKey,
    /// The body of a request, whose `env` may contain credentials.
    Body,
    /// The environment of a command, for the audit log.
    Environment,
}

impl Guessable {
    fn label(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Username => "username",
            Self::IdempotencyKey => "idempotency-key",
            Self::Body => "body",
            Self::Environment => "audit-env",
        }
    }
}

fn mac(key: &[u8], text: &str) -> [u8; 32] {
    let mut mac =
        <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().into()
}

/// Minimum length of `SECRET_KEY` and `OPERATOR_TOKEN`, in characters (contract 11.3).
pub const MIN_SECRET_LENGTH: usize = 32;

/// Why a `SECRET_KEY` cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidSecretKey {
    /// It is not set, or empty.
    Missing,
    /// It has fewer than [`MIN_SECRET_LENGTH`] characters.
    TooShort,
}

/// The key of the region cell: the secret `SECRET_KEY`, and during a rotation also
/// `SECRET_KEY_PREVIOUS`.
///
/// Each use has its own derived key. New hashes, reset links and ciphertexts use the current key.
/// Reset links and ciphertexts are accepted under both keys.
#[derive(Clone)]
pub struct SecretKey {
    current: Vec<u8>,
    previous: Option<Vec<u8>>,
}

impl SecretKey {
    /// Takes both secrets. An empty `previous` means that no rotation is in progress.
    ///
    /// # Errors
    /// `current` is missing, or one of the secrets is too short.
    pub fn new(current: &str, previous: &str) -> Result<Self, InvalidSecretKey> {
        if current.is_empty() {
            return Err(InvalidSecretKey::Missing);
        }
        let is_short = |key: &str| key.chars().count() < MIN_SECRET_LENGTH;
        if is_short(current) || (!previous.is_empty() && is_short(previous)) {
            return Err(InvalidSecretKey::TooShort);
        }
        let previous =
            Some(previous).filter(|previous| !previous.is_empty() && *previous != current);
        Ok(Self { current: current.into(), previous: previous.map(Into::into) })
    }

    /// Derives the key for one use. It reveals nothing about the keys for other uses.
    fn derive(key: &[u8], label: &str) -> [u8; 32] {
        mac(key, &format!("farhand {label} 1"))
    }

    /// The keyed hash of a text, in hexadecimal. A rotation of the key changes it.
    pub fn hash(&self, what: Guessable, text: &str) -> String {
        hex(&mac(&Self::derive(&self.current, what.label()), text))
    }

    /// The key in the link for a new password: the id of the reset request and its signature. So
    /// the key is stored neither in D1 nor with the waiting mail.
    pub fn reset_key(&self, request: Uuid) -> Secret {
        Self::reset_key_under(&self.current, request)
    }

    fn reset_key_under(key: &[u8], request: Uuid) -> Secret {
        let id = request.simple().to_string();
        let signature = mac(&Self::derive(key, "reset-key"), &id);
        Secret::new(format!("{id}{}", hex(&signature)))
    }

    /// The current key and, during a rotation, the previous key.
    fn keys(&self) -> impl Iterator<Item = &Vec<u8>> {
        [Some(&self.current), self.previous.as_ref()].into_iter().flatten()
    }

    /// The id of the reset request in a link's key. Returns `None` if it was signed with neither
    /// the current nor the previous key.
    pub fn reset_request(&self, key: &Secret) -> Option<Uuid> {
        let request = Uuid::try_parse(key.expose().get(..32)?).ok()?;
        self.keys()
            .any(|signer| Self::reset_key_under(signer, request).equals(key))
            .then_some(request)
    }
}

/// The length of the nonce of AES-GCM, in bytes.
pub const NONCE_LENGTH: usize = 12;

impl SecretKey {
    /// Encrypts the inputs of a command with AES-256-GCM. The result is base64, and can be
    /// decrypted only for the same command.
    ///
    /// # Errors
    /// The text is longer than the cipher allows: 64 GiB.
    pub fn encrypt_inputs(
        &self,
        command: Uuid,
        text: &str,
        nonce: [u8; NONCE_LENGTH],
    ) -> Result<String, TextTooLong> {
        let payload = Payload { msg: text.as_bytes(), aad: command.as_bytes() };
        let sealed = Self::inputs_cipher(&self.current)
            .encrypt(&Nonce::from(nonce), payload)
            .map_err(|_| TextTooLong)?;
        Ok(Base64::encode_string(&[&nonce[..], &sealed].concat()))
    }

    /// Decrypts the result of [`SecretKey::encrypt_inputs`], under the current or the previous key.
    /// Returns `None` if neither key decrypts it for this command.
    pub fn decrypt_inputs(&self, command: Uuid, sealed: &str) -> Option<String> {
        let sealed = Base64::decode_vec(sealed).ok()?;
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LENGTH>()?;
        let opened = self.keys().find_map(|key| {
            let payload = Payload { msg: sealed, aad: command.as_bytes() };
            Self::inputs_cipher(key).decrypt(&Nonce::from(*nonce), payload).ok()
        })?;
        String::from_utf8(opened).ok()
    }

    fn inputs_cipher(key: &[u8]) -> Aes256Gcm {
        Aes256Gcm::new(&Key::<Aes256Gcm>::from(Self::derive(key, "command-inputs")))
    }
}

/// The text is too long to be encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextTooLong;

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(…)")
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
        for byte in 0..UNBIASED_LIMIT {
            counts[usize::from(ALPHABET[usize::from(byte) % ALPHABET.len()])] += 1;
        }
        assert!(ALPHABET.iter().all(|c| counts[usize::from(*c)] == 4));
    }

    #[test]
    fn an_error_of_the_random_source_is_returned() {
        assert_eq!(Secret::generate(|_| Err("dry")).unwrap_err(), "dry");
    }

    const OLD: &str = "an old key of 32 characters or more";
    const NEW: &str = "a new key of 32 characters or more!";

    fn key(current: &str, previous: &str) -> SecretKey {
        SecretKey::new(current, previous).unwrap()
    }

    #[test]
    fn a_credential_is_stored_as_sha_256_with_a_prefix() {
        let token = Secret::new("abc");
        assert_eq!(
            credential_hash(Purpose::Token, &token),
            hex(&Sha256::digest(b"farhand token 1\0abc")),
            "the documented form"
        );
        let hashes = [Purpose::Token, Purpose::AgentKey, Purpose::RegistrationToken]
            .map(|p| credential_hash(p, &token));
        assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2] && hashes[0] != hashes[2]);
        assert_ne!(hashes[0], credential_hash(Purpose::Token, &Secret::new("abd")));
    }

    #[test]
    fn keyed_hashes_depend_on_key_and_use() {
        let (one, two) = (key(OLD, ""), key(NEW, ""));
        let hash = one.hash(Guessable::Address, "a@example.com");
        assert_eq!(hash.len(), 64);
        assert_eq!(hash, one.hash(Guessable::Address, "a@example.com"));
        assert_ne!(hash, two.hash(Guessable::Address, "a@example.com"));
        assert_ne!(hash, one.hash(Guessable::Username, "a@example.com"));
        assert_eq!(two.hash(Guessable::Body, "x"), key(NEW, OLD).hash(Guessable::Body, "x"));
    }

    #[test]
    fn short_keys_are_refused() {
        let short = &OLD[..MIN_SECRET_LENGTH - 1];
        assert_eq!(SecretKey::new("", OLD).unwrap_err(), InvalidSecretKey::Missing);
        assert_eq!(SecretKey::new(short, "").unwrap_err(), InvalidSecretKey::TooShort);
        assert_eq!(SecretKey::new(OLD, short).unwrap_err(), InvalidSecretKey::TooShort);
        assert_eq!(
            SecretKey::new(&"ä".repeat(MIN_SECRET_LENGTH - 1), "").unwrap_err(),
            InvalidSecretKey::TooShort
        );
        assert!(SecretKey::new(&OLD[..MIN_SECRET_LENGTH], "").is_ok());
    }

    #[test]
    fn a_reset_key_has_the_id_of_its_request() {
        let (one, two) = (key(OLD, ""), key(NEW, ""));
        let request = Uuid::from_u128(7);
        let reset = one.reset_key(request);
        assert_eq!(reset.expose().len(), 96);
        assert_eq!(one.reset_request(&reset), Some(request));
        assert_eq!(two.reset_request(&reset), None);
        let text = reset.expose();
        for bad in [
            "",
            "x",
            &text[..95],
            &format!("{text}0"),
            &text.to_uppercase(),
            &text.replace('0', "ä"),
            &text[..32],
        ] {
            assert_eq!(one.reset_request(&Secret::new(bad)), None, "{bad}");
        }
        let other = format!("{}{}", Uuid::from_u128(8).simple(), &text[32..]);
        assert_eq!(one.reset_request(&Secret::new(other)), None);
    }

    #[test]
    fn reset_links_work_during_a_rotation() {
        let rotating = key(NEW, OLD);
        let request = Uuid::from_u128(7);
        assert_eq!(rotating.reset_key(request), key(NEW, "").reset_key(request));
        let unrelated = key("another key of 32 characters or more", "");
        for (signer, found) in
            [(key(OLD, ""), Some(request)), (key(NEW, ""), Some(request)), (unrelated, None)]
        {
            assert_eq!(rotating.reset_request(&signer.reset_key(request)), found);
        }
    }

    #[test]
    fn inputs_are_decrypted_for_their_command_only() {
        let (command, nonce) = (Uuid::from_u128(7), [1; NONCE_LENGTH]);
        let text = r#"{"TOKEN":"s3cret ü"}"#;
        let sealed = key(OLD, "").encrypt_inputs(command, text, nonce).unwrap();
        assert!(
            !sealed.contains("s3cret")
                && !Base64::decode_vec(&sealed).unwrap().windows(6).any(|w| w == b"s3cret")
        );
        assert_ne!(sealed, key(OLD, "").encrypt_inputs(command, text, [2; NONCE_LENGTH]).unwrap());
        for opener in [key(OLD, ""), key(NEW, OLD), key(OLD, NEW)] {
            assert_eq!(opener.decrypt_inputs(command, &sealed).as_deref(), Some(text));
        }
        assert_eq!(key(NEW, "").decrypt_inputs(command, &sealed), None);
        assert_eq!(key(OLD, "").decrypt_inputs(Uuid::from_u128(8), &sealed), None);
        let mut changed = Base64::decode_vec(&sealed).unwrap();
        for at in 0..changed.len() {
            changed[at] ^= 1;
            assert_eq!(
                key(OLD, "").decrypt_inputs(command, &Base64::encode_string(&changed)),
                None,
                "byte {at}"
            );
            changed[at] ^= 1;
        }
        for bad in ["", "x", "AAAA", &sealed[..sealed.len() - 4]] {
            assert_eq!(key(OLD, "").decrypt_inputs(command, bad), None, "{bad}");
        }
    }

    #[test]
    fn debug_does_not_show_secrets() {
        let shown = format!("{:?} {:?}", Secret::new(OLD), key(NEW, OLD));
        assert!(!shown.contains("key of"), "{shown}");
    }

    #[test]
    fn equal_secrets_have_equal_texts() {
        assert!(Secret::new("abc").equals(&Secret::new("abc")));
        assert!(!Secret::new("abc").equals(&Secret::new("abd")));
        assert!(!Secret::new("abc").equals(&Secret::new("ab")));
    }
}
