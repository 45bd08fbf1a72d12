//! Stores and reads the output of commands: the table `chunks` of a server's object.

use farhand_domain::agent::wire::Chunk;
use farhand_domain::command::chunk_row::ChunkRow;
use farhand_domain::command::end::End;
use farhand_domain::command::object::Output;
use farhand_domain::command::output::{self, OutputHash};
use farhand_domain::hash::sha256;
use farhand_domain::link::store::{ReadLimit, Result};
use farhand_domain::link::stored_command::StoredCommand;
use farhand_domain::time::Timestamp;
use farhand_sql::object::server_link::chunks::{self, Piece};
use farhand_sql::statement::Statement;
use serde::Deserialize;
use uuid::Uuid;

use super::tables::Tables;

/// The maximum bytes of content in one row. The platform limits a row to 2 MB.
const MAX_PIECE_BYTES: usize = 1_000_000;
/// The maximum number of chunk rows per command. Beyond it, chunks that need a new row are ignored.
/// Only output with many gaps reaches this limit, because consecutive chunks share rows.
const MAX_CHUNK_ROWS: u64 = 16_384;
/// A `seq` that is higher than any chunk's: agents send 32 bits.
const AFTER_LAST_SEQ: u64 = 1 << 32;

/// One row of the table. A [`ChunkRow`] with much content is stored as several pieces.
#[derive(Deserialize)]
struct ChunkPiece {
    first: f64,
    lengths: String,
    content: String,
}

/// The content of a row, or of one piece of a row.
#[derive(Deserialize)]
struct ContentRow {
    content: String,
}

/// Joins pieces into rows. The pieces of a row follow each other.
fn join_pieces(
    pieces: impl Iterator<Item = Result<ChunkPiece>>,
) -> impl Iterator<Item = Result<ChunkRow>> {
    let mut pieces = pieces.peekable();
    std::iter::from_fn(move || {
        let ChunkPiece { first, lengths, mut content } = match pieces.next()? {
            Ok(piece) => piece,
            Err(error) => return Some(Err(error)),
        };
        while let Some(Ok(more)) =
            pieces.next_if(|next| next.as_ref().is_ok_and(|next| next.first == first))
        {
            content.push_str(&more.content);
        }
        Some(Ok(ChunkRow::stored(first as u64, &lengths, content)))
    })
}

impl Tables {
    /// Deletes the first rows of a command's chunks: up to `limit` table rows, plus the remaining
    /// pieces of the last chunk row. Returns how many rows of the `limit` were used.
    pub(super) fn delete_chunks(&self, id: Uuid, limit: u64) -> Result<u64> {
        let number = self.count(chunks::count(id, limit))?;
        self.drop_sums(id);
        self.exec(chunks::delete_first(id, limit))?;
        Ok(number)
    }

    pub(super) fn has_chunks(&self, id: Uuid) -> Result<bool> {
        Ok(self.count(chunks::count(id, 1))? > 0)
    }

    /// Stores a chunk of output. Returns false if the chunk is a duplicate or cannot be stored.
    ///
    /// A command keeps the first bytes of its output, up to its limit, in the order of `seq`.
    /// If a chunk arrives out of order, the last kept chunks lose their content to make room. For a
    /// chunk without kept content, only the length is stored.
    pub fn add_output(
        &self,
        stored: &StoredCommand,
        chunk: &Chunk,
        now: Timestamp,
    ) -> Result<bool> {
        let (id, seq) = (stored.command.id, u64::from(chunk.seq));
        let before = self.chunk_row(chunks::row_up_to(id, seq))?;
        if before.as_ref().is_some_and(|row| seq < row.end()) {
            return Ok(false);
        }
        let new =
            ChunkRow::new(seq, &chunk.content, stored.cut_at.is_none_or(|cut_at| seq < cut_at));
        let mut sums = stored.chunks;
        sums.count += 1;
        sums.bytes += chunk.content.len() as u64;
        sums.kept_bytes += new.content.len() as u64;
        let mut row = match before {
            Some(mut row) if row.has_room_for(&new) => {
                row.append(&new);
                row
            }
            _ if sums.rows >= MAX_CHUNK_ROWS => return Ok(false),
            _ => {
                sums.rows += 1;
                new
            }
        };
        // If the chunk fills the gap before the next row, that row is joined to this row.
        let after = if row.end() < sums.top {
            self.chunk_row(chunks::row_at(id, row.end()))?
        } else {
            None
        };
        // If a statement fails, the sums are read again.
        self.drop_sums(id);
        if let Some(after) = after.filter(|after| row.has_room_for(after)) {
            self.exec(chunks::delete_row(id, after.first))?;
            row.append(&after);
            sums.rows -= 1;
        }
        sums.top = sums.top.max(seq + 1);
        self.store_chunks(id, &row)?;
        let mut cut_at = stored.cut_at;
        while sums.kept_bytes > stored.max_kept() {
            let end = cut_at.unwrap_or(AFTER_LAST_SEQ);
            let Some(mut last) = self.chunk_row(chunks::row_before(id, end))? else { break };
            while sums.kept_bytes > stored.max_kept()
                && let Some((seq, bytes)) = last.drop_last(cut_at.unwrap_or(AFTER_LAST_SEQ))
            {
                sums.kept_bytes = sums.kept_bytes.saturating_sub(bytes);
                cut_at = Some(seq);
            }
            self.store_chunks(id, &last)?;
        }
        self.keep_sums(id, sums);
        let has_ended = stored.life.outcome().is_some();
        if has_ended || cut_at != stored.cut_at {
            let output_at = if has_ended { Some(now) } else { stored.output_at };
            // D1 gets the output when the command ends. So D1 needs an update only for a chunk
            // after the end.
            let document = StoredCommand { cut_at, output_at, ..stored.clone() };
            self.store_document(&document, has_ended)?;
        }
        Ok(true)
    }

    /// Reads a row of chunks. The statement returns its pieces.
    fn chunk_row(&self, pieces: Statement) -> Result<Option<ChunkRow>> {
        let rows: Vec<ChunkPiece> = self.rows(pieces)?;
        join_pieces(rows.into_iter().map(Ok)).next().transpose()
    }

    /// Stores a row of chunks. It replaces a stored row that begins with the same chunk.
    fn store_chunks(&self, id: Uuid, row: &ChunkRow) -> Result<()> {
        let mut rest = row.content.as_str();
        let mut piece = 0;
        loop {
            let (this, after) = rest.split_at(rest.floor_char_boundary(MAX_PIECE_BYTES));
            let stored = Piece {
                first: row.first,
                piece,
                next: row.end(),
                bytes: if piece == 0 { row.bytes() } else { 0 },
                kept: if piece == 0 { row.content.len() as u64 } else { 0 },
                lengths: row.lengths(),
                content: this.to_owned(),
            };
            self.exec(chunks::store(id, stored))?;
            piece += 1;
            if after.is_empty() {
                break;
            }
            rest = after;
        }
        // If the row lost content, pieces of it may remain. `bytes` includes lost content.
        if row.bytes() > MAX_PIECE_BYTES as u64 {
            self.exec(chunks::delete_pieces(id, row.first, piece))?;
        }
        Ok(())
    }

    /// The ranges of kept chunks, beginning at the `seq` `from`. The end of a range is exclusive.
    fn chunk_ranges(&self, stored: &StoredCommand, from: u64) -> Result<Vec<(u64, u64)>> {
        #[derive(Deserialize)]
        struct RangeRow {
            first: f64,
            next: f64,
        }
        let end = stored.kept_end();
        let rows: Vec<RangeRow> = self.rows(chunks::ranges(stored.command.id, from, end))?;
        Ok(rows
            .iter()
            .map(|row| ((row.first as u64).max(from), (row.next as u64).min(end)))
            .collect())
    }

    /// Counts the kept chunks of a command, beginning at the `seq` `from`.
    pub fn count_output(&self, stored: &StoredCommand, from: u64) -> Result<u64> {
        if !stored.has_gap() {
            return Ok(stored.kept_end().saturating_sub(from));
        }
        Ok(self.chunk_ranges(stored, from)?.iter().map(|(first, end)| end - first).sum())
    }

    /// Skips `offset` kept chunks, beginning at the `seq` `from`. Returns the `seq` of the next
    /// kept chunk.
    pub fn find_output(
        &self,
        stored: &StoredCommand,
        from: u64,
        offset: u64,
    ) -> Result<Option<u64>> {
        if !stored.has_gap() {
            return Ok(Some(from.saturating_add(offset)).filter(|seq| *seq < stored.kept_end()));
        }
        let mut left = offset;
        for (first, end) in self.chunk_ranges(stored, from)? {
            if left < end - first {
                return Ok(Some(first + left));
            }
            left -= end - first;
        }
        Ok(None)
    }

    /// Reads kept chunks of a command in order, beginning at the `seq` `from`.
    pub fn read_output(
        &self,
        stored: &StoredCommand,
        from: u64,
        limit: ReadLimit,
    ) -> Result<Vec<Chunk>> {
        let (mut chunks, mut bytes): (Vec<Chunk>, usize) = (Vec::new(), 0);
        let pieces = chunks::pieces(stored.command.id, from, stored.kept_end());
        for row in join_pieces(self.each::<ChunkPiece>(pieces)?) {
            for chunk in row?.chunks(from, stored.kept_end()) {
                let is_after_gap =
                    chunks.last().is_some_and(|last| last.seq.checked_add(1) != Some(chunk.seq));
                let is_full = chunks.len() as u64 >= limit.chunks || bytes > limit.bytes;
                if is_full || (limit.until_gap && is_after_gap) {
                    return Ok(chunks);
                }
                bytes += chunk.content.len();
                chunks.push(chunk);
            }
        }
        Ok(chunks)
    }

    /// Reads the content that a statement returns, until it exceeds the maximum length of a result.
    /// The flag is true if all content was read.
    fn some_content(&self, all: Statement) -> Result<(Vec<String>, bool)> {
        let (mut contents, mut length) = (Vec::new(), 0);
        for row in self.each::<ContentRow>(all)? {
            if length > output::MAX_RESULT {
                return Ok((contents, false));
            }
            let ContentRow { content } = row?;
            length += content.len();
            contents.push(content);
        }
        Ok((contents, true))
    }

    /// Computes the SHA-256 of a command's kept chunks, or of its result if it has no chunks.
    /// Returns `None` if chunks are missing that may still arrive. If `is_late`, missing chunks are
    /// no longer expected.
    pub fn hash_output(&self, stored: &StoredCommand, is_late: bool) -> Result<Option<String>> {
        if !is_late && !stored.has_all_chunks() {
            return Ok(None);
        }
        if stored.chunks.count == 0 {
            return Ok(Some(sha256(stored.result.as_deref().unwrap_or_default())));
        }
        let mut hash = OutputHash::default();
        for row in self.each::<ContentRow>(chunks::contents(stored.command.id))? {
            hash.add(&row?.content);
        }
        Ok(Some(hash.finish()))
    }

    /// Builds a result from the chunks of a command. The flag is true if the result is cut. Output
    /// can be far larger than a result, so only its beginning and its end are read.
    fn result_from_chunks(&self, stored: &StoredCommand) -> Result<(String, bool)> {
        let (head, is_all) = self.some_content(chunks::contents(stored.command.id))?;
        if is_all {
            return Ok(output::result(&head.concat()));
        }
        let (mut tail, _) = self.some_content(chunks::contents_backwards(stored.command.id))?;
        tail.reverse();
        let length = usize::try_from(stored.chunks.bytes).unwrap_or(usize::MAX);
        Ok((output::result_of_ends(&head.concat(), &tail.concat(), length), true))
    }

    /// A command's output: the result that the agent sent, or a result that is built from the
    /// chunks. The output has no result until the command finishes.
    pub fn whole_output(&self, stored: &StoredCommand) -> Result<Output> {
        let bytes = stored.output_bytes();
        if !matches!(stored.life.end, Some(End::Finished(_))) {
            return Ok(Output { result: None, truncated: false, bytes });
        }
        let is_cut = bytes > output::MAX_RESULT as u64 || stored.output_loss().skipped > 0;
        let (result, cut) = match &stored.result {
            Some(result) if !result.is_empty() || stored.chunks.bytes == 0 => {
                (result.clone(), stored.result_cut)
            }
            _ => self.result_from_chunks(stored)?,
        };
        Ok(Output { result: Some(result), truncated: cut || is_cut, bytes })
    }
}
