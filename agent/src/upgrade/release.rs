//! A release of the agent: the paths of its files at the service, and the check of its signature
//! (contract 17.2 and 17.3).

use data_encoding::{BASE64, HEXLOWER};
use ring::signature::{ED25519, UnparsedPublicKey};
use semver::Version;
use sha2::{Digest, Sha256};

/// The architecture of this agent, as it is in the names of release files.
const ARCH: &str = std::env::consts::ARCH;
/// The public key of releases in base64, if the build had one (contract 17.3).
const BUILT_IN_KEY: Option<&str> = option_env!("FARHAND_RELEASE_KEY");

/// A version of the agent for this architecture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Release {
    pub version: Version,
}

impl Release {
    /// Parses a version such as `0.2.0`.
    pub fn parse(version: &str) -> Option<Self> {
        Version::parse(version.trim()).ok().map(|version| Self { version })
    }

    /// The path of the program at the service.
    pub fn path(&self) -> String {
        format!("/agent/{}/farhand-agent-{ARCH}", self.version)
    }

    /// The path of the signature at the service.
    pub fn signature_path(&self) -> String {
        format!("{}.sig", self.path())
    }

    /// The text that is signed for a program.
    fn signed_text(&self, program: &[u8]) -> String {
        let sha256 = HEXLOWER.encode(&Sha256::digest(program));
        format!("farhand-agent {} {ARCH} {sha256}\n", self.version)
    }

    /// Checks that the holder of the release key signed this program as this version for this
    /// architecture. `signature` is the text of the file at [`Self::signature_path`].
    ///
    /// # Errors
    /// The signature is invalid.
    pub fn verify(&self, key: &ReleaseKey, program: &[u8], signature: &str) -> Result<(), String> {
        let text = self.signed_text(program);
        BASE64
            .decode(signature.trim().as_bytes())
            .ok()
            .and_then(|signature| {
                UnparsedPublicKey::new(&ED25519, &key.0).verify(text.as_bytes(), &signature).ok()
            })
            .ok_or_else(|| {
                format!("the signature of {} {ARCH} is not from the release key", self.version)
            })
    }
}

/// A public key of releases: 32 bytes of Ed25519.
pub struct ReleaseKey(Vec<u8>);

impl ReleaseKey {
    /// The key of this build.
    ///
    /// # Errors
    /// The build had no valid key.
    pub fn built_in() -> Result<Self, String> {
        match BUILT_IN_KEY.filter(|key| !key.is_empty()) {
            Some(key) => Self::parse(key).ok_or_else(|| "its release key is not valid".to_owned()),
            None => {
                Err("it was built without a release key, so it cannot verify a release".to_owned())
            }
        }
    }

    fn parse(base64: &str) -> Option<Self> {
        BASE64.decode(base64.as_bytes()).ok().filter(|key| key.len() == 32).map(Self)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use ring::signature::{Ed25519KeyPair, KeyPair};

    use super::*;

    fn release(version: &str) -> Release {
        Release::parse(version).unwrap()
    }

    #[test]
    fn only_the_signed_program_and_version_are_accepted() {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let key = ReleaseKey::parse(&BASE64.encode(pair.public_key().as_ref())).unwrap();
        let sign = |text: &str| BASE64.encode(pair.sign(text.as_bytes()).as_ref());
        let signature = sign(&release("0.2.0").signed_text(b"program"));
        let accepts = |version: &str, program: &[u8], signature: &str| {
            release(version).verify(&key, program, signature).is_ok()
        };
        assert!(accepts("0.2.0", b"program", &signature));
        assert!(accepts("0.2.0", b"program", &format!("{signature}\n")));
        assert!(!accepts("0.2.1", b"program", &signature));
        assert!(!accepts("0.2.0", b"program.", &signature));
        assert!(!accepts("0.2.0", b"program", &signature[1..]));
        assert!(!accepts("0.2.0", b"program", ""));
        let other_arch = release("0.2.0").signed_text(b"program").replace(ARCH, "riscv64");
        assert!(!accepts("0.2.0", b"program", &sign(&other_arch)));
        let other = Ed25519KeyPair::from_seed_unchecked(&[8; 32]).unwrap();
        let forged = other.sign(release("0.2.0").signed_text(b"program").as_bytes());
        assert!(!accepts("0.2.0", b"program", &BASE64.encode(forged.as_ref())));
    }

    #[test]
    fn the_signed_text_names_version_architecture_and_hash() {
        let sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let expected = format!("farhand-agent 0.2.0 {ARCH} {sha256}\n");
        assert_eq!(release("0.2.0").signed_text(b""), expected);
        assert_eq!(release("0.2.0").path(), format!("/agent/0.2.0/farhand-agent-{ARCH}"));
    }

    #[test]
    fn a_version_contains_no_path() {
        for bad in ["", "latest", "1.2", "../1.2.3", "1.2.3/..", "1.2.3-a/b", "1.2.3 "] {
            assert!(
                Release::parse(bad).is_none_or(|release| bad.trim() == release.version.to_string())
            );
        }
        assert!(release("0.10.0").version > release("0.9.1").version);
        assert!(release("0.2.0-rc.1").version < release("0.2.0").version);
    }

    #[test]
    fn a_key_has_32_bytes() {
        assert!(ReleaseKey::parse(&BASE64.encode(&[1; 32])).is_some());
        for bad in [BASE64.encode(&[1; 31]), "x".to_owned(), String::new()] {
            assert!(ReleaseKey::parse(&bad).is_none());
        }
    }
}
