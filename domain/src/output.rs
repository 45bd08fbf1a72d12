//! The output of a command, and how much of it is kept where (contract 7.9).

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The most bytes of a command's `result`.
pub const MAX_RESULT: usize = 256 * 1024;
/// The most characters of a `result` in a list.
pub const MAX_RESULT_IN_LIST: usize = 4_096;
/// The most bytes of chunks that are kept for one command.
pub const MAX_KEPT: u64 = 16 * 1024 * 1024;

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut hex, byte| {
        // Writing to a text cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// The SHA-256 of output, which comes in pieces.
#[derive(Default)]
pub struct OutputHash(Sha256);

impl OutputHash {
    /// Adds the next piece.
    pub fn add(&mut self, piece: &str) {
        self.0.update(piece);
    }

    /// The hash in hexadecimal.
    pub fn finish(self) -> String {
        hex(&self.0.finalize())
    }
}

/// The SHA-256 of a whole text, in hexadecimal.
pub fn sha256(text: &str) -> String {
    let mut hash = OutputHash::default();
    hash.add(text);
    hash.finish()
}

/// What is kept of `text` as a result: all of it, or its head and tail around a line that tells of
/// the cut. The flag tells whether it was cut.
pub fn result(text: &str) -> (String, bool) {
    if text.len() <= MAX_RESULT {
        (text.to_owned(), false)
    } else {
        (result_of_ends(text, text, text.len()), true)
    }
}

/// The result of output of `length` bytes, more than a result holds, of which a beginning and an
/// end are at hand. Each is as long as a result, or longer.
pub fn result_of_ends(beginning: &str, end: &str, length: usize) -> String {
    // The number in the marker is not known before the cut is; this leaves room for any.
    let half = (MAX_RESULT - 64) / 2;
    let head = &beginning[..beginning.floor_char_boundary(half)];
    let tail = &end[end.ceil_char_boundary(end.len().saturating_sub(half))..];
    let cut = length.saturating_sub(head.len() + tail.len());
    format!("{head}\n[... {cut} bytes cut ...]\n{tail}")
}

/// The beginning of a result, as long as a list shows it; `None` where the list shows all of it.
pub fn in_list(result: &str) -> Option<&str> {
    result.char_indices().nth(MAX_RESULT_IN_LIST).map(|(end, _)| &result[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_hash_does_not_depend_on_the_pieces() {
        let mut hash = OutputHash::default();
        ["", "a", "bc"].into_iter().for_each(|piece| hash.add(piece));
        assert_eq!(hash.finish(), sha256("abc"));
        assert_eq!(
            sha256("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn what_fits_is_kept_whole() {
        let fits = "ä".repeat(MAX_RESULT / 2);
        assert_eq!(result(&fits), (fits, false));
        assert_eq!(result(""), (String::new(), false));
    }

    #[test]
    fn what_does_not_fit_keeps_head_and_tail() {
        let text = format!("head{}tail", "ä€".repeat(MAX_RESULT));
        let (kept, cut) = result(&text);
        assert!(cut && kept.len() <= MAX_RESULT, "{}", kept.len());
        assert!(kept.starts_with("headä€") && kept.ends_with("ä€tail"));
        let marker = kept.lines().nth(1).unwrap();
        let missing: usize = marker.split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(kept.len() - marker.len() - 2 + missing, text.len());
    }

    #[test]
    fn a_list_shows_the_beginning() {
        assert_eq!(in_list(&"é".repeat(MAX_RESULT_IN_LIST)), None);
        assert_eq!(
            in_list(&"é".repeat(MAX_RESULT_IN_LIST + 1)).map(|s| s.chars().count()),
            Some(MAX_RESULT_IN_LIST)
        );
    }

    proptest! {
        #[test]
        fn never_larger_than_allowed(unit in "\\PC{1,8}", extra in 0usize..5_000) {
            let text = unit.repeat(MAX_RESULT / unit.len() + extra);
            let (kept, cut) = result(&text);
            prop_assert!(kept.len() <= MAX_RESULT);
            prop_assert_eq!(cut, text.len() > MAX_RESULT);
        }
    }
}
