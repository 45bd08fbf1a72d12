//! PBKDF2-HMAC-SHA-256 only.

use std::hint::black_box;

use sha2::Sha256;

/// Derives a key of 32 bytes with `rounds` rounds. Returns its first four bytes.
#[unsafe(no_mangle)]
pub extern "C" fn derive(rounds: u32) -> u32 {
    let key: [u8; 32] =
        pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(black_box(b"a password of the bench"), black_box(&[7; 16]), rounds);
    u32::from_be_bytes([key[0], key[1], key[2], key[3]])
}
