//! Sends the reports of commands to the service, retries them, and decides when to give up
//! (agent-protocol 4 and 6.3).
//!
//! Each command has its own sender task. It sends the ack, then the chunks, then the fin, one at a
//! time.
//! - A call without a 2xx response within 5 s is retried 1, 3, 7, 15 and 31 s after the first
//!   failure. 404 means that the service does not know the command, so the call is not retried.
//! - If these retries fail for an ack or a chunk, the report is dropped, and the service is treated
//!   as unavailable. From then on, the sender tries one chunk every few seconds and drops the
//!   chunks in between. So a command never waits long for an unavailable service.
//! - A fin is retried for a day, except after 403, which is the response for a deleted server. At
//!   most [`MAX_PENDING_FINS`] fins wait. If one more arrives, the oldest fin is dropped. The total
//!   size of waiting fins is limited too. Beyond this limit, a new fin keeps only a short piece of
//!   its output.
//!
//! A command is in the journal before its ack is sent, and a fin before the fin is sent. After a
//! restart the agent sends the fins that the service has not accepted.
//!
//! The output of a command waits in a buffer of limited size, and then in a queue of a few chunks.
//! If both are full, the command is blocked until a chunk is sent or dropped. Output beyond the
//! amount that the service keeps is read and dropped, so it never blocks the command.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farhand_domain::agent::wire::{Chunk, Fin};
use hyper::Method;
use hyper::body::Bytes;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::connection::client::{Client, Outcome, RESPONSE_TIMEOUT};
use crate::journal::shorten::shorten_result;
use crate::journal::writer::{JournalWriter, Written};

/// The pauses between the first attempts, in seconds. So the retries are 1, 3, 7, 15 and 31 s after
/// the first failure.
const RETRY_PAUSES: [u64; 5] = [1, 2, 4, 8, 16];
/// The pause between attempts to send a fin after the first retries failed.
const LATE_PAUSE: Duration = Duration::from_secs(60);
/// How long the agent tries to send a fin.
const FIN_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
/// The timeout of attempts to send a fin after the first retries failed. It is longer than the
/// timeout of the first attempts, because a slow connection may be the reason for the failures.
const LATE_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval between attempts to send a chunk while the service is unavailable.
const UNAVAILABLE_PAUSE: Duration = Duration::from_secs(5);
/// The maximum pause between attempts while the agent shuts down.
const FLUSH_PAUSE: Duration = Duration::from_millis(500);
/// The maximum number of a command's chunks that wait to be sent. It is small, so that the pump
/// soon sends larger chunks if the service is slow.
pub const MAX_QUEUED_CHUNKS: usize = 4;
/// The maximum number of fins that wait to be sent.
const MAX_PENDING_FINS: usize = 1_000;
/// The maximum total size of all waiting fins, in bytes. Beyond this size, a new fin is shortened.
const MAX_TOTAL_FIN_BYTES: usize = 64 * 1024 * 1024;
/// The maximum number of concurrent first attempts to send reports.
const MAX_FIRST_CALLS: usize = 16;
/// The maximum number of concurrent later attempts to send fins. They have their own limit, so that
/// the waiting fins of a whole day cannot delay the reports of running commands.
const MAX_LATE_CALLS: usize = 4;

/// How reports are sent. Tests use a scripted implementation.
pub trait Transport: Clone + Send + Sync + 'static {
    /// Posts `body` to `path` and returns the status of the response.
    fn post(
        &self,
        path: &str,
        body: Bytes,
        timeout: Duration,
    ) -> impl Future<Output = Outcome> + Send;
}

impl Transport for Client {
    async fn post(&self, path: &str, body: Bytes, timeout: Duration) -> Outcome {
        self.send(Method::POST, path, body, timeout).await
    }
}

/// A report in the queue of a command's sender.
pub enum Report {
    /// A piece of output.
    Chunk(Chunk),
    /// The fin as JSON. It is sent after the journal has written it.
    Fin(Bytes, FinSlot, Written),
}

/// Sends the reports of all commands. Clones share their state.
#[derive(Clone)]
pub struct Reports<T> {
    transport: T,
    first_calls: Arc<Semaphore>,
    late_calls: Arc<Semaphore>,
    pending_fins: PendingFins,
    journal: JournalWriter,
    flushing: CancellationToken,
    senders: TaskTracker,
    active: Arc<Mutex<HashMap<Uuid, bool>>>,
}

/// The queue to one command's sender. If the `Reporter` is dropped without a fin, no fin is sent.
pub struct Reporter {
    id: Uuid,
    queue: mpsc::Sender<Report>,
    pending_fins: PendingFins,
    journal: JournalWriter,
}

impl Reporter {
    /// The queue for chunks.
    pub fn queue(&self) -> &mpsc::Sender<Report> {
        &self.queue
    }

    /// The command's id.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Queues the fin after all queued chunks. Waits until the queue has room.
    pub async fn fin(self, fin: Fin) {
        let (body, slot) = self.pending_fins.add(fin);
        let written = self.journal.record_ended(self.id, body.clone());
        // The sender ends only after it has received a fin, so the queue is open.
        let _ = self.queue.send(Report::Fin(body, slot, written)).await;
    }
}

/// The outcome of sending a report with all its retries.
enum SendOutcome {
    /// The service accepted the report, or does not know the command.
    Done,
    /// All attempts failed. The value is the status of the last attempt, if it got a response.
    Failed(Option<u16>),
}

impl<T: Transport> Reports<T> {
    /// Sends reports with `transport` and records them in `journal`. After `flushing` is cancelled,
    /// pauses between attempts are short.
    pub fn new(transport: T, journal: JournalWriter, flushing: CancellationToken) -> Self {
        Self {
            transport,
            first_calls: Arc::new(Semaphore::new(MAX_FIRST_CALLS)),
            late_calls: Arc::new(Semaphore::new(MAX_LATE_CALLS)),
            pending_fins: PendingFins::default(),
            journal,
            flushing,
            senders: TaskTracker::new(),
            active: Arc::default(),
        }
    }

    /// The journal in which reports are recorded.
    pub fn journal(&self) -> &JournalWriter {
        &self.journal
    }

    /// Acknowledges a command when the journal has it (`written`), and starts its sender.
    pub fn begin(&self, id: Uuid, written: Written) -> Reporter {
        let (queue, reports) = mpsc::channel(MAX_QUEUED_CHUNKS);
        self.active().insert(id, false);
        let sender = self.clone();
        self.senders.spawn(async move {
            written.wait().await;
            sender.serve(id, reports).await;
        });
        Reporter {
            id,
            queue,
            pending_fins: self.pending_fins.clone(),
            journal: self.journal.clone(),
        }
    }

    /// Sends the ack and the fin of an ended command again, from the journal. If the command still
    /// has a sender, its pending reports are sent first. Does nothing if the journal does not have
    /// the fin.
    pub async fn resend(&self, id: Uuid) {
        match self.active().entry(id) {
            Entry::Occupied(mut entry) => {
                entry.insert(true);
                return;
            }
            Entry::Vacant(entry) => entry.insert(false),
        };
        match self.stored_fin(id).await {
            Some(reports) => {
                let sender = self.clone();
                self.senders.spawn(async move { sender.serve(id, reports).await });
            }
            None => {
                self.active().remove(&id);
            }
        }
    }

    /// Sends the reports of a command. If a resend was requested concurrently, then sends the ack
    /// and the fin from the journal.
    async fn serve(&self, id: Uuid, mut reports: mpsc::Receiver<Report>) {
        loop {
            self.send_all(id, reports).await;
            if !self.take_resend_request(id) {
                return;
            }
            match self.stored_fin(id).await {
                Some(stored_fin) => reports = stored_fin,
                None => {
                    self.active().remove(&id);
                    return;
                }
            }
        }
    }

    /// Returns whether a resend of a command's reports was requested, and clears the request.
    /// Without a request, removes the command from the active commands, because its sender ends.
    fn take_resend_request(&self, id: Uuid) -> bool {
        let mut active = self.active();
        let resend_requested = active.insert(id, false).unwrap_or_default();
        if !resend_requested {
            active.remove(&id);
        }
        resend_requested
    }

    /// Returns a queue with one report: the command's fin from the journal. Returns `None` if the
    /// journal does not have the fin.
    async fn stored_fin(&self, id: Uuid) -> Option<mpsc::Receiver<Report>> {
        let fin = serde_json::from_slice(&self.journal.fin(id).await?).ok()?;
        let (queue, reports) = mpsc::channel(1);
        let (body, slot) = self.pending_fins.add(fin);
        queue.try_send(Report::Fin(body, slot, Written::already())).ok()?;
        Some(reports)
    }

    /// The commands that have a sender. The value is true if a resend of the command's reports was
    /// requested.
    fn active(&self) -> MutexGuard<'_, HashMap<Uuid, bool>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all reports are sent or dropped. Call it after the last [`begin`](Self::begin).
    pub async fn finished(&self) {
        self.senders.close();
        self.senders.wait().await;
    }

    /// The number of commands with unsent reports.
    pub fn unsent(&self) -> usize {
        self.senders.len()
    }

    /// Sends the ack, the chunks and the fin of a command in this order.
    async fn send_all(&self, id: Uuid, mut reports: mpsc::Receiver<Report>) {
        let path = |report| format!("/api/events/commands/{id}/{report}/");
        // The time of the last failed chunk or ack. `None` while the service is available.
        let mut away = None;
        if let SendOutcome::Failed(_) =
            self.deliver(&path("ack"), Bytes::new(), RETRY_PAUSES.len()).await
        {
            log::warn!("command {id}: the acknowledgement could not be sent");
            away = Some(Instant::now());
        }
        let path_of_chunks = path("chunk");
        while let Some(report) = reports.recv().await {
            match report {
                Report::Chunk(_)
                    if away.is_some_and(|at: Instant| at.elapsed() < UNAVAILABLE_PAUSE) => {}
                Report::Chunk(chunk) => {
                    let retries = if away.is_some() { 0 } else { RETRY_PAUSES.len() };
                    let sent = self.deliver(&path_of_chunks, json(&chunk), retries).await;
                    let is_away = matches!(sent, SendOutcome::Failed(_));
                    if is_away && away.is_none() {
                        log::warn!(
                            "command {id}: output could not be sent; more may be lost until the service responds"
                        );
                    }
                    away = is_away.then(Instant::now);
                }
                Report::Fin(body, slot, written) => {
                    let path = path("fin");
                    let deliver = async {
                        written.wait().await;
                        self.deliver_fin(id, &path, body).await;
                    };
                    tokio::select! {
                        () = deliver => {}
                        () = slot.evicted.cancelled() => {
                            log::error!("command {id}: its fin was dropped, because too many newer fins wait");
                        }
                    }
                    return;
                }
            }
        }
    }

    /// Sends a fin. Retries for up to a day.
    async fn deliver_fin(&self, id: Uuid, path: &str, body: Bytes) {
        let began = Instant::now();
        match self.deliver(path, body.clone(), RETRY_PAUSES.len()).await {
            SendOutcome::Done => return self.mark_accepted(id),
            SendOutcome::Failed(Some(403)) => {
                return log::warn!(
                    "command {id}: the service refused its fin: is the server deleted?"
                );
            }
            SendOutcome::Failed(_) => {
                log::warn!("command {id}: its fin could not be sent; the agent retries for a day")
            }
        }
        while began.elapsed() < FIN_LIFETIME {
            self.pause(jitter(LATE_PAUSE)).await;
            match self.call(&self.late_calls, path, body.clone(), LATE_TIMEOUT).await {
                Ok(200..=299) => {
                    log::info!("command {id}: its fin is sent");
                    return self.mark_accepted(id);
                }
                Ok(404) => return self.mark_accepted(id),
                Ok(403) => {
                    return log::warn!(
                        "command {id}: the service refused its fin: is the server deleted?"
                    );
                }
                _ => {}
            }
        }
        log::error!("command {id}: its fin could not be sent for a day and is dropped");
    }

    /// Records that the service has the fin of a command.
    fn mark_accepted(&self, id: Uuid) {
        // Not awaited. If the write is lost, the fin is sent again after a restart, which is
        // harmless.
        self.journal.record_fin_accepted(id);
    }

    /// Sends a report, with up to `retries` retries.
    async fn deliver(&self, path: &str, body: Bytes, retries: usize) -> SendOutcome {
        let mut pauses = RETRY_PAUSES.iter().take(retries);
        loop {
            let outcome = self.call(&self.first_calls, path, body.clone(), RESPONSE_TIMEOUT).await;
            match &outcome {
                Ok(200..=299 | 404) => return SendOutcome::Done,
                Ok(status) => log::debug!("{path}: status {status}"),
                Err(why) => log::debug!("{path}: {}", why.0),
            }
            match pauses.next() {
                Some(pause) => self.pause(Duration::from_secs(*pause)).await,
                None => return SendOutcome::Failed(outcome.ok()),
            }
        }
    }

    async fn call(&self, calls: &Semaphore, path: &str, body: Bytes, timeout: Duration) -> Outcome {
        // The semaphore is never closed, so this never fails.
        let _call = calls.acquire().await;
        self.transport.post(path, body, timeout).await
    }

    /// Waits before the next attempt. When the agent begins to flush reports, the wait ends. Later
    /// waits are at most [`FLUSH_PAUSE`].
    async fn pause(&self, time: Duration) {
        if self.flushing.is_cancelled() {
            return sleep(time.min(FLUSH_PAUSE)).await;
        }
        tokio::select! {
            () = sleep(time) => {}
            () = self.flushing.cancelled() => {}
        }
    }
}

/// Returns `time`, randomly shortened or extended by up to a tenth, so that many agents do not call
/// at the same moment.
pub fn jitter(time: Duration) -> Duration {
    time.mul_f64(0.9 + 0.2 * fastrand::f64())
}

fn json(report: &impl serde::Serialize) -> Bytes {
    // Reports contain only strings, numbers and booleans, so serialization cannot fail.
    serde_json::to_vec(report).unwrap_or_default().into()
}

/// The fins that wait to be sent. Clones share their state.
#[derive(Clone, Default)]
struct PendingFins(Arc<Mutex<PendingState>>);

#[derive(Default)]
struct PendingState {
    next: u64,
    bytes: usize,
    /// The waiting fins, oldest first: the size in bytes, and the token that evicts the fin.
    fins: BTreeMap<u64, (usize, CancellationToken)>,
}

/// A fin's entry in [`PendingFins`]. Dropping it frees the entry.
pub struct FinSlot {
    number: u64,
    evicted: CancellationToken,
    pending_fins: PendingFins,
}

impl PendingFins {
    fn lock(&self) -> MutexGuard<'_, PendingState> {
        // No code panics while it holds this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a fin and returns its JSON. Shortens the fin if the total size is too large, and evicts
    /// the oldest fin if there are too many.
    fn add(&self, mut fin: Fin) -> (Bytes, FinSlot) {
        let mut body = json(&fin);
        let mut waiting = self.lock();
        if waiting.bytes + body.len() > MAX_TOTAL_FIN_BYTES {
            shorten_result(&mut fin);
            body = json(&fin);
        }
        let (number, evicted) = (waiting.next, CancellationToken::new());
        waiting.next += 1;
        waiting.bytes += body.len();
        waiting.fins.insert(number, (body.len(), evicted.clone()));
        if waiting.fins.len() > MAX_PENDING_FINS
            && let Some((_, (size, oldest))) = waiting.fins.pop_first()
        {
            waiting.bytes -= size;
            oldest.cancel();
        }
        (body, FinSlot { number, evicted, pending_fins: self.clone() })
    }
}

impl Drop for FinSlot {
    fn drop(&mut self) {
        let mut waiting = self.pending_fins.lock();
        if let Some((size, _)) = waiting.fins.remove(&self.number) {
            waiting.bytes -= size;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::VecDeque;

    use super::*;
    use crate::connection::client::NoResponse;
    use crate::journal::shorten::SHORT_RESULT;

    /// Responds with `responses` in order, then always with `then`. Records the calls and their
    /// times.
    #[derive(Clone)]
    struct Scripted {
        began: Instant,
        state: Arc<Mutex<State>>,
    }

    struct State {
        responses: VecDeque<Outcome>,
        then: Outcome,
        /// For each call: the time in seconds, the kind of report, and the body.
        calls: Vec<(u64, String, serde_json::Value)>,
    }

    impl Scripted {
        fn new(responses: &[u16], then: u16) -> Self {
            let outcome =
                |status: u16| if status == 0 { Err(NoResponse("away".into())) } else { Ok(status) };
            let responses = responses.iter().map(|status| outcome(*status)).collect();
            let state = State { responses, then: outcome(then), calls: Vec::new() };
            Self { began: Instant::now(), state: Arc::new(Mutex::new(state)) }
        }

        fn set_response(&self, status: u16) {
            self.state.lock().unwrap().then = Ok(status);
        }

        /// For each call: the time in seconds, the kind of report, and its `seq` or `exit_code`.
        fn calls(&self) -> Vec<(u64, String, i64)> {
            let number = |body: &serde_json::Value| {
                body["seq"].as_i64().or(body["exit_code"].as_i64()).unwrap_or(-1)
            };
            self.state
                .lock()
                .unwrap()
                .calls
                .iter()
                .map(|(at, what, body)| (*at, what.clone(), number(body)))
                .collect()
        }

        fn whats(&self) -> Vec<String> {
            self.calls().into_iter().map(|(_, what, _)| what).collect()
        }
    }

    impl Transport for Scripted {
        async fn post(&self, path: &str, body: Bytes, _: Duration) -> Outcome {
            tokio::task::yield_now().await;
            let what = path.trim_end_matches('/').rsplit('/').next().unwrap().to_owned();
            let mut state = self.state.lock().unwrap();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            state.calls.push((self.began.elapsed().as_secs(), what, body));
            state.responses.pop_front().unwrap_or_else(|| state.then.clone())
        }
    }

    fn fin(exit_code: i64, result: &str) -> Fin {
        Fin {
            success: exit_code == 0,
            result: Some(result.to_owned()),
            elapsed_time: Some(0.5),
            exit_code: Some(exit_code),
            chunks: None,
            output_bytes: None,
            reason: None,
        }
    }

    fn chunk(seq: u32) -> Report {
        Report::Chunk(Chunk { seq, content: "x".into() })
    }

    fn reports(transport: &Scripted) -> Reports<Scripted> {
        Reports::new(transport.clone(), JournalWriter::default(), CancellationToken::new())
    }

    async fn one_command(reports: &Reports<Scripted>, chunks: u32) {
        let reporter = reports.begin(Uuid::nil(), Written::already());
        for seq in 0..chunks {
            let _ = reporter.queue().send(chunk(seq)).await;
        }
        reporter.fin(fin(7, "xxx")).await;
    }

    #[tokio::test(start_paused = true)]
    async fn reports_are_sent_in_order() {
        let service = Scripted::new(&[], 204);
        let reports = reports(&service);
        one_command(&reports, 3).await;
        reports.finished().await;
        let call = |what: &str, number| (0, what.to_owned(), number);
        assert_eq!(
            service.calls(),
            [call("ack", -1), call("chunk", 0), call("chunk", 1), call("chunk", 2), call("fin", 7)]
        );
        assert_eq!(reports.pending_fins.lock().bytes, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_report_is_retried_before_the_next_one() {
        let service = Scripted::new(&[500, 0, 429, 403, 503, 200, 204], 204);
        let reports = reports(&service);
        one_command(&reports, 1).await;
        reports.finished().await;
        let times: Vec<_> = service.calls().into_iter().map(|(at, what, _)| (at, what)).collect();
        let expected = [
            (0, "ack"),
            (1, "ack"),
            (3, "ack"),
            (7, "ack"),
            (15, "ack"),
            (31, "ack"),
            (31, "chunk"),
            (31, "fin"),
        ];
        assert_eq!(times, expected.map(|(at, what)| (at, what.to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_404_is_not_retried() {
        let service = Scripted::new(&[], 404);
        let reports = reports(&service);
        one_command(&reports, 2).await;
        reports.finished().await;
        assert_eq!(service.whats(), ["ack", "chunk", "chunk", "fin"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fin_is_given_up_after_403() {
        let service = Scripted::new(&[204, 204], 403);
        let reports = reports(&service);
        one_command(&reports, 1).await;
        reports.finished().await;
        assert_eq!(service.calls().last(), Some(&(31, "fin".to_owned(), 7)));
        assert_eq!(service.calls().len(), 2 + 6);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fin_is_retried_for_hours_and_chunks_are_not() {
        let service = Scripted::new(&[], 0);
        let reports = reports(&service);
        one_command(&reports, 1_000).await;
        // After the failed ack, one chunk is tried every few seconds and other chunks are dropped.
        // So the fin follows soon.
        assert!(service.began.elapsed() < Duration::from_secs(70), "{:?}", service.began.elapsed());
        sleep(Duration::from_secs(5 * 60 * 60)).await;
        assert_eq!(reports.unsent(), 1);
        service.set_response(204);
        reports.finished().await;
        assert_eq!(service.calls().last().unwrap().1, "fin");
        let tries = service.whats().into_iter().filter(|what| what == "fin").count();
        assert!((250..350).contains(&tries), "{tries}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_fin_is_given_up_after_a_day() {
        let service = Scripted::new(&[], 503);
        let reports = reports(&service);
        one_command(&reports, 0).await;
        reports.finished().await;
        let hours = service.began.elapsed().as_secs_f64() / 3600.0;
        assert!((24.0..24.2).contains(&hours), "{hours}");
    }

    #[tokio::test(start_paused = true)]
    async fn chunks_continue_when_the_service_is_back() {
        let service = Scripted::new(&[204], 503);
        let reports = reports(&service);
        let reporter = reports.begin(Uuid::nil(), Written::already());
        let _ = reporter.queue().send(chunk(0)).await;
        sleep(Duration::from_secs(40)).await;
        service.set_response(204);
        let _ = reporter.queue().send(chunk(1)).await;
        let _ = reporter.queue().send(chunk(2)).await;
        reporter.fin(fin(0, "")).await;
        reports.finished().await;
        let behind: Vec<_> =
            service.calls().into_iter().skip(7).map(|(_, what, number)| (what, number)).collect();
        assert_eq!(
            behind,
            [("chunk".to_owned(), 1), ("chunk".to_owned(), 2), ("fin".to_owned(), 0)]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_accepts_no_chunk() {
        let service = Scripted::new(&[], 0);
        let reporter = reports(&service).begin(Uuid::nil(), Written::already());
        for seq in 0..MAX_QUEUED_CHUNKS {
            reporter.queue().try_send(chunk(seq as u32)).ok().unwrap();
        }
        assert!(reporter.queue().try_send(chunk(99)).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_of_too_many_fins_is_dropped() {
        let service = Scripted::new(&[], 0);
        let reports = reports(&service);
        for number in 0..MAX_PENDING_FINS + 5 {
            reports.begin(Uuid::nil(), Written::already()).fin(fin(number as i64, "")).await;
        }
        sleep(Duration::from_secs(600)).await;
        assert_eq!(
            (reports.unsent(), reports.pending_fins.lock().fins.len()),
            (MAX_PENDING_FINS, MAX_PENDING_FINS)
        );
        let before = service.calls().len();
        service.set_response(204);
        reports.finished().await;
        let mut sent: Vec<_> =
            service.calls().split_off(before).into_iter().map(|(_, _, number)| number).collect();
        sent.sort_unstable();
        assert_eq!(sent, (5..MAX_PENDING_FINS as i64 + 5).collect::<Vec<_>>());
    }

    #[test]
    fn the_total_size_of_waiting_fins_is_bounded() {
        let pending_fins = PendingFins::default();
        let large = "\0".repeat(256 * 1024);
        let entered: Vec<_> =
            (0..200).map(|number| pending_fins.add(fin(number, &large))).collect();
        assert!(pending_fins.lock().bytes < MAX_TOTAL_FIN_BYTES + 200 * 8 * SHORT_RESULT);
        drop(entered);
        assert_eq!(pending_fins.lock().bytes, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn flushing_retries_immediately() {
        let service = Scripted::new(&[204], 503);
        let flushing = CancellationToken::new();
        let reports = Reports::new(service.clone(), JournalWriter::default(), flushing.clone());
        one_command(&reports, 0).await;
        sleep(Duration::from_secs(600)).await;
        service.set_response(204);
        flushing.cancel();
        let began = Instant::now();
        reports.finished().await;
        assert!(began.elapsed() < Duration::from_secs(1));
    }
}
