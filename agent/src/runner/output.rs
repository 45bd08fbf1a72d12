//! What a command writes: bytes to text, text to chunks, and the part of it that the last report
//! repeats (agent-protocol 6.4).
//!
//! Nothing here grows with the output: a command that never stops writing costs the same as one
//! that wrote a megabyte.

use farhand_domain::output::{MAX_KEPT, MAX_RESULT};

/// Bytes of text in a chunk while the service keeps up with the command.
pub const CHUNK_BYTES: usize = 4 * 1024;
/// Bytes of text in a chunk while the service is slower than the command: fewer calls carry the
/// same output.
pub const LARGE_CHUNK_BYTES: usize = 64 * 1024;
/// Bytes of text that wait to be cut into chunks, before the command has to wait for the service.
const MAX_WAITING: usize = 4 * 1024 * 1024;
/// As much of the output's beginning as a cut result keeps, and as much of its end: what
/// [`farhand_domain::output::result`] keeps.
const HALF: usize = (MAX_RESULT - 64) / 2;
/// How much may lie behind the head before all but the last [`HALF`] is thrown away. It leaves out
/// the beginning, so it must be at least [`MAX_RESULT`], as up to there nothing is cut; the rest
/// makes throwing away rare.
const MAX_REST: usize = MAX_RESULT + 64 * 1024;

/// Turns bytes into text as they come: a character whose bytes come in two pieces is held back
/// until it is whole, and what is no UTF-8 becomes U+FFFD, one for each piece that
/// [`String::from_utf8_lossy`] would replace.
#[derive(Default)]
pub struct Decoder {
    /// The first bytes of a character, at most three.
    held: Vec<u8>,
}

impl Decoder {
    /// Appends the text of `bytes` to `text`.
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        // A held piece is three bytes at most, so joining it costs no more than reading did.
        let joined;
        let rest = if self.held.is_empty() {
            bytes
        } else {
            joined = [std::mem::take(&mut self.held).as_slice(), bytes].concat();
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
                self.held = chunk.invalid().to_vec();
            } else {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }

    /// At the end of the output: what was held back is no character any more.
    pub fn finish(&mut self, text: &mut String) {
        if !std::mem::take(&mut self.held).is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Cuts text into the chunks that are sent: the first [`MAX_KEPT`] bytes, and one character more.
#[derive(Default)]
pub struct Chunker {
    waiting: String,
    taken: u64,
}

impl Chunker {
    /// Takes more text. What the service does not keep is dropped, except one character: so the
    /// service notices the cut.
    pub fn push(&mut self, text: &str) {
        let room = (MAX_KEPT + 1).saturating_sub(self.taken);
        let end = text.ceil_char_boundary(
            usize::try_from(room).map_or(text.len(), |room| room.min(text.len())),
        );
        self.taken += end as u64;
        self.waiting.push_str(&text[..end]);
    }

    /// Whether some text waits.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a whole chunk waits.
    pub fn has_chunk(&self) -> bool {
        self.waiting.len() >= CHUNK_BYTES
    }

    /// Whether more output may be read. If not, the command has to wait for the service.
    pub fn has_room(&self) -> bool {
        self.waiting.len() < MAX_WAITING || self.taken > MAX_KEPT
    }

    /// The next chunk, of at most `limit` bytes; `None` if no text waits.
    pub fn next(&mut self, limit: usize) -> Option<String> {
        match self.waiting.floor_char_boundary(limit) {
            0 => None,
            end if end == self.waiting.len() => Some(std::mem::take(&mut self.waiting)),
            end => Some(self.waiting.drain(..end).collect()),
        }
    }

    /// Drops the text that waits, and all that follows.
    pub fn close(&mut self) {
        *self = Self { waiting: String::new(), taken: MAX_KEPT + 1 };
    }
}

/// The output as the last report repeats it: whole, or its head and tail around a line that marks
/// the cut, in the form of [`farhand_domain::output::result`] but in bounded memory.
#[derive(Default)]
pub struct Kept {
    head: String,
    head_is_full: bool,
    rest: String,
    total: usize,
}

impl Kept {
    /// Takes more text.
    pub fn push(&mut self, mut text: &str) {
        self.total += text.len();
        if !self.head_is_full {
            let end = text.floor_char_boundary(HALF - self.head.len());
            let (head, behind) = text.split_at(end);
            self.head.push_str(head);
            // A character that did not fit ends the head, even if a smaller one would still fit.
            self.head_is_full = !behind.is_empty();
            text = behind;
        }
        self.rest.push_str(text);
        if self.rest.len() > MAX_REST {
            let start = self.rest.floor_char_boundary(self.rest.len() - HALF);
            self.rest.drain(..start);
        }
    }

    /// Bytes of all that was taken.
    pub fn total(&self) -> usize {
        self.total
    }

    /// The result: at most [`MAX_RESULT`] bytes.
    pub fn finish(self) -> String {
        let Self { mut head, rest, total, .. } = self;
        if total <= MAX_RESULT {
            head.push_str(&rest);
            return head;
        }
        let tail = &rest[rest.ceil_char_boundary(rest.len() - HALF)..];
        let cut = total - head.len() - tail.len();
        format!("{head}\n[... {cut} bytes cut ...]\n{tail}")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use farhand_domain::output::result;
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
    fn a_character_in_two_pieces_is_whole() {
        let euro = "€".as_bytes();
        assert_eq!(decode(&[&euro[..1], &euro[1..2], &euro[2..]]), "€");
        assert_eq!(decode(&[b"a", "😀".as_bytes(), b"b"]), "a😀b");
    }

    #[test]
    fn what_is_no_text_is_replaced_and_nul_stays() {
        assert_eq!(decode(&[b"a\xffb\0c"]), "a\u{fffd}b\0c");
        // Cut off at the end, or by a character that does not go on.
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
    fn chunks_end_with_the_first_character_that_is_not_kept() {
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
        chunker.push(&"x".repeat(MAX_WAITING));
        assert!(!chunker.has_room());
        chunker.next(LARGE_CHUNK_BYTES);
        assert!(chunker.has_room());
        chunker.push(&"x".repeat(MAX_KEPT as usize));
        assert!(chunker.has_room() && chunker.is_waiting());
    }

    #[test]
    fn a_result_is_cut_like_the_service_cuts() {
        for unit in ["a", "ä", "a€", "€😀b"] {
            for length in [
                0,
                10,
                HALF,
                MAX_RESULT - 1,
                MAX_RESULT,
                MAX_RESULT + 1,
                MAX_REST + HALF,
                3 * MAX_RESULT,
            ] {
                let text = unit.repeat(length / unit.len() + 1);
                let mut kept = Kept::default();
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
        let mut kept = Kept::default();
        let piece = "y\n".repeat(32 * 1024);
        for _ in 0..1_000 {
            kept.push(&piece);
            assert!(kept.head.capacity() + kept.rest.capacity() < 4 * MAX_RESULT);
        }
        assert!(kept.finish().len() <= MAX_RESULT);
    }

    proptest! {
        #[test]
        fn decoding_in_pieces_is_decoding_at_once(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..8), 0..20)) {
            let whole = pieces.concat();
            let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(decode(&pieces), String::from_utf8_lossy(&whole));
        }

        #[test]
        fn text_in_pieces_of_bytes_comes_back(text in "\\PC{0,40}", cut in 1usize..5) {
            let pieces: Vec<_> = text.as_bytes().chunks(cut).collect();
            prop_assert_eq!(decode(&pieces), text);
        }

        #[test]
        fn chunks_are_the_text(unit in "\\PC{1,6}", times in prop::collection::vec(0usize..4_000, 1..4)) {
            let pieces: Vec<_> = times.iter().map(|times| unit.repeat(*times)).collect();
            let pieces: Vec<_> = pieces.iter().map(String::as_str).collect();
            let chunks = chunks(&pieces);
            prop_assert_eq!(chunks.concat(), pieces.concat());
            prop_assert!(chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK_BYTES));
        }
    }
}
