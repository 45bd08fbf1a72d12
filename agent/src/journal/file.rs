//! The journal: the file in which the agent keeps the state of commands across restarts
//! (agent-protocol 6.3).
//!
//! The file is append-only. Each line is one event of one command, with a checksum. So an
//! interrupted write loses only the events of that write, and a reader skips damaged lines. When
//! the file has grown, it is rewritten without outdated lines.
//!
//! All calls block on the disk. `writer.rs` keeps them off the async runtime.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use farhand_domain::agent::wire::Fin;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::host::process::Identity;
use crate::journal::shorten::shorten_result;

/// The maximum number of ended commands that are kept.
pub const MAX_ENDED: usize = 1_000;
/// How long a command is kept after its end.
pub const ENDED_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
/// The maximum total size of the fins after a rewrite, in bytes. Beyond this size, older fins keep
/// only a short piece of their output. The limit is smaller in tests, where checksums are slow.
const MAX_TOTAL_FIN_BYTES: u64 = if cfg!(test) { 1024 * 1024 } else { 32 * 1024 * 1024 };
/// After a rewrite to N bytes, the next rewrite is due when the file exceeds 2 N bytes plus this
/// slack.
const GROWTH_SLACK: u64 = 1024 * 1024;
/// If rewriting fails and the file is larger than this, in bytes, new events are refused.
const MAX_FILE_BYTES: u64 = 256 * 1024 * 1024;
/// The length of a line's checksum, which is the beginning of a SHA-256, in bytes. It detects
/// accidental damage, not attacks.
const CHECKSUM_BYTES: usize = 8;

/// The maximum number of attempts to lock the journal. After an agent was killed, its forked
/// processes hold its lock until they execute their programs or exit.
const LOCK_ATTEMPTS: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

const JOURNAL: &str = "commands.journal";
/// The name of the new file during a rewrite. The new file then replaces the journal file.
const NEW_JOURNAL: &str = "commands.journal.new";
/// The name of the file whose lock keeps other agents from using the journal. It contains the
/// agent's process number.
const LOCK: &str = "lock";

/// An event of a command. The events occur in this order, and are stored as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The command arrived. When this event is written, the command may run.
    #[serde(rename = "taken")]
    Received,
    /// The command's process starts. It is `None` if the process could not be identified.
    Started(Option<Identity>),
    /// The command ended with this fin.
    Ended(Box<RawValue>),
    /// The service accepted the command's fin.
    #[serde(rename = "answered")]
    FinAccepted,
}

#[derive(Serialize, Deserialize)]
struct Line<E> {
    /// Seconds since 1970.
    at: u64,
    id: Uuid,
    event: E,
}

/// The latest known state of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stage {
    Received,
    /// The command runs.
    Started(Option<Identity>),
    Ended {
        /// Whether the service accepted the fin.
        is_fin_accepted: bool,
    },
}

/// The position of a line in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    offset: u64,
    bytes: usize,
}

/// The state of one command in the journal.
struct CommandState {
    /// The time when the command arrived, or ended if it has ended, in seconds since 1970.
    at: u64,
    stage: Stage,
    /// The position of the line with the command's fin.
    end: Option<Span>,
}

#[derive(Default)]
struct Index {
    commands: HashMap<Uuid, CommandState>,
    /// The ids in order of arrival, oldest first.
    order: VecDeque<Uuid>,
}

impl Index {
    /// Applies an event. Stages only move forward, and the first fin is final.
    fn apply(&mut self, at: u64, id: Uuid, event: &Event, span: Span) {
        let command = self.commands.entry(id).or_insert_with(|| {
            self.order.push_back(id);
            CommandState { at, stage: Stage::Received, end: None }
        });
        match (event, &command.stage) {
            (Event::Started(process), Stage::Received) => {
                command.stage = Stage::Started(process.clone())
            }
            (Event::Ended(_), Stage::Received | Stage::Started(_)) => {
                *command = CommandState {
                    at,
                    stage: Stage::Ended { is_fin_accepted: false },
                    end: Some(span),
                };
            }
            // Also if the journal has no fin, because the line of the fin may be damaged.
            (Event::FinAccepted, _) => command.stage = Stage::Ended { is_fin_accepted: true },
            _ => {}
        }
    }

    /// Whether a command ended more than [`ENDED_LIFETIME`] ago.
    fn is_old(command: &CommandState, now: u64) -> bool {
        matches!(command.stage, Stage::Ended { .. })
            && now.saturating_sub(command.at) > ENDED_LIFETIME.as_secs()
    }

    /// Removes commands that ended more than [`ENDED_LIFETIME`] ago, and the oldest ended commands
    /// beyond [`MAX_ENDED`].
    fn prune(&mut self, now: u64) {
        let has_ended = |command: &CommandState| matches!(command.stage, Stage::Ended { .. });
        let ended = self.commands.values().filter(|command| has_ended(command)).count();
        let mut too_many = ended.saturating_sub(MAX_ENDED);
        let Self { commands, order } = self;
        order.retain(|id| {
            let command = &commands[id];
            let is_kept = !Self::is_old(command, now) && (too_many == 0 || !has_ended(command));
            if !is_kept {
                too_many = too_many.saturating_sub(1);
                commands.remove(id);
            }
            is_kept
        });
    }
}

/// The result of [`JournalFile::inspect`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalStatus {
    /// Is `Some` if an agent has the journal open. The inner value is the agent's process number,
    /// if it could be read.
    pub agent: Option<Option<i32>>,
    /// The number of waiting commands.
    pub waiting: usize,
    /// The number of running commands.
    pub running: usize,
    /// The number of ended commands whose fin the service has not accepted.
    pub unreported: usize,
}

/// The journal, locked by one agent.
pub struct JournalFile {
    directory: PathBuf,
    file: File,
    /// The offset of the next line.
    length: u64,
    /// The file is rewritten when it is longer than this.
    limit: u64,
    index: Index,
    /// The open lock file. Closing it releases the lock.
    _lock: File,
}

impl JournalFile {
    /// Opens and reads the journal in a directory, and creates the directory if needed. `now` is in
    /// seconds since 1970. Blocks, for up to two seconds if another agent has the lock.
    ///
    /// # Errors
    /// The journal cannot be written, or another agent uses it. The message is one line.
    pub fn open(directory: &Path, now: u64) -> Result<Self, String> {
        let describe = |error: io::Error| format!("{}: {error}", directory.display());
        make_private(directory).map_err(describe)?;
        let lock = open_private(&directory.join(LOCK), false).map_err(describe)?;
        let mut attempts = 1;
        while let Err(error) = lock.try_lock() {
            match error {
                fs::TryLockError::WouldBlock if attempts < LOCK_ATTEMPTS => {}
                fs::TryLockError::WouldBlock => {
                    return Err(format!("{}: another agent uses it", directory.display()));
                }
                fs::TryLockError::Error(error) => return Err(describe(error)),
            }
            attempts += 1;
            thread::sleep(LOCK_PAUSE);
        }
        // Only `status` reads the process number, so a failure is ignored.
        let _ = lock
            .set_len(0)
            .and_then(|()| lock.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0));
        let file = open_private(&directory.join(JOURNAL), false).map_err(describe)?;
        let (index, skipped) = read_index(&file).map_err(describe)?;
        if skipped > 0 {
            log::warn!("{}: skipped {skipped} damaged lines", directory.join(JOURNAL).display());
        }
        let mut journal =
            Self { directory: directory.to_owned(), file, length: 0, limit: 0, index, _lock: lock };
        // Rewrites the file at each start. This removes an incomplete last line and proves that the
        // directory is writable.
        journal.rewrite(now).map_err(describe)?;
        Ok(journal)
    }

    /// Reads a journal without changing it, even while an agent has it open. Returns `None` if the
    /// directory has no journal. Blocks.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn inspect(directory: &Path) -> io::Result<Option<JournalStatus>> {
        let open = |name| match File::open(directory.join(name)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let Some(lock) = open(LOCK)? else { return Ok(None) };
        // A shared lock, so that two concurrent `status` calls do not mistake each other for an
        // agent. An agent that starts at this moment retries its exclusive lock.
        let agent = match lock.try_lock_shared() {
            Ok(()) => None,
            Err(fs::TryLockError::WouldBlock) => {
                let mut number = String::new();
                (&lock).take(16).read_to_string(&mut number)?;
                Some(number.trim().parse().ok())
            }
            Err(fs::TryLockError::Error(error)) => return Err(error),
        };
        drop(lock);
        let mut status = JournalStatus { agent, waiting: 0, running: 0, unreported: 0 };
        let index =
            open(JOURNAL)?.map(read_index).transpose()?.map(|(index, _)| index).unwrap_or_default();
        for command in index.commands.values() {
            match command.stage {
                Stage::Received => status.waiting += 1,
                Stage::Started(_) => status.running += 1,
                Stage::Ended { is_fin_accepted: false } => status.unreported += 1,
                Stage::Ended { is_fin_accepted: true } => {}
            }
        }
        Ok(Some(status))
    }

    /// Deletes a journal, and then its directory. A missing file or directory is not an error.
    ///
    /// # Errors
    /// A file or the directory cannot be deleted.
    pub fn remove(directory: &Path) -> io::Result<()> {
        let ignore_missing = |removed: io::Result<()>| match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        for name in [JOURNAL, NEW_JOURNAL, LOCK] {
            ignore_missing(fs::remove_file(directory.join(name)))?;
        }
        ignore_missing(fs::remove_dir(directory))
    }

    /// All commands in order of arrival, oldest first.
    pub fn commands(&self) -> Vec<(Uuid, Stage)> {
        self.index.order.iter().map(|id| (*id, self.index.commands[id].stage.clone())).collect()
    }

    /// Writes events. When this function returns, the events are on the disk.
    ///
    /// # Errors
    /// The events could not be written. The journal is unchanged, and the call can be repeated.
    pub fn append(&mut self, events: &[(Uuid, Event)], now: u64) -> io::Result<()> {
        if self.length > self.limit {
            // If the rewrite fails, the file may still grow up to [`MAX_FILE_BYTES`].
            if let Err(error) = self.rewrite(now) {
                if self.length > MAX_FILE_BYTES {
                    return Err(error);
                }
                log::warn!(
                    "{}: the journal could not be rewritten: {error}",
                    self.directory.display()
                );
                self.limit = 2 * self.length;
            }
        }
        let mut bytes = Vec::new();
        let mut spans = Vec::with_capacity(events.len());
        for (id, event) in events {
            let line = encode_line(now, *id, event)?;
            spans.push(Span { offset: self.length + bytes.len() as u64, bytes: line.len() });
            bytes.extend_from_slice(&line);
        }
        if let Err(error) =
            self.file.write_all_at(&bytes, self.length).and_then(|()| self.file.sync_data())
        {
            // Removes an incomplete line, so that the next line does not follow it.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += bytes.len() as u64;
        for ((id, event), span) in events.iter().zip(spans) {
            self.index.apply(now, *id, event, span);
        }
        Ok(())
    }

    /// The fin of a command as JSON. Returns `None` if the journal does not have the fin or cannot
    /// read it.
    pub fn fin(&self, id: Uuid) -> Option<Box<RawValue>> {
        let span = self.index.commands.get(&id)?.end?;
        match parse_line(&self.read(span).ok()?)?.event {
            Event::Ended(fin) => Some(fin),
            _ => None,
        }
    }

    /// Replaces the file, so that a test can make writing fail.
    #[cfg(test)]
    pub fn swap_file(&mut self, file: File) -> File {
        std::mem::replace(&mut self.file, file)
    }

    /// Rewrites the file if a command ended more than [`ENDED_LIFETIME`] ago.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn expire(&mut self, now: u64) -> io::Result<()> {
        if self.index.commands.values().any(|command| Index::is_old(command, now)) {
            self.rewrite(now)
        } else {
            Ok(())
        }
    }

    fn read(&self, span: Span) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; span.bytes];
        self.file.read_exact_at(&mut bytes, span.offset)?;
        Ok(bytes)
    }

    /// Writes a new file without outdated lines, and replaces the old file.
    fn rewrite(&mut self, now: u64) -> io::Result<()> {
        self.index.prune(now);
        // The most recent fins keep their whole output, up to [`MAX_TOTAL_FIN_BYTES`] in total.
        let mut total = 0;
        let mut is_shortened = HashSet::new();
        for (id, span) in
            self.index.order.iter().rev().filter_map(|id| Some((*id, self.index.commands[id].end?)))
        {
            total += span.bytes as u64;
            if total > MAX_TOTAL_FIN_BYTES {
                is_shortened.insert(id);
            }
        }
        let path = self.directory.join(NEW_JOURNAL);
        let file = open_private(&path, true)?;
        let mut writer = io::BufWriter::new(&file);
        let mut index = Index::default();
        let mut length = 0;
        let mut add = |line: &[u8], id: Uuid, at: u64, event: &Event| {
            writer.write_all(line)?;
            index.apply(at, id, event, Span { offset: length, bytes: line.len() });
            length += line.len() as u64;
            io::Result::Ok(())
        };
        for id in &self.index.order {
            let command = &self.index.commands[id];
            let mut put =
                |event: Event| add(&encode_line(command.at, *id, &event)?, *id, command.at, &event);
            put(Event::Received)?;
            match &command.stage {
                Stage::Received => {}
                Stage::Started(process) => put(Event::Started(process.clone()))?,
                // So the journal still shows that the command did not wait, if the line of the fin
                // is damaged later.
                Stage::Ended { .. } => put(Event::Started(None))?,
            }
            if let Some(end) =
                command.end.map(|span| self.read(span)).transpose()?.as_deref().and_then(parse_line)
            {
                put(if is_shortened.contains(id) { shortened(end.event) } else { end.event })?;
            }
            if command.stage == (Stage::Ended { is_fin_accepted: true }) {
                put(Event::FinAccepted)?;
            }
        }
        writer.flush()?;
        drop(writer);
        file.sync_all()?;
        fs::rename(&path, self.directory.join(JOURNAL))?;
        // The new file is the journal from here on, even if the sync below fails.
        (self.file, self.index, self.length, self.limit) =
            (file, index, length, 2 * length + GROWTH_SLACK);
        File::open(&self.directory)?.sync_all()
    }
}

/// Creates a directory that only the agent's account can access, or restricts the access to an
/// existing directory.
fn make_private(directory: &Path) -> io::Result<()> {
    let refuse = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let found = fs::symlink_metadata(directory)?;
    if !found.is_dir() {
        return refuse("not a directory");
    }
    if found.uid() != geteuid().as_raw() {
        return refuse("it belongs to another account");
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Opens a file, or creates it such that only the agent's account can access it.
fn open_private(path: &Path, truncate: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(truncate).mode(0o600).open(path)
}

/// Reads all lines. Also returns the number of damaged lines.
fn read_index(file: impl Read) -> io::Result<(Index, usize)> {
    let mut index = Index::default();
    let (mut skipped, mut offset) = (0, 0);
    let mut reader = BufReader::new(file);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        match parse_line(&bytes) {
            Some(line) => {
                index.apply(line.at, line.id, &line.event, Span { offset, bytes: bytes.len() })
            }
            None => skipped += 1,
        }
        offset += bytes.len() as u64;
        bytes.clear();
    }
    Ok((index, skipped))
}

/// Encodes an event as a line: checksum, blank, JSON, newline.
fn encode_line(at: u64, id: Uuid, event: &Event) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(&Line { at, id, event })?;
    Ok([checksum(&json).as_bytes(), b" ", &json, b"\n"].concat())
}

/// Parses a line. Returns `None` if the line is damaged or its event is unknown.
fn parse_line(line: &[u8]) -> Option<Line<Event>> {
    let (found, rest) = line.split_at_checked(2 * CHECKSUM_BYTES)?;
    let json = rest.strip_prefix(b" ")?.strip_suffix(b"\n")?;
    if found != checksum(json).as_bytes() {
        return None;
    }
    serde_json::from_slice(json).ok()
}

fn checksum(json: &[u8]) -> String {
    Sha256::digest(json).iter().take(CHECKSUM_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// Shortens the output in a fin.
fn shortened(end: Event) -> Event {
    let shorten = |fin: &RawValue| {
        let mut fin: Fin = serde_json::from_str(fin.get())?;
        shorten_result(&mut fin);
        serde_json::value::to_raw_value(&fin)
    };
    match end {
        Event::Ended(fin) => Event::Ended(shorten(&fin).unwrap_or(fin)),
        other => other,
    }
}

/// The current time, in seconds since 1970.
pub fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.as_ref().map_or(0, Duration::as_secs)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;
    use crate::journal::shorten::SHORT_RESULT;

    const NOON: u64 = 1_800_000_000;
    const LIFE: u64 = ENDED_LIFETIME.as_secs();

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn end(result: &str) -> Event {
        let fin = serde_json::json!({"success": true, "result": result, "exit_code": 0});
        Event::Ended(serde_json::value::to_raw_value(&fin).unwrap())
    }

    fn started() -> Event {
        Event::Started(Identity::read(std::process::id() as i32))
    }

    fn open(directory: &TempDir) -> JournalFile {
        JournalFile::open(directory.path(), NOON).unwrap()
    }

    fn file(directory: &TempDir) -> PathBuf {
        directory.path().join(JOURNAL)
    }

    fn result(journal: &JournalFile, id: Uuid) -> Option<String> {
        let fin: Fin = serde_json::from_str(journal.fin(id)?.get()).unwrap();
        fin.result
    }

    /// The position of an event in the order of a command's events.
    fn rank(event: &Event) -> u8 {
        match event {
            Event::Received => 0,
            Event::Started(_) => 1,
            Event::Ended(_) => 2,
            Event::FinAccepted => 3,
        }
    }

    fn rank_of(stage: &Stage) -> u8 {
        match stage {
            Stage::Received => 0,
            Stage::Started(_) => 1,
            Stage::Ended { is_fin_accepted } => 2 + u8::from(*is_fin_accepted),
        }
    }

    fn ranks(commands: Vec<(Uuid, Stage)>) -> HashMap<Uuid, u8> {
        commands.iter().map(|(id, stage)| (*id, rank_of(stage))).collect()
    }

    #[test]
    fn the_state_of_commands_survives_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(&directory);
        let lives = [
            (1, vec![Event::Received]),
            (2, vec![Event::Received, started()]),
            (3, vec![Event::Received, started(), end("three")]),
            (4, vec![Event::Received, end("four"), Event::FinAccepted, end("another")]),
        ];
        for (number, events) in &lives {
            let events: Vec<_> = events.iter().map(|event| (id(*number), event.clone())).collect();
            journal.append(&events, NOON).unwrap();
        }
        let expected = [
            (id(1), Stage::Received),
            (id(2), Stage::Started(Identity::read(std::process::id() as i32))),
            (id(3), Stage::Ended { is_fin_accepted: false }),
            (id(4), Stage::Ended { is_fin_accepted: true }),
        ];
        // First from memory, then from the appended lines, then from a rewritten file.
        for _ in 0..3 {
            assert_eq!(journal.commands(), expected);
            assert_eq!(result(&journal, id(3)).as_deref(), Some("three"));
            assert_eq!(result(&journal, id(4)).as_deref(), Some("four"));
            assert_eq!(
                (journal.fin(id(1)), journal.fin(id(5))).0.map(|fin| fin.get().to_owned()),
                None
            );
            drop(journal);
            journal = open(&directory);
        }
    }

    #[test]
    fn a_journal_belongs_to_one_agent_and_one_account() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a").join("b");
        let journal = JournalFile::open(&path, NOON).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o700, 0o700));
        assert!(fs::read_dir(&path).unwrap().all(|entry| mode(&entry.unwrap().path()) == 0o600));
        let refused = JournalFile::open(&path, NOON).err().unwrap();
        assert!(refused.ends_with("another agent uses it"), "{refused}");
        drop(journal);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        drop(JournalFile::open(&path, NOON).unwrap());
        assert_eq!(mode(&path), 0o700);
        // A link could point to a folder of another account.
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(JournalFile::open(&link, NOON).is_err());
        if geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            assert!(
                JournalFile::open(&path, NOON)
                    .err()
                    .unwrap()
                    .ends_with("it belongs to another account")
            );
        }
    }

    #[test]
    fn only_ended_commands_expire_after_a_day() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(&directory);
        let received: Vec<_> = (0..3).map(|number| (id(number), Event::Received)).collect();
        journal.append(&received, NOON).unwrap();
        journal.append(&[(id(1), end("")), (id(1), Event::FinAccepted)], NOON + 10).unwrap();
        journal.append(&[(id(2), end(""))], NOON + 20).unwrap();
        let ids = |journal: &JournalFile| {
            journal.commands().iter().map(|(id, _)| id.as_u128()).collect::<Vec<_>>()
        };
        journal.expire(NOON + 10 + LIFE).unwrap();
        assert_eq!(ids(&journal), [0, 1, 2]);
        journal.expire(NOON + 11 + LIFE).unwrap();
        assert_eq!(ids(&journal), [0, 2]);
        drop(journal);
        let journal = JournalFile::open(directory.path(), NOON + 21 + LIFE).unwrap();
        assert_eq!(ids(&journal), [0]);
        // No command expires if the clock goes back.
        drop(journal);
        assert_eq!(ids(&JournalFile::open(directory.path(), 0).unwrap()), [0]);
    }

    #[test]
    fn ended_commands_are_limited_and_others_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(&directory);
        let total = MAX_ENDED as u128 + 50;
        let mut events: Vec<_> = (0..total).map(|number| (id(number), Event::Received)).collect();
        events.extend(
            (0..total).filter(|number| number % 105 != 0).map(|number| (id(number), end("x"))),
        );
        journal.append(&events, NOON).unwrap();
        drop(journal);
        let journal = open(&directory);
        let commands = ranks(journal.commands());
        let running: Vec<_> = (0..total).filter(|number| number % 105 == 0).map(id).collect();
        assert!(running.iter().all(|id| commands[id] == 0));
        assert_eq!(commands.len(), MAX_ENDED + running.len());
        // The oldest ended commands were removed.
        assert!(!commands.contains_key(&id(1)) && commands.contains_key(&id(total - 1)));
    }

    #[test]
    fn the_file_is_bounded_and_keeps_the_newest_fins_whole() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(&directory);
        let large = "x".repeat(32 * 1024);
        let mut longest = 0;
        for number in 0..140 {
            journal
                .append(&[(id(number), Event::Received), (id(number), end(&large))], NOON)
                .unwrap();
            longest = longest.max(fs::metadata(file(&directory)).unwrap().len());
        }
        assert!(longest < 2 * MAX_TOTAL_FIN_BYTES + 4 * GROWTH_SLACK, "{longest}");
        drop(journal);
        let journal = open(&directory);
        assert!(
            fs::metadata(file(&directory)).unwrap().len() < MAX_TOTAL_FIN_BYTES + 4 * GROWTH_SLACK
        );
        assert_eq!(journal.commands().len(), 140);
        assert!(result(&journal, id(139)).unwrap() == large);
        let short = result(&journal, id(0)).unwrap();
        assert!(short.len() < 2 * SHORT_RESULT && short.contains("bytes cut"));
    }

    #[test]
    fn a_failed_write_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(&directory);
        journal.append(&[(id(1), Event::Received)], NOON).unwrap();
        let original = journal.swap_file(File::open(file(&directory)).unwrap());
        assert!(journal.append(&[(id(2), Event::Received)], NOON).is_err());
        journal.swap_file(original);
        assert_eq!(journal.commands(), [(id(1), Stage::Received)]);
        journal.append(&[(id(1), end("one"))], NOON).unwrap();
        assert_eq!(result(&journal, id(1)).as_deref(), Some("one"));
        drop(journal);
        assert_eq!(open(&directory).commands(), [(id(1), Stage::Ended { is_fin_accepted: false })]);
    }

    #[test]
    fn a_command_with_a_damaged_fin_has_still_ended() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(&directory);
        journal
            .append(
                &[(id(1), Event::Received), (id(1), end("one")), (id(1), Event::FinAccepted)],
                NOON,
            )
            .unwrap();
        drop(journal);
        let text = fs::read_to_string(file(&directory)).unwrap();
        fs::write(file(&directory), text.replace("one", "two")).unwrap();
        for _ in 0..2 {
            let journal = open(&directory);
            assert_eq!(journal.commands(), [(id(1), Stage::Ended { is_fin_accepted: true })]);
            assert!(journal.fin(id(1)).is_none());
        }
    }

    #[test]
    fn a_rewritten_command_with_a_damaged_fin_did_not_wait() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(&directory);
        journal.append(&[(id(1), Event::Received), (id(1), end("one"))], NOON).unwrap();
        journal.rewrite(NOON).unwrap();
        drop(journal);
        let text = fs::read_to_string(file(&directory)).unwrap();
        fs::write(file(&directory), text.replace("one", "two")).unwrap();
        assert_eq!(open(&directory).commands(), [(id(1), Stage::Started(None))]);
    }

    #[test]
    fn any_file_can_be_opened() {
        for content in
            [&b""[..], b"\n\n\n", b"\0\xff\xfe", &[b'x'; 100_000], b"0123456789abcdef {}\n"]
        {
            let directory = tempfile::tempdir().unwrap();
            fs::write(file(&directory), content).unwrap();
            let mut journal = open(&directory);
            assert_eq!(journal.commands(), []);
            journal.append(&[(id(1), Event::Received)], NOON).unwrap();
            drop(journal);
            assert_eq!(open(&directory).commands().len(), 1);
        }
    }

    /// Events of a few commands. The events of each command are in order, and events of different
    /// commands are mixed.
    fn histories() -> impl Strategy<Value = Vec<(Uuid, Event)>> {
        let life = (1usize..=4, "[a-zä\n\0]{0,20}");
        prop::collection::vec(life, 1..8).prop_flat_map(|lives| {
            let mut turns = Vec::new();
            for (number, (length, _)) in lives.iter().enumerate() {
                turns.extend(std::iter::repeat_n(number, *length));
            }
            Just(turns).prop_shuffle().prop_map(move |turns| {
                let mut next = vec![0; lives.len()];
                let event = |number: usize| {
                    let all =
                        [Event::Received, started(), end(&lives[number].1), Event::FinAccepted];
                    next[number] += 1;
                    (id(number as u128), all[next[number] - 1].clone())
                };
                turns.into_iter().map(event).collect()
            })
        })
    }

    /// The expected rank of each command after some events.
    fn model(events: &[(Uuid, Event)]) -> HashMap<Uuid, u8> {
        let mut ranks = HashMap::new();
        for (id, event) in events {
            ranks.insert(*id, rank(event));
        }
        ranks
    }

    fn ranks_in(bytes: &[u8]) -> HashMap<Uuid, u8> {
        let (index, _) = read_index(bytes).unwrap();
        index.commands.iter().map(|(id, command)| (*id, rank_of(&command.stage))).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn a_truncated_file_loses_only_the_cut_event(events in histories()) {
            let lines: Vec<_> = events.iter().map(|(id, event)| encode_line(NOON, *id, event).unwrap()).collect();
            let whole = lines.concat();
            let mut ends: Vec<usize> = Vec::new();
            for line in &lines {
                ends.push(ends.last().unwrap_or(&0) + line.len());
            }
            for cut in 0..=whole.len() {
                let written = ends.iter().filter(|end| **end <= cut).count();
                prop_assert_eq!(ranks_in(&whole[..cut]), model(&events[..written]), "at {}", cut);
            }
        }

        #[test]
        fn a_cut_last_line_loses_at_most_one_waiting_command(events in histories(), back in 1usize..200) {
            let directory = tempfile::tempdir().unwrap();
            let mut journal = open(&directory);
            journal.append(&events, NOON).unwrap();
            journal.rewrite(NOON).unwrap();
            drop(journal);
            let bytes = fs::read(file(&directory)).unwrap();
            let last = bytes.iter().rev().skip(1).position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
            let all = model(&events);
            let cut = ranks_in(&bytes[..bytes.len() - back.min(last)]);
            // Every command with a later event than `Received` has more than one line.
            prop_assert!(all.iter().filter(|(_, rank)| **rank > 0).all(|(id, _)| cut.contains_key(id)));
            prop_assert!(all.len() - cut.len() <= 1);
        }

        #[test]
        fn a_truncated_journal_can_be_continued(events in histories(), at in 0.0..1.0f64, more in histories()) {
            let directory = tempfile::tempdir().unwrap();
            let mut journal = open(&directory);
            for event in &events {
                journal.append(std::slice::from_ref(event), NOON).unwrap();
            }
            drop(journal);
            let bytes = fs::read(file(&directory)).unwrap();
            fs::write(file(&directory), &bytes[..(bytes.len() as f64 * at) as usize]).unwrap();
            let mut journal = open(&directory);
            let mut expected = ranks(journal.commands());
            let before: HashSet<_> = model(&events).into_keys().collect();
            prop_assert!(expected.keys().all(|id| before.contains(id)));
            // New ids, so that each command starts with `Received`.
            let more: Vec<_> = more.into_iter().map(|(old, event)| (id(old.as_u128() + 100), event)).collect();
            journal.append(&more, NOON).unwrap();
            expected.extend(model(&more));
            prop_assert_eq!(ranks(journal.commands()), expected.clone());
            drop(journal);
            prop_assert_eq!(ranks(open(&directory).commands()), expected);
        }

        #[test]
        fn a_damaged_byte_loses_at_most_two_events(events in histories(), at in 0.0..1.0f64, change in 1u8..) {
            let lines: Vec<_> = events.iter().map(|(id, event)| encode_line(NOON, *id, event).unwrap()).collect();
            let mut bytes = lines.concat();
            let span = (bytes.len() as f64 * at) as usize;
            bytes[span] ^= change;
            let found: usize = bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| parse_line(line).is_some()).count();
            prop_assert!(found + 2 >= events.len());
        }
    }
}
