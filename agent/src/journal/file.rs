//! The file in which the agent keeps what it knows of commands, so that it knows it after a restart
//! (agent-protocol 6.3).
//!
//! An append-only file of lines, which is rewritten now and then without outdated lines. Each line
//! is one event of one command, behind a checksum. So a write that was cut off loses the event that
//! was being written and no other, and a line that was damaged is skipped.
//!
//! All calls block on the disk; `writer.rs` keeps them off the async runtime.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use farhand_domain::wire::Fin;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::host::process::Identity;
use crate::journal::shorten::shorten_result;

/// How many commands that ended are kept.
pub const MAX_ENDED: usize = 1_000;
/// How long a command is kept after its end, in seconds.
pub const LIFE: u64 = 24 * 60 * 60;
/// How large all ends together are, in bytes, after a rewrite: beyond that the older ones keep only
/// a short piece of output. Less in the tests, where checksums are slow.
const MAX_ENDS: u64 = if cfg!(test) { 1024 * 1024 } else { 32 * 1024 * 1024 };
/// Bytes that the file may grow beyond twice its size after a rewrite.
const SLACK: u64 = 1024 * 1024;
/// The largest size of a file that cannot be rewritten, in bytes.
const MAX_FILE: u64 = 256 * 1024 * 1024;
/// How many bytes of the SHA-256 are the checksum: it is against accidents.
const CHECKSUM: usize = 8;

/// How often the lock is tried, and the pause between: an agent that was killed holds it until the
/// last process that it was about to start is gone too.
const LOCKED: (u32, Duration) = (20, Duration::from_millis(100));

/// The names of the file, of the one that takes its place, and of the one that keeps others out.
const NAMES: [&str; 3] = ["commands.journal", "commands.journal.new", "lock"];

/// What happens to a command, in this order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// It arrived, and may run from now on.
    Taken,
    /// Its process begins. None if its identity is not known.
    Started(Option<Identity>),
    /// It ended, with this fin.
    Ended(Box<RawValue>),
    /// The service took its fin.
    Answered,
}

/// One line.
#[derive(Serialize, Deserialize)]
struct Line<E> {
    /// Seconds since 1970.
    at: u64,
    id: Uuid,
    event: E,
}

/// The state of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stage {
    /// It waits to be run.
    Taken,
    /// It runs.
    Started(Option<Identity>),
    /// It ended; `is_answered` once the service took its fin.
    Ended {
        /// Whether the service took its fin.
        is_answered: bool,
    },
}

/// Where a line is in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    offset: u64,
    bytes: usize,
}

/// A command that is known.
struct CommandState {
    /// When it came to this stage, in seconds since 1970.
    at: u64,
    stage: Stage,
    /// Where its end is written.
    end: Option<Span>,
}

/// All commands that are known.
#[derive(Default)]
struct Index {
    commands: HashMap<Uuid, CommandState>,
    /// By when they came.
    order: VecDeque<Uuid>,
}

impl Index {
    /// Applies an event. Stages only move forward, and the first end stands.
    fn apply(&mut self, at: u64, id: Uuid, event: &Event, span: Span) {
        let known = self.commands.entry(id).or_insert_with(|| {
            self.order.push_back(id);
            CommandState { at, stage: Stage::Taken, end: None }
        });
        match (event, &known.stage) {
            (Event::Started(process), Stage::Taken) => {
                known.stage = Stage::Started(process.clone())
            }
            (Event::Ended(_), Stage::Taken | Stage::Started(_)) => {
                *known = CommandState {
                    at,
                    stage: Stage::Ended { is_answered: false },
                    end: Some(span),
                };
            }
            // The line of its end may be damaged: it has ended all the same.
            (Event::Answered, _) => known.stage = Stage::Ended { is_answered: true },
            _ => {}
        }
    }

    /// Whether a command has ended too long ago.
    fn is_old(known: &CommandState, now: u64) -> bool {
        matches!(known.stage, Stage::Ended { .. }) && now.saturating_sub(known.at) > LIFE
    }

    /// Removes commands that ended too long ago, and the oldest ended commands if there are too
    /// many.
    fn prune(&mut self, now: u64) {
        let has_ended = |known: &CommandState| matches!(known.stage, Stage::Ended { .. });
        let ended = self.commands.values().filter(|known| has_ended(known)).count();
        let mut too_many = ended.saturating_sub(MAX_ENDED);
        let Self { commands, order } = self;
        order.retain(|id| {
            let known = &commands[id];
            let is_kept = !Self::is_old(known, now) && (too_many == 0 || !has_ended(known));
            if !is_kept {
                too_many = too_many.saturating_sub(1);
                commands.remove(id);
            }
            is_kept
        });
    }
}

/// What [`JournalFile::inspect`] reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalStatus {
    /// The agent that has it open, if any, with its pid if that can be read.
    pub agent: Option<Option<i32>>,
    /// How many commands wait to be run.
    pub waiting: usize,
    /// How many run.
    pub running: usize,
    /// How many ended, and the service did not take that yet.
    pub unreported: usize,
}

/// The file, open for one agent alone.
pub struct JournalFile {
    directory: PathBuf,
    file: File,
    /// Where the next line goes.
    length: u64,
    /// The length at which the file is rewritten.
    limit: u64,
    index: Index,
    /// Held for as long as this is open.
    _lock: File,
}

impl JournalFile {
    /// Opens the journal in a directory, which is made if it is not there, and reads it. `now` is
    /// in seconds since 1970. Blocks, for seconds if another agent has it.
    ///
    /// # Errors
    /// It cannot be written, or another agent uses it: in one line.
    pub fn open(directory: &Path, now: u64) -> Result<Self, String> {
        let describe = |error: io::Error| format!("{}: {error}", directory.display());
        make_private(directory).map_err(describe)?;
        let lock = open_private(&directory.join(NAMES[2]), false).map_err(describe)?;
        let mut attempts = 1;
        while let Err(error) = lock.try_lock() {
            match error {
                fs::TryLockError::WouldBlock if attempts < LOCKED.0 => {}
                fs::TryLockError::WouldBlock => {
                    return Err(format!("{}: another agent uses it", directory.display()));
                }
                fs::TryLockError::Error(error) => return Err(describe(error)),
            }
            attempts += 1;
            thread::sleep(LOCKED.1);
        }
        // For `status` only, so that nothing depends on it.
        let _ = lock
            .set_len(0)
            .and_then(|()| lock.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0));
        let file = open_private(&directory.join(NAMES[0]), false).map_err(describe)?;
        let (index, skipped) = read(&file).map_err(describe)?;
        if skipped > 0 {
            log::warn!(
                "{}: {skipped} lines were damaged and are skipped",
                directory.join(NAMES[0]).display()
            );
        }
        let mut journal =
            Self { directory: directory.to_owned(), file, length: 0, limit: 0, index, _lock: lock };
        // In any case, so that what was cut off at the end is gone, and that it is known that it
        // can be written.
        journal.renew(now).map_err(describe)?;
        Ok(journal)
    }

    /// Reads a journal without changing it, whether or not an agent has it open. None if there is
    /// none. Blocks.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn inspect(directory: &Path) -> io::Result<Option<JournalStatus>> {
        let open = |name| match File::open(directory.join(name)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let Some(lock) = open(NAMES[2])? else { return Ok(None) };
        // Shared, so that two who look do not take each other for an agent; one that starts right
        // now tries again.
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
        let mut seen = JournalStatus { agent, waiting: 0, running: 0, unreported: 0 };
        let index =
            open(NAMES[0])?.map(read).transpose()?.map(|(index, _)| index).unwrap_or_default();
        for known in index.commands.values() {
            match known.stage {
                Stage::Taken => seen.waiting += 1,
                Stage::Started(_) => seen.running += 1,
                Stage::Ended { is_answered: false } => seen.unreported += 1,
                Stage::Ended { is_answered: true } => {}
            }
        }
        Ok(Some(seen))
    }

    /// Removes a journal, and its directory if nothing else is in it.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(directory: &Path) -> io::Result<()> {
        let gone = |removed: io::Result<()>| match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        for name in NAMES {
            gone(fs::remove_file(directory.join(name)))?;
        }
        gone(fs::remove_dir(directory))
    }

    /// The commands that are known, by when they came.
    pub fn commands(&self) -> Vec<(Uuid, Stage)> {
        self.index.order.iter().map(|id| (*id, self.index.commands[id].stage.clone())).collect()
    }

    /// Writes events; they are on the disk when this returns.
    ///
    /// # Errors
    /// They could not be written. The journal is as it was before, and can be tried again.
    pub fn append(&mut self, events: &[(Uuid, Event)], now: u64) -> io::Result<()> {
        if self.length > self.limit {
            // Without a rewrite the file may grow up to its largest size.
            if let Err(error) = self.renew(now) {
                if self.length > MAX_FILE {
                    return Err(error);
                }
                log::warn!("{}: it could not be written anew: {error}", self.directory.display());
                self.limit = 2 * self.length;
            }
        }
        let mut bytes = Vec::new();
        let mut spans = Vec::with_capacity(events.len());
        for (id, event) in events {
            let line = line(now, *id, event)?;
            spans.push(Span { offset: self.length + bytes.len() as u64, bytes: line.len() });
            bytes.extend_from_slice(&line);
        }
        if let Err(error) =
            self.file.write_all_at(&bytes, self.length).and_then(|()| self.file.sync_data())
        {
            // Else the next line might stand behind half of one.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += bytes.len() as u64;
        for ((id, event), span) in events.iter().zip(spans) {
            self.index.apply(now, *id, event, span);
        }
        Ok(())
    }

    /// The fin of a command that ended, as JSON. None if it is not known or cannot be read.
    pub fn fin(&self, id: Uuid) -> Option<Box<RawValue>> {
        let span = self.index.commands.get(&id)?.end?;
        match parse(&self.read(span).ok()?)?.event {
            Event::Ended(fin) => Some(fin),
            _ => None,
        }
    }

    /// Makes writing fail, or work again.
    #[cfg(test)]
    pub fn swap_file(&mut self, file: File) -> File {
        std::mem::replace(&mut self.file, file)
    }

    /// Removes from the disk what ended too long ago, if anything did.
    ///
    /// # Errors
    /// It could not be written.
    pub fn expire(&mut self, now: u64) -> io::Result<()> {
        if self.index.commands.values().any(|known| Index::is_old(known, now)) {
            self.renew(now)
        } else {
            Ok(())
        }
    }

    fn read(&self, span: Span) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; span.bytes];
        self.file.read_exact_at(&mut bytes, span.offset)?;
        Ok(bytes)
    }

    /// Rewrites the file with a few lines per command, and replaces the old one.
    fn renew(&mut self, now: u64) -> io::Result<()> {
        self.index.prune(now);
        // The newest ends stay whole.
        let mut total = 0;
        let mut is_long = HashSet::new();
        for (id, span) in
            self.index.order.iter().rev().filter_map(|id| Some((*id, self.index.commands[id].end?)))
        {
            total += span.bytes as u64;
            if total > MAX_ENDS {
                is_long.insert(id);
            }
        }
        let path = self.directory.join(NAMES[1]);
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
            let known = &self.index.commands[id];
            let mut put = |event: Event| add(&line(known.at, *id, &event)?, *id, known.at, &event);
            put(Event::Taken)?;
            match &known.stage {
                Stage::Taken => {}
                Stage::Started(process) => put(Event::Started(process.clone()))?,
                // Should the line of its end be damaged, then it is still known that it did not
                // wait any more.
                Stage::Ended { .. } => put(Event::Started(None))?,
            }
            if let Some(end) =
                known.end.map(|span| self.read(span)).transpose()?.as_deref().and_then(parse)
            {
                put(if is_long.contains(id) { shortened(end.event) } else { end.event })?;
            }
            if known.stage == (Stage::Ended { is_answered: true }) {
                put(Event::Answered)?;
            }
        }
        writer.flush()?;
        drop(writer);
        file.sync_all()?;
        fs::rename(&path, self.directory.join(NAMES[0]))?;
        // From here on this is the file, whatever else fails.
        (self.file, self.index, self.length, self.limit) =
            (file, index, length, 2 * length + SLACK);
        File::open(&self.directory)?.sync_all()
    }
}

/// Makes a directory that the agent alone can use, or makes sure that it is one.
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

/// Opens a file that the agent alone can read, an empty one if need be.
fn open_private(path: &Path, truncate: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(truncate).mode(0o600).open(path)
}

/// Reads all lines; and how many of them were damaged.
fn read(file: impl Read) -> io::Result<(Index, usize)> {
    let mut index = Index::default();
    let (mut skipped, mut offset) = (0, 0);
    let mut reader = BufReader::new(file);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        match parse(&bytes) {
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

/// An event as a line: checksum, blank, JSON, end.
fn line(at: u64, id: Uuid, event: &Event) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(&Line { at, id, event })?;
    Ok([checksum(&json).as_bytes(), b" ", &json, b"\n"].concat())
}

/// Reads a line. None if it is damaged or of another version.
fn parse(line: &[u8]) -> Option<Line<Event>> {
    let (found, rest) = line.split_at_checked(2 * CHECKSUM)?;
    let json = rest.strip_prefix(b" ")?.strip_suffix(b"\n")?;
    if found != checksum(json).as_bytes() {
        return None;
    }
    serde_json::from_slice(json).ok()
}

fn checksum(json: &[u8]) -> String {
    Sha256::digest(json).iter().take(CHECKSUM).map(|byte| format!("{byte:02x}")).collect()
}

/// An end with a short piece of its output.
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

/// The time, in seconds since 1970.
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

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn end(result: &str) -> Event {
        let fin = serde_json::json!({"success": true, "result": result, "exit_code": 0});
        Event::Ended(serde_json::value::to_raw_value(&fin).unwrap())
    }

    fn started() -> Event {
        Event::Started(Identity::of(std::process::id() as i32))
    }

    fn open(directory: &TempDir) -> JournalFile {
        JournalFile::open(directory.path(), NOON).unwrap()
    }

    fn file(directory: &TempDir) -> PathBuf {
        directory.path().join(NAMES[0])
    }

    fn result(journal: &JournalFile, id: Uuid) -> Option<String> {
        let fin: Fin = serde_json::from_str(journal.fin(id)?.get()).unwrap();
        fin.result
    }

    /// How far a life is; as [`Stage`], without what comes with it.
    fn rank(event: &Event) -> u8 {
        match event {
            Event::Taken => 0,
            Event::Started(_) => 1,
            Event::Ended(_) => 2,
            Event::Answered => 3,
        }
    }

    fn rank_of(stage: &Stage) -> u8 {
        match stage {
            Stage::Taken => 0,
            Stage::Started(_) => 1,
            Stage::Ended { is_answered } => 2 + u8::from(*is_answered),
        }
    }

    fn ranks(commands: Vec<(Uuid, Stage)>) -> HashMap<Uuid, u8> {
        commands.iter().map(|(id, stage)| (*id, rank_of(stage))).collect()
    }

    #[test]
    fn lives_are_there_again_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(&directory);
        let lives = [
            (1, vec![Event::Taken]),
            (2, vec![Event::Taken, started()]),
            (3, vec![Event::Taken, started(), end("three")]),
            (4, vec![Event::Taken, end("four"), Event::Answered, end("another")]),
        ];
        for (number, events) in &lives {
            let events: Vec<_> = events.iter().map(|event| (id(*number), event.clone())).collect();
            journal.append(&events, NOON).unwrap();
        }
        let expected = [
            (id(1), Stage::Taken),
            (id(2), Stage::Started(Identity::of(std::process::id() as i32))),
            (id(3), Stage::Ended { is_answered: false }),
            (id(4), Stage::Ended { is_answered: true }),
        ];
        // From memory, from the lines that were added, and from those of a rewritten file.
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
    fn it_is_for_one_agent_and_one_account_alone() {
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
        // A link could lead to a folder of another account.
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
    fn what_ended_is_forgotten_after_a_day_and_the_rest_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(&directory);
        let taken: Vec<_> = (0..3).map(|number| (id(number), Event::Taken)).collect();
        journal.append(&taken, NOON).unwrap();
        journal.append(&[(id(1), end("")), (id(1), Event::Answered)], NOON + 10).unwrap();
        journal.append(&[(id(2), end(""))], NOON + 20).unwrap();
        let known = |journal: &JournalFile| {
            journal.commands().iter().map(|(id, _)| id.as_u128()).collect::<Vec<_>>()
        };
        journal.expire(NOON + 10 + LIFE).unwrap();
        assert_eq!(known(&journal), [0, 1, 2]);
        journal.expire(NOON + 11 + LIFE).unwrap();
        assert_eq!(known(&journal), [0, 2]);
        drop(journal);
        let journal = JournalFile::open(directory.path(), NOON + 21 + LIFE).unwrap();
        assert_eq!(known(&journal), [0]);
        // A clock that went back makes nothing old.
        drop(journal);
        assert_eq!(known(&JournalFile::open(directory.path(), 0).unwrap()), [0]);
    }

    #[test]
    fn a_thousand_that_ended_are_kept_and_all_that_did_not() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(&directory);
        let total = MAX_ENDED as u128 + 50;
        let mut events: Vec<_> = (0..total).map(|number| (id(number), Event::Taken)).collect();
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
        // The first ones gave way.
        assert!(!commands.contains_key(&id(1)) && commands.contains_key(&id(total - 1)));
    }

    #[test]
    fn the_file_is_bounded_and_the_newest_ends_are_whole() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(&directory);
        let large = "x".repeat(32 * 1024);
        let mut longest = 0;
        for number in 0..140 {
            journal.append(&[(id(number), Event::Taken), (id(number), end(&large))], NOON).unwrap();
            longest = longest.max(fs::metadata(file(&directory)).unwrap().len());
        }
        assert!(longest < 2 * MAX_ENDS + 4 * SLACK, "{longest}");
        drop(journal);
        let journal = open(&directory);
        assert!(fs::metadata(file(&directory)).unwrap().len() < MAX_ENDS + 4 * SLACK);
        assert_eq!(journal.commands().len(), 140);
        assert!(result(&journal, id(139)).unwrap() == large);
        let short = result(&journal, id(0)).unwrap();
        assert!(short.len() < 2 * SHORT_RESULT && short.contains("bytes cut"));
    }

    #[test]
    fn what_cannot_be_written_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(&directory);
        journal.append(&[(id(1), Event::Taken)], NOON).unwrap();
        let whole = journal.swap_file(File::open(file(&directory)).unwrap());
        assert!(journal.append(&[(id(2), Event::Taken)], NOON).is_err());
        journal.swap_file(whole);
        assert_eq!(journal.commands(), [(id(1), Stage::Taken)]);
        journal.append(&[(id(1), end("one"))], NOON).unwrap();
        assert_eq!(result(&journal, id(1)).as_deref(), Some("one"));
        drop(journal);
        assert_eq!(open(&directory).commands(), [(id(1), Stage::Ended { is_answered: false })]);
    }

    #[test]
    fn an_end_whose_line_is_damaged_is_still_an_end() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(&directory);
        journal
            .append(&[(id(1), Event::Taken), (id(1), end("one")), (id(1), Event::Answered)], NOON)
            .unwrap();
        drop(journal);
        let text = fs::read_to_string(file(&directory)).unwrap();
        fs::write(file(&directory), text.replace("one", "two")).unwrap();
        for _ in 0..2 {
            let journal = open(&directory);
            assert_eq!(journal.commands(), [(id(1), Stage::Ended { is_answered: true })]);
            assert!(journal.fin(id(1)).is_none());
        }
    }

    #[test]
    fn a_command_whose_end_is_damaged_did_not_wait() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(&directory);
        journal.append(&[(id(1), Event::Taken), (id(1), end("one"))], NOON).unwrap();
        journal.renew(NOON).unwrap();
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
            journal.append(&[(id(1), Event::Taken)], NOON).unwrap();
            drop(journal);
            assert_eq!(open(&directory).commands().len(), 1);
        }
    }

    /// Events of a few commands, each command's in the order of its life, mixed.
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
                    let all = [Event::Taken, started(), end(&lives[number].1), Event::Answered];
                    next[number] += 1;
                    (id(number as u128), all[next[number] - 1].clone())
                };
                turns.into_iter().map(event).collect()
            })
        })
    }

    /// What is known after some events.
    fn model(events: &[(Uuid, Event)]) -> HashMap<Uuid, u8> {
        let mut known = HashMap::new();
        for (id, event) in events {
            known.insert(*id, rank(event));
        }
        known
    }

    fn known(bytes: &[u8]) -> HashMap<Uuid, u8> {
        let (index, _) = read(bytes).unwrap();
        index.commands.iter().map(|(id, known)| (*id, rank_of(&known.stage))).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn a_cut_at_any_byte_loses_the_event_that_it_cuts_and_no_other(events in histories()) {
            let lines: Vec<_> = events.iter().map(|(id, event)| line(NOON, *id, event).unwrap()).collect();
            let whole = lines.concat();
            let mut ends: Vec<usize> = Vec::new();
            for line in &lines {
                ends.push(ends.last().unwrap_or(&0) + line.len());
            }
            for cut in 0..=whole.len() {
                let written = ends.iter().filter(|end| **end <= cut).count();
                prop_assert_eq!(known(&whole[..cut]), model(&events[..written]), "at {}", cut);
            }
        }

        #[test]
        fn a_renewed_file_that_is_cut_in_its_last_line_knows_all_commands(events in histories(), back in 1usize..200) {
            let directory = tempfile::tempdir().unwrap();
            let mut journal = open(&directory);
            journal.append(&events, NOON).unwrap();
            journal.renew(NOON).unwrap();
            drop(journal);
            let bytes = fs::read(file(&directory)).unwrap();
            let last = bytes.iter().rev().skip(1).position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
            let all = model(&events);
            let cut = known(&bytes[..bytes.len() - back.min(last)]);
            // The last line is not the only one of a command that did more than come.
            prop_assert!(all.iter().filter(|(_, rank)| **rank > 0).all(|(id, _)| cut.contains_key(id)));
            prop_assert!(all.len() - cut.len() <= 1);
        }

        #[test]
        fn a_journal_goes_on_after_a_cut(events in histories(), at in 0.0..1.0f64, more in histories()) {
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
            // Other ids than before, so that each life starts again.
            let more: Vec<_> = more.into_iter().map(|(old, event)| (id(old.as_u128() + 100), event)).collect();
            journal.append(&more, NOON).unwrap();
            expected.extend(model(&more));
            prop_assert_eq!(ranks(journal.commands()), expected.clone());
            drop(journal);
            prop_assert_eq!(ranks(open(&directory).commands()), expected);
        }

        #[test]
        fn a_damaged_byte_costs_two_events_at_most(events in histories(), at in 0.0..1.0f64, change in 1u8..) {
            let lines: Vec<_> = events.iter().map(|(id, event)| line(NOON, *id, event).unwrap()).collect();
            let mut bytes = lines.concat();
            let span = (bytes.len() as f64 * at) as usize;
            bytes[span] ^= change;
            let found: usize = bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| parse(line).is_some()).count();
            prop_assert!(found + 2 >= events.len());
        }
    }
}
