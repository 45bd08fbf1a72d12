//! The tables of a server's object.

pub mod answers;
pub mod chunks;
pub mod commands;

use crate::statement::{Statement, fixed};

/// Creates the tables. An object runs the statements when it first stores something.
pub fn schema() -> [Statement; 9] {
    [
        // One row: the server's state without its commands (`ServerState`), as JSON.
        fixed!("CREATE TABLE server (id INTEGER PRIMARY KEY, document TEXT NOT NULL)"),
        // Stored commands: `document` (`StoredCommand` as JSON), `result` (the agent's), and the
        // columns that queries need.
        // - `stage`: `StoredCommand::stage`, or null.
        // - `due_at`: the time of the command's timer.
        // - `revision` counts the changes. `flushed` is the revision that D1 has.
        // - `is_active`: 1 if the command needs work other than its delivery from the queue. Few
        //   commands are active. Indexes filter on this column and contain few other columns,
        //   because each index entry that a statement may change is billed as two written rows.
        fixed!(
            "CREATE TABLE commands (
        id TEXT PRIMARY KEY,
        phase TEXT NOT NULL,
        stage TEXT,
        scheduled_at TEXT NOT NULL,
        due_at TEXT,
        revision INTEGER NOT NULL,
        flushed INTEGER NOT NULL,
        is_active INTEGER NOT NULL,
        document TEXT NOT NULL,
        result TEXT,
        CHECK (is_active OR phase = 'accepted' AND stage IS NOT 'open' AND flushed >= revision
            AND (due_at IS NULL OR stage IS 'waiting'))
    ) WITHOUT ROWID"
        ),
        // Serves: queries for delivered commands that have not ended, for changes that D1 does not
        // have, and for commands that are due.
        fixed!("CREATE INDEX commands_active ON commands (id) WHERE is_active = 1"),
        // Serves: the queue, in the order of delivery.
        fixed!(
            "CREATE INDEX commands_waiting ON commands (scheduled_at, id) WHERE stage = 'waiting'"
        ),
        // Serves: the alarm's query for waiting commands that are due.
        fixed!("CREATE INDEX commands_waiting_due ON commands (due_at) WHERE stage = 'waiting'"),
        // Output. A row holds consecutive chunks (`ChunkRow`).
        // - `first` is the seq of its first chunk, `next` the seq after its last one.
        // - `lengths`: the bytes of each chunk. `bytes`: their sum.
        // - `content`: the stored content. `kept`: its bytes.
        // - `piece`: content that exceeds the limit of a row is split into several pieces. Piece 0
        //   has the sums `bytes` and `kept`. In later pieces they are 0.
        fixed!(
            "CREATE TABLE chunks (
        command TEXT NOT NULL,
        first INTEGER NOT NULL,
        piece INTEGER NOT NULL,
        next INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        kept INTEGER NOT NULL,
        lengths TEXT NOT NULL,
        content TEXT NOT NULL,
        PRIMARY KEY (command, first, piece)
    ) WITHOUT ROWID"
        ),
        // For each Idempotency-Key, the response to its first request. `answer` is null until the
        // object responds to that request.
        fixed!(
            "CREATE TABLE answers (
        key TEXT PRIMARY KEY, body TEXT NOT NULL, command TEXT NOT NULL, answer TEXT, expires_at TEXT NOT NULL
    ) WITHOUT ROWID"
        ),
        // Serves: the deletion of expired responses.
        fixed!("CREATE INDEX answers_by_expiry ON answers (expires_at)"),
        // Serves: the deletion of a command's response together with the command.
        fixed!("CREATE INDEX answers_by_command ON answers (command)"),
    ]
}

/// Returns a row if the tables exist. They do not if the object was never used, or was wiped.
pub fn find_tables() -> Statement {
    fixed!("SELECT name FROM sqlite_master WHERE name = 'server'")
}

/// The server's state, in the column `document`.
pub fn server() -> Statement {
    fixed!("SELECT document FROM server")
}

/// Stores the server's state.
pub fn save_server(document: String) -> Statement {
    fixed!(
        "INSERT INTO server (id, document) VALUES (1, :document)
            ON CONFLICT (id) DO UPDATE SET document = :document"
    )
    .bind("document", document)
}
