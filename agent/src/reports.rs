//! Reports of commands: what is sent, in which order, how often it is tried, and what is given up
//! when (agent-protocol 4 and 6.3).
//!
//! Each command has one sender of its own, which sends its ack, then its chunks, then its fin, one
//! after the other.
//! - A call without a 2xx in 5 s is tried again 1, 3, 7, 15 and 31 s after it first failed. 404
//!   means that the service does not know the command: nothing is tried again.
//! - An ack or a chunk is then given up. From there on the service counts as away, and chunks are
//!   tried once every few seconds and dropped in between, so that a command never stands still for
//!   long behind a service that is not there.
//! - A fin is tried for a day, except after 403, which a deleted server gets. At most [`MAX_FINS`]
//!   wait, and the oldest gives way; together they are bounded too, and beyond that they keep a
//!   short piece of output only.
//!
//! Before a command is acknowledged, and before its end is sent, that is in the agent's memory;
//! after a restart what was not taken by the service is sent from there.
//!
//! A command's output waits in a queue of a few chunks, and behind it in a buffer of bounded size.
//! When both are full, the command waits for the service, until all the output that the service
//! keeps is read.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farhand_domain::wire::{Chunk, Fin};
use hyper::Method;
use hyper::body::Bytes;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::connection::client::{ANSWER_TIMEOUT, Client, Outcome};
use crate::journal::shorten::shorten_result;
use crate::journal::writer::{JournalWriter, Written};

/// The pauses between the first tries, in seconds: 1, 3, 7, 15 and 31 s after the first one failed.
const PAUSES: [u64; 5] = [1, 2, 4, 8, 16];
/// The pause between the later tries of a fin.
const LONG_PAUSE: Duration = Duration::from_secs(60);
/// How long a fin is tried.
const FIN_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the service has for a later try of a fin. Longer than for the first ones, as a slow
/// line may be what failed.
const LATE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a chunk is tried while the service is away.
const AWAY_PAUSE: Duration = Duration::from_secs(5);
/// The pause between tries while the agent is about to exit.
const FLUSH_PAUSE: Duration = Duration::from_millis(500);
/// How many chunks of one command wait to be sent. Few, so that chunks grow soon if the service is
/// slow.
pub const QUEUE: usize = 4;
/// How many fins wait to be sent.
const MAX_FINS: usize = 1_000;
/// How large all waiting fins are together, in bytes; beyond that a new one is shortened.
const MAX_FIN_BYTES: usize = 64 * 1024 * 1024;
/// How many calls are under way at once: first tries and, apart from them, later tries of fins, so
/// that a day's worth of those cannot stand in the way of what is going on.
const CALLS: (usize, usize) = (16, 4);

/// By what reports are sent. The tests have one that answers as they like.
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

/// A report on its way to a command's sender.
pub enum Report {
    /// A piece of output.
    Chunk(Chunk),
    /// The end, as JSON, and when it may be sent.
    Fin(Bytes, Ticket, Written),
}

/// Sends reports of all commands.
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

/// One command's way to its sender. When it is dropped without a fin, none is sent.
pub struct Reporter {
    id: Uuid,
    queue: mpsc::Sender<Report>,
    pending_fins: PendingFins,
    journal: JournalWriter,
}

impl Reporter {
    /// Where chunks go.
    pub fn queue(&self) -> &mpsc::Sender<Report> {
        &self.queue
    }

    /// The command.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Reports the end; what was queued before is sent before. Returns when it is queued.
    pub async fn fin(self, fin: Fin) {
        let (body, ticket) = self.pending_fins.enter(fin);
        let written = self.journal.ended(self.id, body.clone());
        // The sender ends after the fin only, so there is always one that takes it.
        let _ = self.queue.send(Report::Fin(body, ticket, written)).await;
    }
}

/// How a report came to its end.
enum Delivery {
    /// The service took it, or does not know the command.
    Done,
    /// It was tried as often as it is; with the last status.
    GivenUp(Option<u16>),
}

impl<T: Transport> Reports<T> {
    /// Reports that go by `transport`, and are noted in `journal`. Once `flushing` is cancelled,
    /// tries follow each other quickly.
    pub fn new(transport: T, journal: JournalWriter, flushing: CancellationToken) -> Self {
        Self {
            transport,
            first_calls: Arc::new(Semaphore::new(CALLS.0)),
            late_calls: Arc::new(Semaphore::new(CALLS.1)),
            pending_fins: PendingFins::default(),
            journal,
            flushing,
            senders: TaskTracker::new(),
            active: Arc::default(),
        }
    }

    /// What the reports are noted in.
    pub fn journal(&self) -> &JournalWriter {
        &self.journal
    }

    /// Acknowledges a command, once that it came is `written`, and begins its reports.
    pub fn begin(&self, id: Uuid, written: Written) -> Reporter {
        let (queue, reports) = mpsc::channel(QUEUE);
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

    /// Sends the acknowledgement and the end of a command that ended before, from memory; behind
    /// what is still to be sent of it. Nothing is sent if its fin is not known.
    pub async fn again(&self, id: Uuid) {
        match self.active().entry(id) {
            Entry::Occupied(mut wanted) => {
                wanted.insert(true);
                return;
            }
            Entry::Vacant(place) => place.insert(false),
        };
        match self.remembered(id).await {
            Some(reports) => {
                let sender = self.clone();
                self.senders.spawn(async move { sender.serve(id, reports).await });
            }
            None => {
                self.active().remove(&id);
            }
        }
    }

    /// Sends the reports of a command, then those in the journal as often as they were requested in
    /// between.
    async fn serve(&self, id: Uuid, mut reports: mpsc::Receiver<Report>) {
        loop {
            self.send_all(id, reports).await;
            if !self.is_wanted_again(id) {
                return;
            }
            match self.remembered(id).await {
                Some(remembered) => reports = remembered,
                None => {
                    self.active().remove(&id);
                    return;
                }
            }
        }
    }

    /// Whether the reports of a command are wanted once more. If not, it has no sender from now on.
    fn is_wanted_again(&self, id: Uuid) -> bool {
        let mut active = self.active();
        let wanted = active.insert(id, false).unwrap_or_default();
        if !wanted {
            active.remove(&id);
        }
        wanted
    }

    /// The end of a command from memory, as its one report.
    async fn remembered(&self, id: Uuid) -> Option<mpsc::Receiver<Report>> {
        let fin = serde_json::from_slice(&self.journal.fin(id).await?).ok()?;
        let (queue, reports) = mpsc::channel(1);
        let (body, ticket) = self.pending_fins.enter(fin);
        queue.try_send(Report::Fin(body, ticket, Written::already())).ok()?;
        Some(reports)
    }

    /// The commands that have a sender, and whether their remembered reports are wanted once more.
    fn active(&self) -> MutexGuard<'_, HashMap<Uuid, bool>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all reports are sent or given up. For the time after the last
    /// [`begin`](Self::begin).
    pub async fn finished(&self) {
        self.senders.close();
        self.senders.wait().await;
    }

    /// How many commands have reports that are not sent yet.
    pub fn unsent(&self) -> usize {
        self.senders.len()
    }

    /// The one sender of a command.
    async fn send_all(&self, id: Uuid, mut reports: mpsc::Receiver<Report>) {
        let path = |report| format!("/api/events/commands/{id}/{report}/");
        // When the service was found away.
        let mut away = None;
        if let Delivery::GivenUp(_) = self.deliver(&path("ack"), Bytes::new(), PAUSES.len()).await {
            log::warn!("command {id}: the acknowledgement could not be sent");
            away = Some(Instant::now());
        }
        let path_of_chunks = path("chunk");
        while let Some(report) = reports.recv().await {
            match report {
                Report::Chunk(_) if away.is_some_and(|at: Instant| at.elapsed() < AWAY_PAUSE) => {}
                Report::Chunk(chunk) => {
                    let retries = if away.is_some() { 0 } else { PAUSES.len() };
                    let sent = self.deliver(&path_of_chunks, json(&chunk), retries).await;
                    let is_away = matches!(sent, Delivery::GivenUp(_));
                    if is_away && away.is_none() {
                        log::warn!(
                            "command {id}: output could not be sent, and more may be lost until the service is back"
                        );
                    }
                    away = is_away.then(Instant::now);
                }
                Report::Fin(body, ticket, written) => {
                    let path = path("fin");
                    let deliver = async {
                        written.wait().await;
                        self.deliver_fin(id, &path, body).await;
                    };
                    tokio::select! {
                        () = deliver => {}
                        () = ticket.evicted.cancelled() => {
                            log::error!("command {id}: its end was never sent, as too many newer ones wait");
                        }
                    }
                    return;
                }
            }
        }
    }

    /// Sends a fin, for a day if need be.
    async fn deliver_fin(&self, id: Uuid, path: &str, body: Bytes) {
        let began = Instant::now();
        match self.deliver(path, body.clone(), PAUSES.len()).await {
            Delivery::Done => return self.answered(id),
            Delivery::GivenUp(Some(403)) => {
                return log::warn!("command {id}: its end was refused: is the server deleted?");
            }
            Delivery::GivenUp(_) => {
                log::warn!(
                    "command {id}: its end could not be sent yet, and will be tried for a day"
                )
            }
        }
        while began.elapsed() < FIN_LIFE {
            self.pause(jitter(LONG_PAUSE)).await;
            match self.call(&self.late_calls, path, body.clone(), LATE_TIMEOUT).await {
                Ok(200..=299) => {
                    log::info!("command {id}: its end is sent");
                    return self.answered(id);
                }
                Ok(404) => return self.answered(id),
                Ok(403) => {
                    return log::warn!("command {id}: its end was refused: is the server deleted?");
                }
                _ => {}
            }
        }
        log::error!("command {id}: its end could not be sent for a day and is given up");
    }

    /// Nothing is left to report of a command.
    fn answered(&self, id: Uuid) {
        // Nothing waits for it: at worst a fin is sent once more after a restart, which is no harm.
        self.journal.answered(id);
    }

    /// Sends a report, with `retries` more tries.
    async fn deliver(&self, path: &str, body: Bytes, retries: usize) -> Delivery {
        let mut pauses = PAUSES.iter().take(retries);
        loop {
            let outcome = self.call(&self.first_calls, path, body.clone(), ANSWER_TIMEOUT).await;
            match &outcome {
                Ok(200..=299 | 404) => return Delivery::Done,
                Ok(status) => log::debug!("{path}: status {status}"),
                Err(why) => log::debug!("{path}: {}", why.0),
            }
            match pauses.next() {
                Some(pause) => self.pause(Duration::from_secs(*pause)).await,
                None => return Delivery::GivenUp(outcome.ok()),
            }
        }
    }

    async fn call(&self, calls: &Semaphore, path: &str, body: Bytes, timeout: Duration) -> Outcome {
        // Never closed; if it were, a call too many would be no harm.
        let _call = calls.acquire().await;
        self.transport.post(path, body, timeout).await
    }

    /// Waits before the next try. The wait ends when the agent begins to exit, and is short after
    /// that.
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

/// `time`, up to a tenth less or more, so that many agents do not call at once.
pub fn jitter(time: Duration) -> Duration {
    time.mul_f64(0.9 + 0.2 * fastrand::f64())
}

fn json(report: &impl serde::Serialize) -> Bytes {
    // Texts and numbers: there is nothing in them that JSON cannot say.
    serde_json::to_vec(report).unwrap_or_default().into()
}

/// The fins that wait to be sent.
#[derive(Clone, Default)]
struct PendingFins(Arc<Mutex<PendingState>>);

#[derive(Default)]
struct PendingState {
    next: u64,
    bytes: usize,
    /// By age: the size of each, and how it learns that it must give way.
    fins: BTreeMap<u64, (usize, CancellationToken)>,
}

/// A fin's place among those that wait; given back when dropped.
pub struct Ticket {
    number: u64,
    evicted: CancellationToken,
    pending_fins: PendingFins,
}

impl PendingFins {
    fn lock(&self) -> MutexGuard<'_, PendingState> {
        // Nothing in here can panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for a fin, and makes it shorter if there is little.
    fn enter(&self, mut fin: Fin) -> (Bytes, Ticket) {
        let mut body = json(&fin);
        let mut waiting = self.lock();
        if waiting.bytes + body.len() > MAX_FIN_BYTES {
            shorten_result(&mut fin);
            body = json(&fin);
        }
        let (number, evicted) = (waiting.next, CancellationToken::new());
        waiting.next += 1;
        waiting.bytes += body.len();
        waiting.fins.insert(number, (body.len(), evicted.clone()));
        if waiting.fins.len() > MAX_FINS
            && let Some((_, (size, oldest))) = waiting.fins.pop_first()
        {
            waiting.bytes -= size;
            oldest.cancel();
        }
        (body, Ticket { number, evicted, pending_fins: self.clone() })
    }
}

impl Drop for Ticket {
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
    use crate::connection::client::NoAnswer;
    use crate::journal::shorten::SHORT_RESULT;

    /// Responds with `answers`, then with `at_last`, and records the calls with their times.
    #[derive(Clone)]
    struct Scripted {
        began: Instant,
        state: Arc<Mutex<State>>,
    }

    struct State {
        answers: VecDeque<Outcome>,
        at_last: Outcome,
        /// At which second, what, and its body.
        calls: Vec<(u64, String, serde_json::Value)>,
    }

    impl Scripted {
        fn new(answers: &[u16], at_last: u16) -> Self {
            let outcome =
                |status: u16| if status == 0 { Err(NoAnswer("away".into())) } else { Ok(status) };
            let answers = answers.iter().map(|status| outcome(*status)).collect();
            let state = State { answers, at_last: outcome(at_last), calls: Vec::new() };
            Self { began: Instant::now(), state: Arc::new(Mutex::new(state)) }
        }

        fn answer(&self, status: u16) {
            self.state.lock().unwrap().at_last = Ok(status);
        }

        /// Each call: at which second, what of, and its `seq` or `exit_code`.
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
            state.answers.pop_front().unwrap_or_else(|| state.at_last.clone())
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
    async fn reports_go_in_order() {
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
    async fn a_failed_report_is_tried_again_and_those_behind_it_wait() {
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
    async fn an_unknown_command_is_not_tried_again() {
        let service = Scripted::new(&[], 404);
        let reports = reports(&service);
        one_command(&reports, 2).await;
        reports.finished().await;
        assert_eq!(service.whats(), ["ack", "chunk", "chunk", "fin"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_fins_of_a_deleted_server_are_given_up() {
        let service = Scripted::new(&[204, 204], 403);
        let reports = reports(&service);
        one_command(&reports, 1).await;
        reports.finished().await;
        assert_eq!(service.calls().last(), Some(&(31, "fin".to_owned(), 7)));
        assert_eq!(service.calls().len(), 2 + 6);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fin_waits_for_hours_and_chunks_do_not() {
        let service = Scripted::new(&[], 0);
        let reports = reports(&service);
        one_command(&reports, 1_000).await;
        // All that stood behind the ack is dropped with a try now and then, and the fin is not much
        // later.
        assert!(service.began.elapsed() < Duration::from_secs(70), "{:?}", service.began.elapsed());
        sleep(Duration::from_secs(5 * 60 * 60)).await;
        assert_eq!(reports.unsent(), 1);
        service.answer(204);
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
    async fn chunks_are_sent_again_when_the_service_is_back() {
        let service = Scripted::new(&[204], 503);
        let reports = reports(&service);
        let reporter = reports.begin(Uuid::nil(), Written::already());
        let _ = reporter.queue().send(chunk(0)).await;
        sleep(Duration::from_secs(40)).await;
        service.answer(204);
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
    async fn a_queue_that_is_full_makes_its_command_wait() {
        let service = Scripted::new(&[], 0);
        let reporter = reports(&service).begin(Uuid::nil(), Written::already());
        for seq in 0..QUEUE {
            reporter.queue().try_send(chunk(seq as u32)).ok().unwrap();
        }
        assert!(reporter.queue().try_send(chunk(99)).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_fins_lose_the_oldest() {
        let service = Scripted::new(&[], 0);
        let reports = reports(&service);
        for number in 0..MAX_FINS + 5 {
            reports.begin(Uuid::nil(), Written::already()).fin(fin(number as i64, "")).await;
        }
        sleep(Duration::from_secs(600)).await;
        assert_eq!(
            (reports.unsent(), reports.pending_fins.lock().fins.len()),
            (MAX_FINS, MAX_FINS)
        );
        let before = service.calls().len();
        service.answer(204);
        reports.finished().await;
        let mut sent: Vec<_> =
            service.calls().split_off(before).into_iter().map(|(_, _, number)| number).collect();
        sent.sort_unstable();
        assert_eq!(sent, (5..MAX_FINS as i64 + 5).collect::<Vec<_>>());
    }

    #[test]
    fn waiting_fins_are_bounded_together() {
        let pending_fins = PendingFins::default();
        let large = "\0".repeat(256 * 1024);
        let entered: Vec<_> =
            (0..200).map(|number| pending_fins.enter(fin(number, &large))).collect();
        assert!(pending_fins.lock().bytes < MAX_FIN_BYTES + 200 * 8 * SHORT_RESULT);
        drop(entered);
        assert_eq!(pending_fins.lock().bytes, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn flushing_tries_at_once() {
        let service = Scripted::new(&[204], 503);
        let flushing = CancellationToken::new();
        let reports = Reports::new(service.clone(), JournalWriter::default(), flushing.clone());
        one_command(&reports, 0).await;
        sleep(Duration::from_secs(600)).await;
        service.answer(204);
        flushing.cancel();
        let began = Instant::now();
        reports.finished().await;
        assert!(began.elapsed() < Duration::from_secs(1));
    }
}
