//! Writes the journal (`file.rs`) on its own thread, as disks can be slow (agent-protocol 6.3).
//!
//! Each write returns a [`Written`], which the caller awaits before the next step: a command is
//! written before it is acknowledged and run, its process before it runs, its fin before it is
//! sent. If the disk is full or too slow, the agent continues without the journal: a full disk must
//! not prevent the command that would empty it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::host::process::Identity;
use crate::journal::file::{Event, JournalFile, Stage, now};

/// The longest queue of requests. Requests beyond it are dropped.
const QUEUE: usize = 1_024;
/// How many events are written at once.
const BATCH: usize = 128;
/// The interval of the search for expired commands.
const EXPIRY: Duration = Duration::from_secs(60 * 60);

/// The longest wait for the disk.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A request to the thread.
enum Request {
    /// Write an event.
    Note(Uuid, Event, DropGuard),
    /// Write a fin, which is JSON.
    End(Uuid, Bytes, DropGuard),
    /// Return a command's fin, if it is known.
    Fin(Uuid, oneshot::Sender<Bytes>),
    /// Finish all earlier requests.
    Flush(DropGuard),
}

/// The handle of the journal's thread. The default one writes nothing.
#[derive(Clone, Default)]
pub struct JournalWriter {
    requests: Option<SyncSender<Request>>,
    is_durable: Arc<AtomicBool>,
}

/// Completes when a write is on the disk, or will not be.
#[derive(Clone)]
pub struct Written {
    done: CancellationToken,
    is_durable: Arc<AtomicBool>,
}

impl Written {
    /// For what needs no write.
    pub fn already() -> Self {
        let done = CancellationToken::new();
        done.cancel();
        Self { done, is_durable: Arc::default() }
    }

    /// Waits for it.
    pub async fn wait(&self) {
        if timeout(PATIENCE, self.done.cancelled()).await.is_err() {
            report_slow_disk(&self.is_durable);
        }
    }
}

impl JournalWriter {
    /// Opens the journal in a directory. Also returns its commands, by arrival. Blocks.
    ///
    /// # Errors
    /// Why it cannot be used, in one line.
    pub fn open(directory: &Path) -> Result<(Self, Vec<(Uuid, Stage)>), String> {
        let journal = JournalFile::open(directory, now())?;
        let commands = journal.commands();
        let (requests, received) = sync_channel(QUEUE);
        let is_durable = Arc::new(AtomicBool::new(true));
        let thread = WriterThread {
            journal,
            is_durable: is_durable.clone(),
            directory: directory.to_owned(),
        };
        let builder = std::thread::Builder::new().name("journal".to_owned());
        builder
            .spawn(move || thread.run(&received))
            .map_err(|error| format!("no thread: {error}"))?;
        Ok((Self { requests: Some(requests), is_durable }, commands))
    }

    /// Whether current writes survive a restart.
    pub fn is_durable(&self) -> bool {
        self.is_durable.load(Ordering::Relaxed)
    }

    /// Whether there is a journal.
    pub fn is_enabled(&self) -> bool {
        self.requests.is_some()
    }

    /// Writes that a command arrived.
    pub fn taken(&self, id: Uuid) -> Written {
        self.ask(|guard| Request::Note(id, Event::Taken, guard))
    }

    /// Writes the process of a command.
    pub fn started(&self, id: Uuid, process: Option<Identity>) -> Written {
        self.ask(|guard| Request::Note(id, Event::Started(process), guard))
    }

    /// Writes the end of a command. `fin` is JSON.
    pub fn ended(&self, id: Uuid, fin: Bytes) -> Written {
        self.ask(|guard| Request::End(id, fin, guard))
    }

    /// Writes that the service accepted a command's fin.
    pub fn answered(&self, id: Uuid) -> Written {
        self.ask(|guard| Request::Note(id, Event::Answered, guard))
    }

    /// Waits until all earlier writes are on the disk.
    pub async fn flush(&self) {
        self.ask(Request::Flush).wait().await;
    }

    /// The fin of a command that ended, as JSON.
    pub async fn fin(&self, id: Uuid) -> Option<Bytes> {
        let (sender, answer) = oneshot::channel();
        self.requests.as_ref()?.try_send(Request::Fin(id, sender)).ok()?;
        answer.await.ok()
    }

    fn ask(&self, request: impl FnOnce(DropGuard) -> Request) -> Written {
        let done = CancellationToken::new();
        // A request that does not fit is dropped, and its guard completes the wait.
        let request = request(done.clone().drop_guard());
        if let Some(requests) = &self.requests
            && requests.try_send(request).is_err()
        {
            report_slow_disk(&self.is_durable);
        }
        Written { done, is_durable: self.is_durable.clone() }
    }
}

/// Marks the journal as not durable, and logs that once.
fn report_slow_disk(is_durable: &AtomicBool) {
    if is_durable.swap(false, Ordering::Relaxed) {
        log::error!("the disk is too slow: commands are not remembered over a restart");
    }
}

/// The state of the thread.
struct WriterThread {
    journal: JournalFile,
    directory: PathBuf,
    is_durable: Arc<AtomicBool>,
}

impl WriterThread {
    /// Serves requests until all handles are dropped.
    fn run(mut self, requests: &Receiver<Request>) {
        let mut expired_at = Instant::now();
        loop {
            if expired_at.elapsed() >= EXPIRY {
                expired_at = Instant::now();
                if let Err(error) = self.journal.expire(now()) {
                    log::warn!("{}: {error}", self.directory.display());
                }
            }
            let first = match requests.recv_timeout(EXPIRY) {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let (mut events, mut guards, mut asked) = (Vec::new(), Vec::new(), Vec::new());
            for request in std::iter::once(first).chain(requests.try_iter()).take(BATCH) {
                match request {
                    Request::Note(id, event, guard) => {
                        events.push((id, event));
                        guards.push(guard);
                    }
                    Request::End(id, fin, guard) => {
                        // The caller serialized it, so it is valid JSON.
                        let fin = String::from_utf8(fin.into())
                            .ok()
                            .and_then(|fin| RawValue::from_string(fin).ok());
                        events.extend(fin.map(|fin| (id, Event::Ended(fin))));
                        guards.push(guard);
                    }
                    Request::Flush(guard) => guards.push(guard),
                    Request::Fin(id, answer) => asked.push((id, answer)),
                }
            }
            self.note(&events);
            drop(guards);
            for (id, answer) in asked {
                if let Some(fin) = self.journal.fin(id) {
                    // The requester may have been dropped.
                    let _ = answer.send(String::from(Box::<str>::from(fin)).into());
                }
            }
        }
    }

    /// Writes events, and logs when writing starts or stops working.
    fn note(&mut self, events: &[(Uuid, Event)]) {
        if events.is_empty() {
            return;
        }
        let written = self.journal.append(events, now());
        let was_durable = self.is_durable.swap(written.is_ok(), Ordering::Relaxed);
        match written {
            Err(error) if was_durable => {
                let directory = self.directory.display();
                log::error!("{directory}: {error}: commands are not remembered over a restart");
            }
            Ok(()) if !was_durable => log::info!("commands are remembered over a restart again"),
            _ => {}
        }
    }
}

#[cfg(test)]
impl JournalWriter {
    /// A memory whose disk is a test: what is to be noted comes there, and is noted when it drops
    /// the guard.
    pub fn held() -> (Self, HeldDisk) {
        let (requests, received) = sync_channel(QUEUE);
        (
            Self { requests: Some(requests), is_durable: Arc::new(AtomicBool::new(true)) },
            HeldDisk(received),
        )
    }
}

/// The disk of [`JournalWriter::held`].
#[cfg(test)]
pub struct HeldDisk(Receiver<Request>);

#[cfg(test)]
impl HeldDisk {
    /// The next event by its name, if there is one already.
    pub fn next(&self) -> Option<(&'static str, DropGuard)> {
        match self.0.try_recv().ok()? {
            Request::Note(_, Event::Taken, guard) => Some(("taken", guard)),
            Request::Note(_, Event::Started(_), guard) => Some(("started", guard)),
            Request::Note(_, Event::Ended(_), guard) | Request::End(_, _, guard) => {
                Some(("ended", guard))
            }
            Request::Note(_, Event::Answered, guard) => Some(("answered", guard)),
            Request::Fin(..) | Request::Flush(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    /// What is on the disk of another memory's directory, as an agent would find it that came after
    /// a crash.
    fn on_disk(directory: &Path) -> Vec<(Uuid, Stage)> {
        let copy = tempfile::tempdir().unwrap();
        std::fs::copy(directory.join("commands.journal"), copy.path().join("commands.journal"))
            .unwrap();
        JournalFile::open(copy.path(), now()).unwrap().commands()
    }

    #[tokio::test]
    async fn what_was_waited_for_is_on_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let (journal, known) = JournalWriter::open(directory.path()).unwrap();
        assert!(known.is_empty() && journal.is_durable());
        journal.taken(id(1)).wait().await;
        assert_eq!(on_disk(directory.path()), [(id(1), Stage::Taken)]);
        journal.started(id(1), None).wait().await;
        assert_eq!(on_disk(directory.path()), [(id(1), Stage::Started(None))]);
        let fin = Bytes::from_static(br#"{"success":true,"result":"\u0000\n"}"#);
        journal.ended(id(1), fin.clone()).wait().await;
        assert_eq!(on_disk(directory.path()), [(id(1), Stage::Ended { is_answered: false })]);
        journal.answered(id(1)).wait().await;
        assert_eq!(on_disk(directory.path()), [(id(1), Stage::Ended { is_answered: true })]);
        assert_eq!((journal.fin(id(1)).await, journal.fin(id(2)).await), (Some(fin), None));
    }

    #[tokio::test]
    async fn many_at_once_are_all_noted() {
        let directory = tempfile::tempdir().unwrap();
        let (journal, _) = JournalWriter::open(directory.path()).unwrap();
        let written: Vec<_> =
            (0..3 * BATCH as u128).map(|number| journal.taken(id(number))).collect();
        for written in written {
            written.wait().await;
        }
        assert_eq!(on_disk(directory.path()).len(), 3 * BATCH);
    }

    #[tokio::test]
    async fn without_a_place_nothing_waits() {
        let journal = JournalWriter::default();
        journal.taken(id(1)).wait().await;
        assert!(
            !journal.is_durable() && !journal.is_enabled() && journal.fin(id(1)).await.is_none()
        );
        assert!(JournalWriter::open(Path::new("/dev/null/state")).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_is_not_waited_for_for_ever() {
        let (journal, _disk) = JournalWriter::held();
        assert!(journal.is_durable());
        journal.taken(id(1)).wait().await;
        assert!(!journal.is_durable());
        for number in 0..2 * QUEUE as u128 {
            journal.taken(id(number));
        }
        journal.taken(id(1)).wait().await;
    }

    #[test]
    fn a_full_disk_is_noticed_and_so_is_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let journal = JournalFile::open(directory.path(), now()).unwrap();
        let is_durable = Arc::new(AtomicBool::new(true));
        let mut thread = WriterThread {
            journal,
            directory: directory.path().to_owned(),
            is_durable: is_durable.clone(),
        };
        let read_only = std::fs::File::open(directory.path().join("commands.journal")).unwrap();
        let whole = thread.journal.swap_file(read_only);
        thread.note(&[(id(1), Event::Taken)]);
        assert!(!is_durable.load(Ordering::Relaxed));
        thread.journal.swap_file(whole);
        thread.note(&[(id(2), Event::Taken)]);
        assert!(is_durable.load(Ordering::Relaxed));
        assert_eq!(thread.journal.commands(), [(id(2), Stage::Taken)]);
    }
}
