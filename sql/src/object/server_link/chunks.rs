//! The table `chunks`: the output of commands.
//!
//! Queries for pieces have the columns `first`, `lengths` and `content`, and return the pieces of a
//! row one after the other.

use uuid::Uuid;

use crate::statement::{Statement, fixed};

/// The statements on one command's chunks.
fn of(command: Uuid, statement: Statement) -> Statement {
    statement.bind("command", command)
}

/// The sums over a command's chunks, in the column `sums`: `ChunkSums` as JSON. Only piece 0 of a
/// row has the row's numbers.
pub fn sums(command: Uuid) -> Statement {
    of(
        command,
        fixed!(
            "SELECT json_object('rows', count(*), 'bytes', coalesce(sum(bytes), 0),
                'count', coalesce(sum(next - first), 0), 'top', coalesce(max(next), 0),
                'kept_bytes', coalesce(sum(kept), 0)) AS sums
             FROM chunks WHERE command = :command AND piece = 0"
        ),
    )
}

/// The number of table rows of a command, at most `limit`, in the column `number`.
pub fn count(command: Uuid, limit: u64) -> Statement {
    let statement = fixed!(
        "SELECT count(*) AS number FROM (SELECT 1 FROM chunks WHERE command = :command LIMIT :limit + 0)"
    );
    of(command, statement).bind("limit", limit)
}

/// Deletes the first `limit` table rows of a command, and the other pieces of the last of these
/// rows.
pub fn delete_first(command: Uuid, limit: u64) -> Statement {
    let statement = fixed!(
        "DELETE FROM chunks WHERE command = :command
            AND first <= (SELECT max(first) FROM (SELECT first FROM chunks WHERE command = :command ORDER BY first LIMIT :limit + 0))"
    );
    of(command, statement).bind("limit", limit)
}

/// The pieces of the first row of a command that satisfies a condition, which may end with an ORDER
/// BY. The condition's parameter is `:seq`.
macro_rules! select_row {
    ($condition:expr) => {
        fixed!(concat!(
            "SELECT first, lengths, content FROM chunks WHERE command = :command AND first = (
                SELECT first FROM chunks WHERE command = :command AND piece = 0 AND ",
            $condition,
            " LIMIT 1) ORDER BY piece"
        ))
    };
}

/// The pieces of the last row that begins with this chunk or an earlier one.
pub fn row_up_to(command: Uuid, seq: u64) -> Statement {
    of(command, select_row!("first <= :seq ORDER BY first DESC")).bind("seq", seq)
}

/// The pieces of the last row that begins with an earlier chunk.
pub fn row_before(command: Uuid, seq: u64) -> Statement {
    of(command, select_row!("first < :seq ORDER BY first DESC")).bind("seq", seq)
}

/// The pieces of the row that begins with this chunk.
pub fn row_at(command: Uuid, seq: u64) -> Statement {
    of(command, select_row!("first = :seq")).bind("seq", seq)
}

/// A piece of a row.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The `seq` of the row's first chunk.
    pub first: u64,
    /// The number of the piece in the row.
    pub piece: u64,
    /// The `seq` after the row's last chunk.
    pub next: u64,
    /// The bytes of the row's chunks, or 0 in a later piece than piece 0.
    pub bytes: u64,
    /// The bytes of the row's content, or 0 in a later piece than piece 0.
    pub kept: u64,
    /// The lengths of the row's chunks.
    pub lengths: String,
    /// The content of the piece.
    pub content: String,
}

/// Stores a piece. It replaces the stored piece with this number of a row that begins with the same
/// chunk.
pub fn store(command: Uuid, piece: Piece) -> Statement {
    let statement = fixed!(
        "INSERT INTO chunks (command, first, piece, next, bytes, kept, lengths, content)
                VALUES (:command, :first, :piece, :next, :bytes, :kept, :lengths, :content)
                ON CONFLICT (command, first, piece)
                DO UPDATE SET next = :next, bytes = :bytes, kept = :kept, lengths = :lengths, content = :content"
    );
    of(command, statement)
        .bind("first", piece.first)
        .bind("piece", piece.piece)
        .bind("next", piece.next)
        .bind("bytes", piece.bytes)
        .bind("kept", piece.kept)
        .bind("lengths", piece.lengths)
        .bind("content", piece.content)
}

/// Deletes a row.
pub fn delete_row(command: Uuid, first: u64) -> Statement {
    of(command, fixed!("DELETE FROM chunks WHERE command = :command AND first = :first"))
        .bind("first", first)
}

/// Deletes the pieces of a row from a number on.
pub fn delete_pieces(command: Uuid, first: u64, from: u64) -> Statement {
    let statement = fixed!(
        "DELETE FROM chunks WHERE command = :command AND first = :first AND piece >= :piece"
    );
    of(command, statement).bind("first", first).bind("piece", from)
}

/// The ranges of chunks (`first`, `next`) that have a chunk from `from` to before `end`.
pub fn ranges(command: Uuid, from: u64, end: u64) -> Statement {
    let statement = fixed!(
        "SELECT first, next FROM chunks WHERE command = :command AND piece = 0
            AND next > :from AND first < :end ORDER BY first"
    );
    of(command, statement).bind("from", from).bind("end", end)
}

/// The pieces of the rows that may have a chunk from `from` to before `end`.
pub fn pieces(command: Uuid, from: u64, end: u64) -> Statement {
    let statement = fixed!(
        "SELECT first, lengths, content FROM chunks WHERE command = :command AND first < :end
            AND first >= coalesce((SELECT max(first) FROM chunks WHERE command = :command AND first <= :from), :from)
            ORDER BY first, piece"
    );
    of(command, statement).bind("from", from).bind("end", end)
}

/// The column `content` of all pieces, in the order of the output.
pub fn contents(command: Uuid) -> Statement {
    of(command, fixed!("SELECT content FROM chunks WHERE command = :command ORDER BY first, piece"))
}

/// The column `content` of all pieces, the last one first.
pub fn contents_backwards(command: Uuid) -> Statement {
    of(
        command,
        fixed!(
            "SELECT content FROM chunks WHERE command = :command ORDER BY first DESC, piece DESC"
        ),
    )
}
