//! Decodes a command's output as text, cuts the text into chunks, and keeps the part for the fin
//! (agent-protocol 6.4).
//!
//! Memory use is limited to a few megabytes, even for a command that never stops writing.

use farhand_domain::command::output::{MAX_KEPT, MAX_RESULT};

/// The size of a chunk while the service is as fast as the command, in bytes.
pub const CHUNK_BYTES: usize = 4 * 1024;
/// The size of a chunk while the service is slower than the command, in bytes. Larger chunks need
/// fewer calls.
pub const LARGE_CHUNK_BYTES: usize = 64 * 1024;
/// The maximum size of the text that waits to be cut into chunks, in bytes. Beyond this size, the
/// command must wait for the service.
const MAX_WAITING_BYTES: usize = 4 * 1024 * 1024;
/// A cut result keeps this many bytes of its beginning and of its end, as
/// [`farhand_domain::command::output::result`] does.
const HALF_RESULT_BYTES: usize = (MAX_RESULT - 64) / 2;
/// The maximum size of the text after the head, in bytes. Beyond this size, only its last
/// [`HALF_RESULT_BYTES`] bytes are kept. The limit must be at least [`MAX_RESULT`], because a
/// shorter output is not cut. The extra 64 KiB make cuts rare.
const MAX_TAIL_BYTES: usize = MAX_RESULT + 64 * 1024;

/// Decodes a stream of bytes as UTF-8. An incomplete character at the end of a piece waits for the
/// next piece. Invalid bytes become U+FFFD, exactly as in [`String::from_utf8_lossy`].
#[derive(Default)]
pub struct Decoder {
    /// The bytes of an incomplete character, at most three.
    incomplete: Vec<u8>,
}

impl Decoder {
    /// Appends the text of `bytes` to `text`.
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        // Copying costs no more than reading the bytes from the pipe.
        let joined;
        let rest = if self.incomplete.is_empty() {
            bytes
        } else {
            joined = [std::mem::take(&mut self.incomplete).as_slice(), bytes].concat();
            joined.as_slice()
        };
        let mut chunks = rest.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            if chunk.invalid().is_empty() {
                continue;
            }
            let is_last = chunks.peek().is_none();
            if is_last
                && std::str::from_utf8(chunk.invalid())
                    .is_err_and(|error| error.error_len().is_none())
            {
                self.incomplete = chunk.invalid().to_vec();
            } else {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }

    /// Ends the stream. An incomplete character becomes U+FFFD.
    pub fn finish(&mut self, text: &mut String) {
        if !std::mem::take(&mut self.incomplete).is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Cuts the first [`MAX_KEPT`] bytes of the text into chunks, and one more character, so that the
/// service notices that output was cut.
#[derive(Default)]
pub struct Chunker {
    waiting: String,
    accepted: u64,
}

impl Chunker {
    /// Adds text. Drops the text that the service would not keep, except one character.
    pub fn push(&mut self, text: &str) {
        let room = (MAX_KEPT + 1).saturating_sub(self.accepted);
        let end = text.ceil_char_boundary(
            usize::try_from(room).map_or(text.len(), |room| room.min(text.len())),
        );
        self.accepted += end as u64;
        self.waiting.push_str(&text[..end]);
    }

    /// Whether some text waits.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a full chunk waits.
    pub fn has_chunk(&self) -> bool {
        self.waiting.len() >= CHUNK_BYTES
    }

    /// Whether more output may be read. If not, the command must wait for the service.
    pub fn has_room(&self) -> bool {
        self.waiting.len() < MAX_WAITING_BYTES || self.accepted > MAX_KEPT
    }

    /// Takes the next chunk, of at most `limit` bytes. Returns `None` if no text waits.
    pub fn next(&mut self, limit: usize) -> Option<String> {
        match self.waiting.floor_char_boundary(limit) {
            0 => None,
            end if end == self.waiting.len() => Some(std::mem::take(&mut self.waiting)),
            end => Some(self.waiting.drain(..end).collect()),
        }
    }

    /// Drops the waiting text and all later text.
    pub fn close(&mut self) {
        *self = Self { waiting: String::new(), accepted: MAX_KEPT + 1 };
    }
}

/// The output for the fin: the whole output, or its head and tail around a line that marks the cut.
/// The result is the same as from [`farhand_domain::command::output::result`], but needs only limited
/// memory.
#[derive(Default)]
pub struct FinOutput {
    head: String,
    head_is_full: bool,
    tail: String,
    total: usize,
}

impl FinOutput {
    /// Adds text.
    pub fn push(&mut self, mut text: &str) {
        self.total += text.len();
        if !self.head_is_full {
            let end = text.floor_char_boundary(HALF_RESULT_BYTES - self.head.len());
            let (head, behind) = text.split_at(end);
            self.head.push_str(head);
            // The head ends at the first character that does not fit, even if a later, shorter
            // character would fit.
            self.head_is_full = !behind.is_empty();
            text = behind;
        }
        self.tail.push_str(text);
        if self.tail.len() > MAX_TAIL_BYTES {
            let start = self.tail.floor_char_boundary(self.tail.len() - HALF_RESULT_BYTES);
            self.tail.drain(..start);
        }
    }

    /// The size of all added text, in bytes.
    pub fn total(&self) -> usize {
        self.total
    }

    /// The text for the fin, of at most [`MAX_RESULT`] bytes.
    pub fn finish(self) -> String {
        let Self { mut head, tail, total, .. } = self;
        if total <= MAX_RESULT {
            head.push_str(&tail);
            return head;
        }
        let tail = &tail[tail.ceil_char_boundary(tail.len() - HALF_RESULT_BYTES)..];
        let cut = total - head.len() - tail.len();
        format!("{head}\n[... {cut} bytes cut ...]\n{tail}")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use farhand_domain::command::output::result;
    use proptest::prelude::*;

    fn decode(pieces: &[&[u8]]) -> String {
        let mut decoder = Decoder::default();
        let mut text = String::new();
        for piece in pieces {
            decoder.push(piece, &mut text);
        }
        decoder.finish(&mut text);
        text
    }

    fn chunks(pieces: &[&str]) -> Vec<String> {
        let mut chunker = Chunker::default();
        let mut chunks = Vec::new();
        for piece in pieces {
            chunker.push(piece);
            while chunker.has_chunk() {
                chunks.extend(chunker.next(CHUNK_BYTES));
            }
        }
        chunks.extend(std::iter::from_fn(|| chunker.next(CHUNK_BYTES)));
        chunks
    }

    #[test]
    fn a_character_split_over_pieces_is_joined() {
        let euro = "€".as_bytes();
        assert_eq!(decode(&[&euro[..1], &euro[1..2], &euro[2..]]), "€");
        assert_eq!(decode(&[b"a", "😀".as_bytes(), b"b"]), "a😀b");
    }

    #[test]
    fn invalid_bytes_are_replaced_and_nul_stays() {
        assert_eq!(decode(&[b"a\xffb\0c"]), "a\u{fffd}b\0c");
        // An incomplete character at the end, or before another character.
        assert_eq!(decode(&[b"a\xe2\x82"]), "a\u{fffd}");
        assert_eq!(decode(&[b"a\xe2\x82", b"b"]), "a\u{fffd}b");
    }

    #[test]
    fn chunks_are_full_and_never_split_a_character() {
        let text = "€".repeat(3_000);
        let chunks = chunks(&[&text]);
        assert_eq!(chunks.concat(), text);
        assert_eq!(chunks.iter().map(String::len).collect::<Vec<_>>(), [4_095, 4_095, 810]);
    }

    #[test]
    fn chunks_end_one_character_after_the_kept_output() {
        let mut chunker = Chunker::default();
        let piece = "€".repeat(CHUNK_BYTES);
        let mut sent = 0;
        for _ in 0..2 * MAX_KEPT as usize / piece.len() {
            chunker.push(&piece);
            sent += std::iter::from_fn(|| chunker.next(LARGE_CHUNK_BYTES))
                .map(|chunk| chunk.len())
                .sum::<usize>();
        }
        assert!((MAX_KEPT as usize + 1..MAX_KEPT as usize + 4).contains(&sent), "{sent}");
        assert!(!chunker.is_waiting());
    }

    #[test]
    fn a_command_waits_only_for_output_that_is_kept() {
        let mut chunker = Chunker::default();
        chunker.push(&"x".repeat(MAX_WAITING_BYTES));
        assert!(!chunker.has_room());
        chunker.next(LARGE_CHUNK_BYTES);
        assert!(chunker.has_room());
        chunker.push(&"x".repeat(MAX_KEPT as usize));
        assert!(chunker.has_room() && chunker.is_waiting());
    }

    #[test]
    fn a_result_is_cut_as_the_service_cuts_it() {
        for unit in ["a", "ä", "a€", "€😀b"] {
            for length in [
                0,
                10,
                HALF_RESULT_BYTES,
                MAX_RESULT - 1,
                MAX_RESULT,
                MAX_RESULT + 1,
                MAX_TAIL_BYTES + HALF_RESULT_BYTES,
                3 * MAX_RESULT,
            ] {
                let text = unit.repeat(length / unit.len() + 1);
                let mut kept = FinOutput::default();
                // Pieces of an odd size, at character boundaries.
                let mut rest = text.as_str();
                while !rest.is_empty() {
                    let (piece, behind) =
                        rest.split_at(rest.ceil_char_boundary(rest.len().min(9_973)));
                    kept.push(piece);
                    rest = behind;
                }
                assert!(kept.finish() == result(&text).0, "{unit} {length}");
            }
        }
    }

    #[test]
    fn endless_output_is_kept_in_bounded_memory() {
        let mut kept = FinOutput::default();
        let piece = "y\n".repeat(32 * 1024);
        for _ in 0..1_000 {
            kept.push(&piece);
            assert!(kept.head.capacity() + kept.tail.capacity() < 4 * MAX_RESULT);
        }
        assert!(kept.finish().len() <= MAX_RESULT);
    }

    proptest! {
        #[test]
        fn decoding_pieces_equals_decoding_the_whole(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..8), 0..20)) {
            let whole = pieces.concat();
            let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(decode(&pieces), String::from_utf8_lossy(&whole));
        }

        #[test]
        fn valid_text_survives_any_split(text in "\\PC{0,40}", cut in 1usize..5) {
            let pieces: Vec<_> = text.as_bytes().chunks(cut).collect();
            prop_assert_eq!(decode(&pieces), text);
        }

        #[test]
        fn chunks_together_are_the_text(unit in "\\PC{1,6}", times in prop::collection::vec(0usize..4_000, 1..4)) {
            let pieces: Vec<_> = times.iter().map(|times| unit.repeat(*times)).collect();
            let pieces: Vec<_> = pieces.iter().map(String::as_str).collect();
            let chunks = chunks(&pieces);
            prop_assert_eq!(chunks.concat(), pieces.concat());
            prop_assert!(chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK_BYTES));
        }
    }
}
