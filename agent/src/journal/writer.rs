//! Writes the journal (`file.rs`) on its own thread, because disks can be slow
//! (agent-protocol 6.3).
//!
//! Each write returns a [`Written`], which the caller awaits before the next step. A command is
//! written before it is acknowledged and run, its process before it executes the program, and its
//! fin before it is sent. If the disk is full or too slow, the agent continues without the journal,
//! because a full disk must not prevent the command that frees space.

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

/// The maximum number of queued requests. Requests beyond this number are dropped.
const QUEUE_LENGTH: usize = 1_024;
/// The maximum number of requests that are handled in one write.
const MAX_BATCH: usize = 128;
/// The interval between searches for expired commands.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// The maximum wait for a write.
pub const DISK_TIMEOUT: Duration = Duration::from_secs(10);

/// A request to the thread.
enum Request {
    /// Write an event.
    Append(Uuid, Event, DropGuard),
    /// Write a fin. The bytes are JSON.
    End(Uuid, Bytes, DropGuard),
    /// Return a command's fin, if the journal has it.
    Fin(Uuid, oneshot::Sender<Bytes>),
    /// Finish all earlier requests.
    Flush(DropGuard),
}

/// The handle of the journal's thread. The default handle has no thread and writes nothing.
#[derive(Clone, Default)]
pub struct JournalWriter {
    requests: Option<SyncSender<Request>>,
    is_durable: Arc<AtomicBool>,
}

/// Completes when a write is on the disk or has failed.
#[derive(Clone)]
pub struct Written {
    done: CancellationToken,
    is_durable: Arc<AtomicBool>,
}

impl Written {
    /// Creates a completed `Written`, for an event that needs no write.
    pub fn already() -> Self {
        let done = CancellationToken::new();
        done.cancel();
        Self { done, is_durable: Arc::default() }
    }

    /// Waits until the write is done, for at most [`DISK_TIMEOUT`].
    pub async fn wait(&self) {
        if timeout(DISK_TIMEOUT, self.done.cancelled()).await.is_err() {
            report_slow_disk(&self.is_durable);
        }
    }
}

impl JournalWriter {
    /// Opens the journal in a directory. Also returns its commands in order of arrival. Blocks.
    ///
    /// # Errors
    /// The reason why the journal cannot be used, in one line.
    pub fn open(directory: &Path) -> Result<(Self, Vec<(Uuid, Stage)>), String> {
        let journal = JournalFile::open(directory, now())?;
        let commands = journal.commands();
        let (requests, received) = sync_channel(QUEUE_LENGTH);
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

    /// Whether the latest writes are on the disk.
    pub fn is_durable(&self) -> bool {
        self.is_durable.load(Ordering::Relaxed)
    }

    /// Whether the handle has a journal.
    pub fn is_enabled(&self) -> bool {
        self.requests.is_some()
    }

    /// Writes that a command arrived.
    pub fn record_received(&self, id: Uuid) -> Written {
        self.send(|guard| Request::Append(id, Event::Received, guard))
    }

    /// Writes the identity of a command's process.
    pub fn record_started(&self, id: Uuid, process: Option<Identity>) -> Written {
        self.send(|guard| Request::Append(id, Event::Started(process), guard))
    }

    /// Writes the end of a command. `fin` is JSON.
    pub fn record_ended(&self, id: Uuid, fin: Bytes) -> Written {
        self.send(|guard| Request::End(id, fin, guard))
    }

    /// Writes that the service accepted a command's fin.
    pub fn record_fin_accepted(&self, id: Uuid) -> Written {
        self.send(|guard| Request::Append(id, Event::FinAccepted, guard))
    }

    /// Waits until all earlier writes are done, for at most [`DISK_TIMEOUT`].
    pub async fn flush(&self) {
        self.send(Request::Flush).wait().await;
    }

    /// The fin of an ended command as JSON, if the journal has it.
    pub async fn fin(&self, id: Uuid) -> Option<Bytes> {
        let (sender, reply) = oneshot::channel();
        self.requests.as_ref()?.try_send(Request::Fin(id, sender)).ok()?;
        reply.await.ok()
    }

    fn send(&self, request: impl FnOnce(DropGuard) -> Request) -> Written {
        let done = CancellationToken::new();
        // A request that does not fit into the queue is dropped. Its guard then completes the wait.
        let request = request(done.clone().drop_guard());
        if let Some(requests) = &self.requests
            && requests.try_send(request).is_err()
        {
            report_slow_disk(&self.is_durable);
        }
        Written { done, is_durable: self.is_durable.clone() }
    }
}

/// Marks the journal as not durable. Logs an error if it was durable before.
fn report_slow_disk(is_durable: &AtomicBool) {
    if is_durable.swap(false, Ordering::Relaxed) {
        log::error!("the disk is too slow: commands are not remembered across a restart");
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
            if expired_at.elapsed() >= EXPIRY_INTERVAL {
                expired_at = Instant::now();
                if let Err(error) = self.journal.expire(now()) {
                    log::warn!("{}: {error}", self.directory.display());
                }
            }
            let first = match requests.recv_timeout(EXPIRY_INTERVAL) {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let (mut events, mut guards, mut fin_queries) = (Vec::new(), Vec::new(), Vec::new());
            for request in std::iter::once(first).chain(requests.try_iter()).take(MAX_BATCH) {
                match request {
                    Request::Append(id, event, guard) => {
                        events.push((id, event));
                        guards.push(guard);
                    }
                    Request::End(id, fin, guard) => {
                        // The caller serialized the fin, so it is valid JSON.
                        let fin = String::from_utf8(fin.into())
                            .ok()
                            .and_then(|fin| RawValue::from_string(fin).ok());
                        events.extend(fin.map(|fin| (id, Event::Ended(fin))));
                        guards.push(guard);
                    }
                    Request::Flush(guard) => guards.push(guard),
                    Request::Fin(id, reply) => fin_queries.push((id, reply)),
                }
            }
            self.append(&events);
            drop(guards);
            for (id, reply) in fin_queries {
                if let Some(fin) = self.journal.fin(id) {
                    // The requester may have been dropped.
                    let _ = reply.send(String::from(Box::<str>::from(fin)).into());
                }
            }
        }
    }

    /// Writes events. Logs an error when writes begin to fail, and a message when they succeed
    /// again.
    fn append(&mut self, events: &[(Uuid, Event)]) {
        if events.is_empty() {
            return;
        }
        let written = self.journal.append(events, now());
        let was_durable = self.is_durable.swap(written.is_ok(), Ordering::Relaxed);
        match written {
            Err(error) if was_durable => {
                let directory = self.directory.display();
                log::error!("{directory}: {error}: commands are not remembered across a restart");
            }
            Ok(()) if !was_durable => log::info!("commands are remembered across a restart again"),
            _ => {}
        }
    }
}

#[cfg(test)]
impl JournalWriter {
    /// Creates a journal without a thread. The test receives each request, and completes the write
    /// by dropping its guard.
    pub fn with_manual_disk() -> (Self, ManualDisk) {
        let (requests, received) = sync_channel(QUEUE_LENGTH);
        (
            Self { requests: Some(requests), is_durable: Arc::new(AtomicBool::new(true)) },
            ManualDisk(received),
        )
    }
}

/// The requests of [`JournalWriter::with_manual_disk`].
#[cfg(test)]
pub struct ManualDisk(Receiver<Request>);

#[cfg(test)]
impl ManualDisk {
    /// The name and the guard of the next event, if it has arrived.
    pub fn next(&self) -> Option<(&'static str, DropGuard)> {
        match self.0.try_recv().ok()? {
            Request::Append(_, Event::Received, guard) => Some(("received", guard)),
            Request::Append(_, Event::Started(_), guard) => Some(("started", guard)),
            Request::Append(_, Event::Ended(_), guard) | Request::End(_, _, guard) => {
                Some(("ended", guard))
            }
            Request::Append(_, Event::FinAccepted, guard) => Some(("fin accepted", guard)),
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

    /// The commands that an agent would find in `directory` after a crash.
    fn on_disk(directory: &Path) -> Vec<(Uuid, Stage)> {
        let copy = tempfile::tempdir().unwrap();
        std::fs::copy(directory.join("commands.journal"), copy.path().join("commands.journal"))
            .unwrap();
        JournalFile::open(copy.path(), now()).unwrap().commands()
    }

    #[tokio::test]
    async fn an_awaited_write_is_on_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let (journal, commands) = JournalWriter::open(directory.path()).unwrap();
        assert!(commands.is_empty() && journal.is_durable());
        journal.record_received(id(1)).wait().await;
        assert_eq!(on_disk(directory.path()), [(id(1), Stage::Received)]);
        journal.record_started(id(1), None).wait().await;
        assert_eq!(on_disk(directory.path()), [(id(1), Stage::Started(None))]);
        let fin = Bytes::from_static(br#"{"success":true,"result":"\u0000\n"}"#);
        journal.record_ended(id(1), fin.clone()).wait().await;
        assert_eq!(on_disk(directory.path()), [(id(1), Stage::Ended { is_fin_accepted: false })]);
        journal.record_fin_accepted(id(1)).wait().await;
        assert_eq!(on_disk(directory.path()), [(id(1), Stage::Ended { is_fin_accepted: true })]);
        assert_eq!((journal.fin(id(1)).await, journal.fin(id(2)).await), (Some(fin), None));
    }

    #[tokio::test]
    async fn many_concurrent_writes_are_all_on_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let (journal, _) = JournalWriter::open(directory.path()).unwrap();
        let written: Vec<_> =
            (0..3 * MAX_BATCH as u128).map(|number| journal.record_received(id(number))).collect();
        for written in written {
            written.wait().await;
        }
        assert_eq!(on_disk(directory.path()).len(), 3 * MAX_BATCH);
    }

    #[tokio::test]
    async fn without_a_directory_nothing_waits() {
        let journal = JournalWriter::default();
        journal.record_received(id(1)).wait().await;
        assert!(
            !journal.is_durable() && !journal.is_enabled() && journal.fin(id(1)).await.is_none()
        );
        assert!(JournalWriter::open(Path::new("/dev/null/state")).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_for_a_hanging_disk_ends() {
        let (journal, _disk) = JournalWriter::with_manual_disk();
        assert!(journal.is_durable());
        journal.record_received(id(1)).wait().await;
        assert!(!journal.is_durable());
        for number in 0..2 * QUEUE_LENGTH as u128 {
            journal.record_received(id(number));
        }
        journal.record_received(id(1)).wait().await;
    }

    #[test]
    fn failing_and_working_writes_change_durability() {
        let directory = tempfile::tempdir().unwrap();
        let journal = JournalFile::open(directory.path(), now()).unwrap();
        let is_durable = Arc::new(AtomicBool::new(true));
        let mut thread = WriterThread {
            journal,
            directory: directory.path().to_owned(),
            is_durable: is_durable.clone(),
        };
        let read_only = std::fs::File::open(directory.path().join("commands.journal")).unwrap();
        let original = thread.journal.swap_file(read_only);
        thread.append(&[(id(1), Event::Received)]);
        assert!(!is_durable.load(Ordering::Relaxed));
        thread.journal.swap_file(original);
        thread.append(&[(id(2), Event::Received)]);
        assert!(is_durable.load(Ordering::Relaxed));
        assert_eq!(thread.journal.commands(), [(id(2), Stage::Received)]);
    }
}
