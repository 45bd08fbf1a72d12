//! Output chunks packed into rows. A row holds consecutive chunks, so that many small chunks need
//! few rows.

use crate::agent::wire::Chunk;

/// Maximum content of a row with more than one chunk, in bytes.
pub const MAX_BYTES: usize = 64 * 1024;
/// Maximum number of chunks in a row.
const MAX_CHUNKS: usize = 4_096;

/// A row of consecutive chunks.
///
/// A command keeps only the chunks below some `seq`, its limit. So `content` has the row's chunks
/// below the limit. Of all other chunks, only the lengths are stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkRow {
    /// The `seq` of the first chunk.
    pub first: u64,
    /// The length of each chunk in bytes, kept or not.
    lengths: Vec<u64>,
    /// The content of the kept chunks.
    pub content: String,
}

impl ChunkRow {
    /// A row of one chunk.
    pub fn new(seq: u64, content: &str, is_kept: bool) -> Self {
        let kept = if is_kept { content } else { "" };
        Self { first: seq, lengths: vec![content.len() as u64], content: kept.to_owned() }
    }

    /// Reads a stored row: the first `seq`, [`Self::lengths`] and the content.
    pub fn stored(first: u64, lengths: &str, content: String) -> Self {
        let lengths = lengths.split(',').filter_map(|length| length.parse().ok()).collect();
        Self { first, lengths, content }
    }

    /// The stored form of the lengths: decimal numbers, separated by commas.
    pub fn lengths(&self) -> String {
        self.lengths.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
    }

    /// One more than the `seq` of the last chunk.
    pub fn end(&self) -> u64 {
        self.first + self.lengths.len() as u64
    }

    /// The length of all chunks in bytes, kept or not.
    pub fn bytes(&self) -> u64 {
        self.lengths.iter().sum()
    }

    /// Whether the chunks of `next` follow this row's chunks and fit into it.
    pub fn has_room_for(&self, next: &Self) -> bool {
        next.first == self.end()
            && self.content.len() + next.content.len() <= MAX_BYTES
            && self.lengths.len() + next.lengths.len() <= MAX_CHUNKS
    }

    /// Adds the chunks of `next`. Call this only if [`Self::has_room_for`] is true.
    pub fn append(&mut self, next: &Self) {
        self.lengths.extend(&next.lengths);
        self.content.push_str(&next.content);
    }

    /// The kept chunks with a `seq` from `from` to below `end`.
    pub fn chunks(&self, from: u64, end: u64) -> impl Iterator<Item = Chunk> {
        let mut at = 0;
        (self.first..end).zip(&self.lengths).filter_map(move |(seq, length)| {
            let begins = at;
            at += usize::try_from(*length).ok()?;
            let content = self.content.get(begins..at)?.to_owned();
            (seq >= from).then_some(Chunk { seq: u32::try_from(seq).ok()?, content })
        })
    }

    /// Drops the content of the last chunk below `end`. Returns the `seq` and the length of the
    /// chunk.
    pub fn drop_last(&mut self, end: u64) -> Option<(u64, u64)> {
        let last = end.min(self.end()).checked_sub(1).filter(|last| *last >= self.first)?;
        let length = *self.lengths.get(usize::try_from(last - self.first).ok()?)?;
        self.content.truncate(self.content.len().saturating_sub(usize::try_from(length).ok()?));
        Some((last, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(row: &ChunkRow, from: u64, end: u64) -> Vec<(u32, String)> {
        row.chunks(from, end).map(|chunk| (chunk.seq, chunk.content)).collect()
    }

    #[test]
    fn a_row_keeps_the_boundaries_of_its_chunks() {
        let mut row = ChunkRow::new(3, "one", true);
        for (seq, content) in [(4, ""), (5, "zw\u{f6}lf\0"), (6, "x")] {
            let next = ChunkRow::new(seq, content, true);
            assert!(row.has_room_for(&next));
            row.append(&next);
        }
        let row = ChunkRow::stored(row.first, &row.lengths(), row.content);
        assert_eq!((row.end(), row.bytes()), (7, 11));
        let all = [(3, "one"), (4, ""), (5, "zw\u{f6}lf\0"), (6, "x")]
            .map(|(seq, text)| (seq, text.to_owned()));
        assert_eq!(texts(&row, 0, 100), all);
        assert_eq!(texts(&row, 5, 6), all[2..3]);
        assert!(texts(&row, 7, 100).is_empty() && texts(&row, 0, 3).is_empty());
    }

    #[test]
    fn rows_are_bounded() {
        let large = "x".repeat(MAX_BYTES);
        let row = ChunkRow::new(0, &large, true);
        assert!(
            row.has_room_for(&ChunkRow::new(1, "", true))
                && !row.has_room_for(&ChunkRow::new(1, "y", true))
        );
        assert!(
            !ChunkRow::new(0, "", true).has_room_for(&ChunkRow::new(2, "", true)),
            "there is a gap"
        );
        let mut row = ChunkRow::new(0, "", true);
        while row.has_room_for(&ChunkRow::new(row.end(), "", true)) {
            row.append(&ChunkRow::new(row.end(), "", true));
        }
        assert_eq!(row.end(), MAX_CHUNKS as u64);
    }

    proptest! {
        /// Each call drops the last kept chunk, and does not change the other chunks.
        #[test]
        fn the_last_chunk_is_dropped_first(contents in proptest::collection::vec("\\PC{0,5}", 1..9), first in 0..9u64) {
            let mut row = ChunkRow::new(first, &contents[0], true);
            for content in &contents[1..] {
                let next = ChunkRow::new(row.end(), content, true);
                row.append(&next);
            }
            let (mut end, all) = (row.end(), texts(&row, 0, row.end()));
            while let Some((seq, length)) = row.drop_last(end) {
                prop_assert_eq!(seq + 1, end);
                prop_assert_eq!(length, all[(seq - first) as usize].1.len() as u64);
                end = seq;
                prop_assert_eq!(texts(&row, 0, end), &all[..(end - first) as usize]);
            }
            prop_assert_eq!((end, row.content.as_str(), row.bytes()), (first, "", contents.concat().len() as u64));
        }
    }
}
