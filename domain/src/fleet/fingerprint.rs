//! The fingerprint of an agent's key (contract 6.5). People compare it by eye, and it does not work
//! as a credential.

use sha2::{Digest, Sha256};

use crate::secret::Secret;

/// Hashed together with the key, so that no other hash of the key begins with the fingerprint's
/// bits.
const LABEL: &[u8] = b"farhand agent fingerprint 1\n";
/// The base32 alphabet (RFC 4648).
const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// The number of characters of a fingerprint. Each holds five bits.
const LENGTH: usize = 8;

/// The first 40 bits of SHA-256 over a label and the key, in base32 as `XXXX-XXXX`.
pub fn from_key(key: &Secret) -> String {
    let digest = Sha256::new().chain_update(LABEL).chain_update(key.expose()).finalize();
    let bits = digest.iter().take(5).fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    let digit =
        |place: usize| char::from(ALPHABET[(bits >> (5 * (LENGTH - 1 - place)) & 31) as usize]);
    let text: String = (0..LENGTH).map(digit).collect();
    format!("{}-{}", &text[..4], &text[4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_eight_base32_digits() {
        // printf 'farhand agent fingerprint 1\nsesame' | sha256sum | xxd -r -p | head -c 5 | base32
        assert_eq!(from_key(&Secret::new("sesame")), "2MSR-73UP");
        assert_ne!(from_key(&Secret::new("sesamf")), from_key(&Secret::new("sesame")));
    }
}
