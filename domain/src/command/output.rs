//! The output of a command: its limits and its hash (contract 7.9).

use sha2::{Digest, Sha256};

use crate::hash::hex;

/// Maximum length of a command's `result`, in bytes.
pub const MAX_RESULT: usize = 256 * 1024;
/// Maximum length of `result` in a list, in characters.
pub const MAX_RESULT_IN_LIST: usize = 4_096;
/// Maximum output that is kept for a command: the bytes of its chunks.
pub const MAX_KEPT: u64 = 16 * 1024 * 1024;

/// What was left out of the output of a command.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OutputLoss {
    /// The bytes that arrived and were left out.
    pub skipped: u64,
    /// Whether the reason is the quota of output (contract 11.4).
    pub is_over_quota: bool,
}

impl OutputLoss {
    /// Adds the reason to the message of a status.
    pub fn explain(self, message: String) -> String {
        if !self.is_over_quota {
            return message;
        }
        let skipped = self.skipped;
        format!(
            "{message} {skipped} bytes of its output were left out: the quota of output is used up."
        )
    }
}

/// The SHA-256 of output that is read in pieces.
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

/// Cuts output to the length of a result: keeps the beginning and the end, with a line between them
/// that shows how many bytes were cut. Returns the result, and whether it was cut.
pub fn result(text: &str) -> (String, bool) {
    if text.len() <= MAX_RESULT {
        (text.to_owned(), false)
    } else {
        (result_of_ends(text, text, text.len()), true)
    }
}

/// The result of output that is longer than [`MAX_RESULT`]. `beginning` and `end` are parts of the
/// output, each at least [`MAX_RESULT`] long. `length` is the length of the whole output, in bytes.
pub fn result_of_ends(beginning: &str, end: &str, length: usize) -> String {
    // The line between the parts has at most 64 bytes.
    let half = (MAX_RESULT - 64) / 2;
    let head = &beginning[..beginning.floor_char_boundary(half)];
    let tail = &end[end.ceil_char_boundary(end.len().saturating_sub(half))..];
    let cut = length.saturating_sub(head.len() + tail.len());
    format!("{head}\n[... {cut} bytes cut ...]\n{tail}")
}

/// The part of a result that lists show. Returns `None` if lists show the whole result.
pub fn in_list(result: &str) -> Option<&str> {
    result.char_indices().nth(MAX_RESULT_IN_LIST).map(|(end, _)| &result[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::sha256;
    use proptest::prelude::*;

    #[test]
    fn a_message_explains_output_that_is_over_the_quota() {
        let loss = OutputLoss { skipped: 7, is_over_quota: false };
        assert_eq!(loss.explain("Running.".to_owned()), "Running.");
        let loss = OutputLoss { is_over_quota: true, ..loss };
        assert_eq!(
            loss.explain("Running.".to_owned()),
            "Running. 7 bytes of its output were left out: the quota of output is used up."
        );
    }

    #[test]
    fn the_hash_does_not_depend_on_the_pieces() {
        let mut hash = OutputHash::default();
        ["", "a", "bc"].into_iter().for_each(|piece| hash.add(piece));
        assert_eq!(hash.finish(), sha256("abc"));
    }

    #[test]
    fn a_short_result_is_not_cut() {
        let fits = "ä".repeat(MAX_RESULT / 2);
        assert_eq!(result(&fits), (fits, false));
        assert_eq!(result(""), (String::new(), false));
    }

    #[test]
    fn a_long_result_keeps_head_and_tail() {
        let text = format!("head{}tail", "ä€".repeat(MAX_RESULT));
        let (kept, cut) = result(&text);
        assert!(cut && kept.len() <= MAX_RESULT, "{}", kept.len());
        assert!(kept.starts_with("headä€") && kept.ends_with("ä€tail"));
        let marker = kept.lines().nth(1).unwrap();
        let missing: usize = marker.split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(kept.len() - marker.len() - 2 + missing, text.len());
    }

    #[test]
    fn a_list_shows_the_beginning_of_a_result() {
        assert_eq!(in_list(&"é".repeat(MAX_RESULT_IN_LIST)), None);
        assert_eq!(
            in_list(&"é".repeat(MAX_RESULT_IN_LIST + 1)).map(|s| s.chars().count()),
            Some(MAX_RESULT_IN_LIST)
        );
    }

    proptest! {
        #[test]
        fn a_result_is_never_longer_than_the_limit(unit in "\\PC{1,8}", extra in 0usize..5_000) {
            let text = unit.repeat(MAX_RESULT / unit.len() + extra);
            let (kept, cut) = result(&text);
            prop_assert!(kept.len() <= MAX_RESULT);
            prop_assert_eq!(cut, text.len() > MAX_RESULT);
        }
    }
}
