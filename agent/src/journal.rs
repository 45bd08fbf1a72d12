//! The file in which the agent keeps what it knows of commands, so that it knows it after a restart (agent-protocol 6).
//!
//! A file of lines that only ever grows at its end, and is written anew now and then without what is no longer wanted.
//! Each line is one event of one command, behind a checksum. So a write that was cut off loses the event that was being
//! written and no other, and a line that was damaged is skipped.
//!
//! Nothing here waits for anything but the disk; `memory.rs` keeps that off the runtime.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
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

use crate::output;
use crate::process::Identity;

/// How many commands that ended are kept.
pub const MAX_ENDED: usize = 1_000;
/// How long a command is kept after its end, in seconds.
pub const LIFE: u64 = 24 * 60 * 60;
/// How large all ends together are, in bytes, once the file was written anew: beyond that the older ones keep a short
/// piece of output only.
const MAX_ENDS: u64 = 32 * 1024 * 1024;
/// How much the file may grow beyond twice what it was when it was written anew, in bytes.
const SLACK: u64 = 1024 * 1024;
/// The most that the file takes, in bytes, where it cannot be written anew.
const MAX_FILE: u64 = 256 * 1024 * 1024;
/// How many bytes of the SHA-256 are the checksum: it is against accidents.
const CHECKSUM: usize = 8;

/// How often the lock is tried, and the pause between: an agent that was killed holds it until the last process that it
/// was about to start is gone too.
const LOCKED: (u32, Duration) = (20, Duration::from_millis(100));

/// The names of the file, of the one that takes its place, and of the one that keeps others out.
const NAMES: [&str; 3] = ["commands.journal", "commands.journal.new", "lock"];

/// What happens to a command. The order is that of its life.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// It came, and may be run from now on.
    Taken,
    /// Its process begins. None where it is not known which one that is.
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

/// How far a command is.
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
struct Place {
    offset: u64,
    bytes: usize,
}

/// A command that is known.
struct Known {
    /// When it came to this stage, in seconds since 1970.
    at: u64,
    stage: Stage,
    /// Where its end is written.
    end: Option<Place>,
}

/// All commands that are known.
#[derive(Default)]
struct Index {
    commands: HashMap<Uuid, Known>,
    /// By when they came.
    order: VecDeque<Uuid>,
}

impl Index {
    /// Takes an event. A life goes forward only, and its first end stands.
    fn apply(&mut self, at: u64, id: Uuid, event: &Event, place: Place) {
        let known = self.commands.entry(id).or_insert_with(|| {
            self.order.push_back(id);
            Known { at, stage: Stage::Taken, end: None }
        });
        match (event, &known.stage) {
            (Event::Started(process), Stage::Taken) => known.stage = Stage::Started(process.clone()),
            (Event::Ended(_), Stage::Taken | Stage::Started(_)) => {
                *known = Known { at, stage: Stage::Ended { is_answered: false }, end: Some(place) };
            }
            // The line of its end may be damaged: it has ended all the same.
            (Event::Answered, _) => known.stage = Stage::Ended { is_answered: true },
            _ => {}
        }
    }

    /// Whether a command has ended too long ago.
    fn is_old(known: &Known, now: u64) -> bool {
        matches!(known.stage, Stage::Ended { .. }) && now.saturating_sub(known.at) > LIFE
    }

    /// Forgets what ended too long ago, and the first ones of those that ended where there are too many.
    fn prune(&mut self, now: u64) {
        let has_ended = |known: &Known| matches!(known.stage, Stage::Ended { .. });
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

/// The file, open for one agent alone.
pub struct Journal {
    directory: PathBuf,
    file: File,
    /// Where the next line goes.
    length: u64,
    /// How long the file may become before it is written anew.
    limit: u64,
    index: Index,
    /// Held for as long as this is open.
    _lock: File,
}

impl Journal {
    /// Opens the journal in a directory, which is made if it is not there, and reads it. `now` is in seconds since 1970.
    /// Blocks, for seconds where another agent has it.
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
                fs::TryLockError::WouldBlock => return Err(format!("{}: another agent uses it", directory.display())),
                fs::TryLockError::Error(error) => return Err(describe(error)),
            }
            attempts += 1;
            thread::sleep(LOCKED.1);
        }
        let file = open_private(&directory.join(NAMES[0]), false).map_err(describe)?;
        let (index, skipped) = read(&file).map_err(describe)?;
        if skipped > 0 {
            log::warn!("{}: {skipped} lines were damaged and are skipped", directory.join(NAMES[0]).display());
        }
        let mut journal = Self { directory: directory.to_owned(), file, length: 0, limit: 0, index, _lock: lock };
        // In any case, so that what was cut off at the end is gone, and that it is known that it can be written.
        journal.renew(now).map_err(describe)?;
        Ok(journal)
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
            // It goes on as it is for as long as there is room.
            if let Err(error) = self.renew(now) {
                if self.length > MAX_FILE {
                    return Err(error);
                }
                log::warn!("{}: it could not be written anew: {error}", self.directory.display());
                self.limit = 2 * self.length;
            }
        }
        let mut bytes = Vec::new();
        let mut places = Vec::with_capacity(events.len());
        for (id, event) in events {
            let line = line(now, *id, event)?;
            places.push(Place { offset: self.length + bytes.len() as u64, bytes: line.len() });
            bytes.extend_from_slice(&line);
        }
        if let Err(error) = self.file.write_all_at(&bytes, self.length).and_then(|()| self.file.sync_data()) {
            // Else the next line might stand behind half of one.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += bytes.len() as u64;
        for ((id, event), place) in events.iter().zip(places) {
            self.index.apply(now, *id, event, place);
        }
        Ok(())
    }

    /// The fin of a command that ended, as JSON. None where it is not known, or cannot be read.
    pub fn fin(&self, id: Uuid) -> Option<Box<RawValue>> {
        let place = self.index.commands.get(&id)?.end?;
        match parse(&self.read(place).ok()?)?.event {
            Event::Ended(fin) => Some(fin),
            _ => None,
        }
    }

    /// Removes from the disk what ended too long ago, if anything did.
    ///
    /// # Errors
    /// It could not be written.
    pub fn expire(&mut self, now: u64) -> io::Result<()> {
        if self.index.commands.values().any(|known| Index::is_old(known, now)) { self.renew(now) } else { Ok(()) }
    }

    fn read(&self, place: Place) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; place.bytes];
        self.file.read_exact_at(&mut bytes, place.offset)?;
        Ok(bytes)
    }

    /// Writes the file anew, with one or two lines for each command, and puts it in the place of the old one.
    fn renew(&mut self, now: u64) -> io::Result<()> {
        self.index.prune(now);
        // The newest ends stay whole.
        let mut total = 0;
        let mut is_long = HashSet::new();
        for (id, place) in self.index.order.iter().rev().filter_map(|id| Some((*id, self.index.commands[id].end?))) {
            total += place.bytes as u64;
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
            index.apply(at, id, event, Place { offset: length, bytes: line.len() });
            length += line.len() as u64;
            io::Result::Ok(())
        };
        for id in &self.index.order {
            let known = &self.index.commands[id];
            let mut put = |event: Event| add(&line(known.at, *id, &event)?, *id, known.at, &event);
            put(Event::Taken)?;
            if let Stage::Started(process) = &known.stage {
                put(Event::Started(process.clone()))?;
            }
            if let Some(end) = known.end.map(|place| self.read(place)).transpose()?.as_deref().and_then(parse) {
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
        File::open(&self.directory)?.sync_all()?;
        (self.file, self.index, self.length, self.limit) = (file, index, length, 2 * length + SLACK);
        Ok(())
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
fn read(file: &File) -> io::Result<(Index, usize)> {
    let mut index = Index::default();
    let (mut skipped, mut offset) = (0, 0);
    let mut reader = BufReader::new(file);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        match parse(&bytes) {
            Some(line) => index.apply(line.at, line.id, &line.event, Place { offset, bytes: bytes.len() }),
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

/// Reads a line. None where it is not whole, or not of this version.
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
        fin.result = fin.result.map(|result| output::shorten(&result, output::SHORT_RESULT));
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
