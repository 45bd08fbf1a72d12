//! Running commands: the queue, the processes and their ends (agent-protocol 3, 4 and 6).
//!
//! A command is a process in a session of its own, with `/dev/null` as its input and one pipe for both of its outputs.
//! It ends when that process has exited and its pipe is drained. What it left in the background may hold the pipe: it
//! does not hold the command. After the exit the pipe is read to its end, or until nothing came for [`QUIET`], or until
//! it is empty after [`LINGER`]; then the pipe is closed, and a process that still writes into it gets SIGPIPE.
//!
//! A command that is killed, or whose time is over, ends when no process of its group runs any more, those in the
//! background included.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::CString;
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream as Socket;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farhand_domain::wire::{Chunk, FEATURE_KILL, FEATURE_REPLAY, Fin, Order};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::account::{self, Account, Own};
use crate::group::{Group, Groups};
use crate::internal;
use crate::journal::Stage;
use crate::link::Commands;
use crate::memory::{Memory, Noted};
use crate::output::{Chunker, Decoder, Kept};
use crate::process::Identity;
use crate::program::Program;
use crate::reports::{Report, Reporter, Reports, Transport};

/// How many commands wait while as many run as may.
pub const QUEUE: usize = 200;
/// How many ids of commands are remembered, so that one which comes again is not run again.
const REMEMBERED: usize = 1_000;
/// How long output waits for more before it is sent.
const FLUSH: Duration = Duration::from_millis(100);
/// How long a pipe is read on without anything new after the process has exited.
const QUIET: Duration = Duration::from_secs(2);
/// How long a pipe is read on at most after the process has exited.
const LINGER: Duration = Duration::from_secs(10);
/// How much is read in any case after the process has exited, in bytes: more than fits into a pipe, so that what the
/// process itself wrote is read, whatever others write.
const LEFT_OVER: u64 = 1024 * 1024;
/// How long the service has for what a command wrote before it was killed; what then finds no room is dropped.
const SETTLING: Duration = Duration::from_secs(5);
/// How many bytes of a pipe are read at once: what fits into it.
const READ: usize = 64 * 1024;
/// Where programs are looked for.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The exit code of a command that the agent would not run, or that could not be executed; as of a shell.
const REFUSED: i64 = 126;
/// The exit code of a command that is not there; as of a shell.
const NOT_FOUND: i64 = 127;
/// The exit code of a command whose time was over; as of `timeout`.
const TIMED_OUT: i64 = 124;
/// The exit codes of a command that was ended by TERM and by KILL; as of a shell.
const TERMINATED: (i64, i64) = (143, 137);

/// When the agent ends: first no more commands come, then it begins no more of those that wait, later those that still
/// run are stopped.
#[derive(Clone, Default)]
pub struct Ending {
    /// Cancelled when a built-in asked for a restart, and its end is noted.
    pub restarting: CancellationToken,
    /// Cancelled when the agent takes no more commands from the service.
    pub leaving: CancellationToken,
    /// Cancelled when those that wait are not run any more.
    pub draining: CancellationToken,
    /// Cancelled when those that run are stopped.
    pub stopping: CancellationToken,
}

/// The commands that came last.
#[derive(Default)]
struct Known {
    ids: HashSet<Uuid>,
    in_order: VecDeque<Uuid>,
}

impl Known {
    /// Notes a command; false where it came before.
    fn is_new(&mut self, id: Uuid) -> bool {
        if !self.ids.insert(id) {
            return false;
        }
        self.in_order.push_back(id);
        if self.in_order.len() > REMEMBERED
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        true
    }
}

/// A command on its way.
struct Job {
    order: Order,
    reporter: Reporter,
    /// When it may run.
    noted: Noted,
    killed: CancellationToken,
}

/// The commands that did not end yet, and those that are remembered.
#[derive(Default)]
struct Jobs {
    known: Known,
    waiting: VecDeque<Job>,
    /// How those that run are killed.
    running: HashMap<Uuid, CancellationToken>,
    /// Whether no more are taken.
    is_closed: bool,
}

/// The jobs, and word of new ones and of those that are over.
#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    more: Notify,
    less: Notify,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        // Nothing in here can panic half-way.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a job. From then on it runs.
    async fn next(&self) -> Job {
        loop {
            if let Some(job) = self.first() {
                return job;
            }
            self.more.notified().await;
        }
    }

    fn first(&self) -> Option<Job> {
        let mut jobs = self.lock();
        let job = jobs.waiting.pop_front()?;
        jobs.running.insert(job.order.id, job.killed.clone());
        Some(job)
    }

    /// Notes that a job is over.
    fn done(&self, id: Uuid) {
        self.lock().running.remove(&id);
        self.less.notify_waiters();
    }

    /// Waits until no job waits or runs.
    async fn idle(&self) {
        loop {
            // Listened to before the look, so that nothing is missed.
            let less = self.less.notified();
            {
                let jobs = self.lock();
                if jobs.waiting.is_empty() && jobs.running.is_empty() {
                    return;
                }
            }
            less.await;
        }
    }

    /// Takes no more jobs; gives those that wait.
    fn close(&self) -> VecDeque<Job> {
        let mut jobs = self.lock();
        jobs.is_closed = true;
        std::mem::take(&mut jobs.waiting)
    }
}

/// Takes commands and runs them.
pub struct Runner<T> {
    queue: Arc<Queue>,
    reports: Reports<T>,
    groups: Groups,
    tasks: TaskTracker,
    program: Arc<Program>,
    restarting: CancellationToken,
}

impl<T: Transport> Runner<T> {
    /// A runner of at most `max_running` commands at once, in a process of `program`.
    pub fn new(
        max_running: usize,
        own: Own,
        reports: Reports<T>,
        groups: Groups,
        ending: Ending,
        program: Program,
    ) -> Self {
        let queue = Arc::new(Queue::default());
        let tasks = TaskTracker::new();
        let runner = Self {
            queue: queue.clone(),
            reports,
            groups: groups.clone(),
            tasks: tasks.clone(),
            program: Arc::new(program),
            restarting: ending.restarting.clone(),
        };
        let memory = runner.reports.memory().clone();
        let running = tasks.clone();
        tasks.spawn(async move {
            let free = Arc::new(Semaphore::new(max_running));
            loop {
                // First a free place, then a command: so the queue alone tells how many wait, and in which order.
                let place = tokio::select! {
                    biased;
                    () = ending.draining.cancelled() => break,
                    place = free.clone().acquire_owned() => place,
                };
                let Job { order, reporter, noted, killed } = tokio::select! {
                    biased;
                    () = ending.draining.cancelled() => break,
                    job = queue.next() => job,
                };
                let (queue, groups, memory) = (queue.clone(), groups.clone(), memory.clone());
                let stops = Stops { stopping: ending.stopping.clone(), killed };
                running.spawn(async move {
                    noted.wait().await;
                    let fin = execute(&order, own, &groups, &stops, &memory, reporter.queue()).await;
                    // The place is for the process, and not for its reports.
                    drop(place);
                    queue.done(order.id);
                    end(reporter, &order, fin).await;
                });
            }
            for job in queue.close() {
                end(job.reporter, &job.order, stopped_before()).await;
            }
        });
        runner
    }

    /// Goes on with what an agent before this one left: sends the ends that the service did not take, and ends what was
    /// waiting or running then. For the time before the first [`take`](Self::take).
    pub fn recover(&self, commands: Vec<(Uuid, Stage)>) {
        let mut jobs = self.queue.lock();
        let mut unanswered = Vec::new();
        for (id, stage) in commands {
            jobs.known.is_new(id);
            match stage {
                Stage::Ended { is_answered: true } => {}
                Stage::Ended { is_answered: false } => unanswered.push(id),
                Stage::Taken => {
                    let reporter = self.reports.begin(id, Noted::already());
                    log::warn!("command {id}: the agent died before it ran");
                    let fin = failure(TERMINATED.1, "The agent died before the command ran. It was not run.");
                    self.tasks.spawn(reporter.fin(fin));
                }
                Stage::Started(process) => {
                    let (reporter, groups) = (self.reports.begin(id, Noted::already()), self.groups.clone());
                    self.tasks.spawn(async move {
                        let was_there = end_leftover(process, &groups).await;
                        log::warn!("command {id}: the agent died while it ran");
                        reporter.fin(lost(was_there)).await;
                    });
                }
            }
        }
        self.report_again(unanswered);
    }

    /// Sends the reports of commands that ended, one after the other.
    fn report_again(&self, ids: Vec<Uuid>) {
        let reports = self.reports.clone();
        self.tasks.spawn(async move {
            for id in ids {
                reports.again(id).await;
            }
        });
    }

    /// Does a built-in.
    fn run_built_in(&self, order: Order, reporter: Reporter, noted: Noted) {
        let (program, restarting) = (self.program.clone(), self.restarting.clone());
        let memory = self.reports.memory().clone();
        self.tasks.spawn(async move {
            noted.wait().await;
            let done = internal::run(&order.line, &program, memory.is_sound()).await;
            end(reporter, &order, done.fin).await;
            if done.restarts {
                restarting.cancel();
            }
        });
    }

    /// Waits until no command waits or runs, at this moment. Their reports may still be on their way.
    pub async fn idle(&self) {
        self.queue.idle().await;
    }

    /// Waits until no command runs or waits. For the time after draining began.
    pub async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl<T: Transport> Commands for Runner<T> {
    /// Takes a command: acknowledges it and runs it, now or when others have ended. One that finds the queue full, or
    /// the agent about to exit, fails. One that came before is not run again: where it has ended, its reports are sent
    /// once more.
    fn take(&self, order: Order) {
        let id = order.id;
        let mut jobs = self.queue.lock();
        if !jobs.known.is_new(id) {
            drop(jobs);
            log::warn!("command {id}: it came before, and is not run again");
            return self.report_again(vec![id]);
        }
        let noted = self.reports.memory().taken(id);
        let reporter = self.reports.begin(id, noted.clone());
        let refusal = if jobs.is_closed {
            stopped_before()
        } else if order.shell == internal::SHELL {
            drop(jobs);
            return self.run_built_in(order, reporter, noted);
        } else if jobs.waiting.len() >= QUEUE {
            failure(1, format!("The agent is busy: {QUEUE} commands wait already."))
        } else {
            jobs.waiting.push_back(Job { order, reporter, noted, killed: CancellationToken::new() });
            self.queue.more.notify_one();
            return;
        };
        drop(jobs);
        self.tasks.spawn(async move { end(reporter, &order, refusal).await });
    }

    /// Kills a command: its whole process group, or before it runs. For one that ended, its reports are sent once more;
    /// one that is not known is none.
    fn kill(&self, id: Uuid) {
        let mut jobs = self.queue.lock();
        if let Some(place) = jobs.waiting.iter().position(|job| job.order.id == id)
            && let Some(job) = jobs.waiting.remove(place)
        {
            drop(jobs);
            self.queue.less.notify_waiters();
            log::info!("command {id}: killed before it ran");
            let fin = failure(TERMINATED.0, "The command was killed before it ran.");
            self.tasks.spawn(async move { end(job.reporter, &job.order, fin).await });
        } else if let Some(killed) = jobs.running.get(&id) {
            if !killed.is_cancelled() {
                log::info!("command {id}: to be killed");
            }
            killed.cancel();
        } else if jobs.known.ids.contains(&id) {
            log::info!("command {id}: to be killed, but it has ended");
            self.report_again(vec![id]);
        } else {
            log::warn!("command {id}: to be killed, but it is not known");
        }
    }

    fn features(&self) -> String {
        if self.reports.memory().is_sound() {
            format!("{FEATURE_KILL}, {FEATURE_REPLAY}")
        } else {
            FEATURE_KILL.to_owned()
        }
    }
}

/// Ends what is left of a command that an agent before this one ran; false where that is not there any more, or cannot be
/// told from others.
async fn end_leftover(process: Option<Identity>, groups: &Groups) -> bool {
    let Some(process) = process.filter(Identity::is_there) else {
        return false;
    };
    groups.enter(Pid::from_raw(process.pid)).end().await;
    true
}

async fn end(reporter: Reporter, order: &Order, fin: Fin) {
    let (code, seconds) = (fin.exit_code.unwrap_or_default(), fin.elapsed_time.unwrap_or_default());
    log::info!("command {}: as {:?}, exit code {code} after {seconds:.1} s", reporter.id(), order.user);
    reporter.fin(fin).await;
}

/// The end of a command that was never run.
fn failure(exit_code: i64, result: impl Into<String>) -> Fin {
    Fin {
        success: false,
        result: Some(result.into()),
        elapsed_time: Some(0.0),
        exit_code: Some(exit_code),
        chunks: Some(0),
        output_bytes: None,
    }
}

fn stopped_before() -> Fin {
    failure(TERMINATED.0, "The agent was stopped before the command ran.")
}

/// The end of a command that ran when the agent died. How long it ran, and what of its output was sent, nobody knows.
fn lost(was_there: bool) -> Fin {
    let rest = if was_there { "What was left of it was killed." } else { "How it ended is not known." };
    let result = Some(format!("The agent died while the command ran. {rest}"));
    Fin { success: false, result, elapsed_time: None, exit_code: Some(TERMINATED.1), chunks: None, output_bytes: None }
}

/// What ends a command before it ends by itself.
pub struct Stops {
    /// The agent's end.
    pub stopping: CancellationToken,
    /// A request.
    pub killed: CancellationToken,
}

/// Why a command was ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    Stopping,
    Killed,
    /// After as many seconds.
    TimedOut(u64),
}

impl Stops {
    /// Waits for the first of them, and of the seconds that a command has.
    async fn first(&self, limit: Option<u64>) -> Why {
        let timed_out = async {
            match limit {
                Some(seconds) => {
                    sleep(Duration::from_secs(seconds)).await;
                    seconds
                }
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.killed.cancelled() => Why::Killed,
            () = self.stopping.cancelled() => Why::Stopping,
            seconds = timed_out => Why::TimedOut(seconds),
        }
    }
}

/// Runs a command and tells its end. Chunks of its output go to `chunks` meanwhile. When one of `stops` comes, or the
/// order's timeout is over, its process group is ended: TERM, and KILL after [`crate::group::GRACE`].
pub async fn execute(
    order: &Order,
    own: Own,
    groups: &Groups,
    stops: &Stops,
    memory: &Memory,
    chunks: &mpsc::Sender<Report>,
) -> Fin {
    if stops.killed.is_cancelled() {
        return failure(TERMINATED.0, "The command was killed before it ran.");
    }
    if stops.stopping.is_cancelled() {
        return stopped_before();
    }
    let limit = match order.timeout.map(u64::try_from).transpose() {
        Ok(limit) if limit != Some(0) => limit,
        _ => return failure(REFUSED, "The timeout is not a number of seconds above 0."),
    };
    let began = Instant::now();
    let (mut child, output) = match start(order, own, memory).await {
        Ok(started) => started,
        Err(refusal) => return refusal,
    };
    let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) else {
        return failure(REFUSED, "The command could not be started.");
    };
    // It called setsid, so its process group has its number.
    let group = groups.enter(Pid::from_raw(id));
    let reading = Reading {
        exited: CancellationToken::new(),
        hasty: stops.stopping.child_token(),
        dropping: stops.stopping.child_token(),
        over: CancellationToken::new(),
    };
    let supervise = async {
        let why = supervise(&group, stops, limit, &reading).await;
        // Only now, as its number stands for the group.
        (child.wait().await, why)
    };
    let (ended, (mut kept, count)) = tokio::join!(supervise, pump(output, chunks, &reading));
    let (exit_code, note) = match ended {
        (_, Some((why, is_killed))) => why.tell(is_killed),
        (Ok(status), None) => (exit_code(status), None),
        (Err(error), None) => (REFUSED, Some(format!("The exit code is not known: {error}."))),
    };
    let output_bytes = kept.total() as u64;
    if let Some(note) = note {
        kept.push(&format!("\n{note}\n"));
    }
    Fin {
        success: exit_code == 0,
        result: Some(kept.finish()),
        elapsed_time: Some(began.elapsed().as_secs_f64()),
        exit_code: Some(exit_code),
        chunks: Some(count),
        output_bytes: Some(output_bytes),
    }
}

/// What a shell would call the end of a process.
fn exit_code(status: ExitStatus) -> i64 {
    let signal = || status.signal().map_or(1, |signal| 128 + i64::from(signal));
    status.code().map_or_else(signal, i64::from)
}

impl Why {
    /// The exit code of a command that was ended for this, and a line for its result. `is_killed` where it took KILL.
    fn tell(self, is_killed: bool) -> (i64, Option<String>) {
        let by_signal = if is_killed { TERMINATED.1 } else { TERMINATED.0 };
        match self {
            Self::Stopping => (by_signal, Some("The agent was stopped.".to_owned())),
            Self::Killed => (by_signal, Some("The command was killed.".to_owned())),
            Self::TimedOut(seconds) => {
                (TIMED_OUT, Some(format!("The command was killed: its timeout of {seconds} s was over.")))
            }
        }
    }
}

/// How the reading of a command's output goes on.
struct Reading {
    /// Cancelled when its process has exited.
    exited: CancellationToken,
    /// Cancelled when what others may still write is not waited for.
    hasty: CancellationToken,
    /// Cancelled when output that finds no room is dropped rather than waited with.
    dropping: CancellationToken,
    /// Cancelled when all is read.
    over: CancellationToken,
}

/// Waits until the leader of a group has exited and the output is read; or ends the group when there is a reason to, and
/// tells it, with whether it took KILL.
async fn supervise(group: &Group, stops: &Stops, limit: Option<u64>, reading: &Reading) -> Option<(Why, bool)> {
    let why = tokio::select! {
        biased;
        () = group.leader_exited() => None,
        why = stops.first(limit) => Some(why),
    };
    let why = match why {
        Some(why) => why,
        None => {
            reading.exited.cancel();
            // What is in the background is not waited for, but as long as it is read it is part of the command.
            tokio::select! {
                biased;
                () = reading.over.cancelled() => return None,
                () = stops.killed.cancelled() => {}
            }
            if !group.runs().await {
                reading.hasty.cancel();
                return None;
            }
            Why::Killed
        }
    };
    let is_killed = group.end().await;
    reading.exited.cancel();
    reading.hasty.cancel();
    tokio::select! {
        () = reading.over.cancelled() => {}
        () = sleep(SETTLING) => reading.dropping.cancel(),
    }
    Some((why, is_killed))
}

/// Reads the output to its end, sends it in chunks, and tells what is kept of it and how many chunks there were.
async fn pump(mut output: pipe::Receiver, chunks: &mpsc::Sender<Report>, reading: &Reading) -> (Kept, u32) {
    let mut bytes = vec![0; READ];
    let mut text = String::new();
    let (mut decoder, mut chunker, mut kept) = (Decoder::default(), Chunker::default(), Kept::default());
    let mut sending = Sending { chunks, dropping: &reading.dropping, count: 0, is_over: false };
    // When what waits is sent.
    let mut flush_at = Instant::now();
    // Since the process has exited: until when the pipe is read on, and how much came.
    let mut until: Option<Instant> = None;
    let mut quiet_at = Instant::now();
    let mut left_over: u64 = 0;
    loop {
        let is_flush;
        tokio::select! {
            // What is there is read first, so that time alone never cuts it off.
            biased;
            read = output.read(&mut bytes) => {
                // An error on a pipe cannot be helped: it is its end.
                let Ok(count @ 1..) = read else { break };
                let now = Instant::now();
                if !chunker.is_waiting() {
                    flush_at = now + FLUSH;
                }
                decoder.push(&bytes[..count], &mut text);
                chunker.push(&text);
                kept.push(&text);
                text.clear();
                is_flush = now >= flush_at;
                if let Some(until) = until {
                    left_over += count as u64;
                    quiet_at = (now + QUIET).min(until.max(now));
                    if now > until && left_over > LEFT_OVER {
                        break;
                    }
                } else if reading.exited.is_cancelled() {
                    until = Some(now + LINGER);
                    quiet_at = now + QUIET;
                }
            }
            () = reading.exited.cancelled(), if until.is_none() => {
                let now = Instant::now();
                (until, quiet_at) = (Some(now + LINGER), now + QUIET);
                continue;
            }
            () = sleep_until(quiet_at), if until.is_some() => break,
            () = reading.hasty.cancelled(), if until.is_some_and(|until| until > Instant::now()) => {
                // There is no time to wait for what others may still write.
                let now = Instant::now();
                (until, quiet_at) = (Some(now), now + FLUSH);
                continue;
            }
            () = sleep_until(flush_at), if chunker.is_waiting() => is_flush = true,
        }
        while let Some(content) = chunker.next(is_flush) {
            sending.send(content).await;
        }
    }
    decoder.finish(&mut text);
    chunker.push(&text);
    kept.push(&text);
    while let Some(content) = chunker.next(true) {
        sending.send(content).await;
    }
    reading.over.cancel();
    (kept, sending.count)
}

/// Where the chunks of a command go.
struct Sending<'a> {
    chunks: &'a mpsc::Sender<Report>,
    dropping: &'a CancellationToken,
    /// How many there were.
    count: u32,
    is_over: bool,
}

impl Sending<'_> {
    /// Queues a chunk, when there is room for it. Once output is dropped rather than waited with, none follows the first
    /// that found no room: an end is better than a gap.
    async fn send(&mut self, content: String) {
        if self.is_over {
            return;
        }
        let chunk = Report::Chunk(Chunk { seq: self.count, content });
        tokio::select! {
            biased;
            room = self.chunks.reserve() => if let Ok(room) = room {
                room.send(chunk);
                self.count += 1;
            },
            () = self.dropping.cancelled() => self.is_over = true,
        }
    }
}

/// Starts the process of a command. Before anything of it runs, `memory` knows which process it is.
///
/// # Errors
/// The end of a command that cannot be run.
async fn start(order: &Order, own: Own, memory: &Memory) -> Result<(Child, pipe::Receiver), Fin> {
    let failed = || failure(REFUSED, "The command could not be started.");
    let (door, gate) = Gate::new(memory).map_err(|_| failed())?.unzip();
    let for_start = order.clone();
    // Account databases and home directories may be far away, and must not make everything else wait.
    let mut started = tokio::task::spawn_blocking(move || prepare(&for_start, own, door));
    let opened = async {
        if let Some(gate) = gate {
            gate.open(order.id, memory).await;
        }
        pending().await
    };
    tokio::select! {
        biased;
        started = &mut started => started.unwrap_or_else(|_| Err(failed())),
        () = opened => Err(failed()),
    }
}

/// What a new process waits at, between fork and exec, until it is noted. It dies there when the agent dies.
struct Gate(UnixStream);

impl Gate {
    /// A gate and the process's side of it, where there is a memory.
    fn new(memory: &Memory) -> io::Result<Option<(OwnedFd, Self)>> {
        if !memory.is_there() {
            return Ok(None);
        }
        let (near, far) = Socket::pair()?;
        near.set_nonblocking(true)?;
        Ok(Some((far.into(), Self(UnixStream::from_std(near)?))))
    }

    /// Waits for the process, notes it, and lets it go on.
    async fn open(mut self, id: Uuid, memory: &Memory) {
        let mut number = [0; size_of::<i32>()];
        if self.0.read_exact(&mut number).await.is_err() {
            // It ended before it came here.
            return;
        }
        memory.started(id, Identity::of(i32::from_ne_bytes(number))).wait().await;
        // Where nobody is there any more, nobody has to go on.
        let _ = self.0.write_all(&[1]).await;
        // Kept open until the process is through.
        pending().await
    }
}

/// The process's side of [`Gate::open`]. Makes system calls only.
fn pass(gate: &OwnedFd, agent: Pid) -> nix::Result<()> {
    use nix::sys::prctl::set_pdeathsig;
    set_pdeathsig(Signal::SIGKILL)?;
    // The agent may have died before it was asked for.
    if nix::unistd::getppid() != agent {
        return Err(Errno::ESRCH);
    }
    nix::unistd::write(gate.as_fd(), &nix::unistd::getpid().as_raw().to_ne_bytes())?;
    let mut go = [0];
    loop {
        match nix::unistd::read(gate.as_fd(), &mut go) {
            Err(Errno::EINTR) => {}
            Ok(1) => return set_pdeathsig(None),
            Ok(_) => return Err(Errno::ESRCH),
            Err(error) => return Err(error),
        }
    }
}

/// Starts the process of a command. It waits at `gate`, if there is one. Blocks.
///
/// # Errors
/// The end of a command that cannot be run.
fn prepare(order: &Order, own: Own, gate: Option<OwnedFd>) -> Result<(Child, pipe::Receiver), Fin> {
    let mut command = match order.shell.as_str() {
        "system" if order.allow_sh => {
            let mut command = Command::new("/bin/sh");
            command.arg("-c").arg(&order.line);
            command
        }
        "system" => {
            let mut words = order.line.split_ascii_whitespace();
            let program = words.next().ok_or_else(|| failure(NOT_FOUND, "The line is empty."))?;
            let mut command = Command::new(program);
            command.args(words);
            command
        }
        _ => return Err(failure(REFUSED, "This agent has no such shell.")),
    };
    let account = account::resolve(&order.user, &order.group, own).map_err(|why| failure(REFUSED, why))?;
    set_environment(&mut command, &account, order).map_err(|why| failure(REFUSED, why))?;
    spawn(command, account, gate).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            let program =
                if order.allow_sh { "/bin/sh" } else { order.line.split_ascii_whitespace().next().unwrap_or("") };
            failure(NOT_FOUND, format!("{program}: not found"))
        }
        _ => failure(REFUSED, format!("The command could not be started: {error}.")),
    })
}

/// Gives a command the environment of a fresh login, and what the order adds.
fn set_environment(command: &mut Command, account: &Account, order: &Order) -> Result<(), String> {
    let is_set = !account.shell.as_os_str().is_empty();
    command
        .env_clear()
        .env("HOME", &account.home)
        .env("USER", &account.name)
        .env("LOGNAME", &account.name)
        .env("SHELL", if is_set { account.shell.as_os_str() } else { "/bin/sh".as_ref() })
        .env("PATH", PATH)
        .env("LANG", "C.UTF-8");
    for (name, value) in order.env.iter().flatten() {
        let Value::String(value) = value else {
            return Err(format!("The environment variable {name} is not a text."));
        };
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err("The environment has a name or a value that cannot be one.".to_owned());
        }
        command.env(name, value);
    }
    Ok(())
}

/// Starts a process in a session of its own, as `account` and in its home, with both outputs going into one pipe.
fn spawn(mut command: Command, account: Account, gate: Option<OwnedFd>) -> io::Result<(Child, pipe::Receiver)> {
    // One pipe, as two would lose the order of what comes out of them.
    let (reader, writer) = io::pipe()?;
    let output = pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let home = CString::new(account.home.as_os_str().as_bytes()).unwrap_or_default();
    let agent = nix::unistd::getpid();
    let become_account = move || {
        nix::unistd::setsid()?;
        if let Some(switch) = &account.switch {
            // In this order: without the user's rights there would be no right to change the groups.
            nix::unistd::setgroups(&switch.groups)?;
            nix::unistd::setresgid(switch.gid, switch.gid, switch.gid)?;
            nix::unistd::setresuid(switch.uid, switch.uid, switch.uid)?;
        }
        // What the agent itself inherited open is not for commands. Kernels before 5.11 cannot say it this way, and
        // what the agent opened itself is never inherited.
        // SAFETY: a system call on numbers.
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        // As the account, which may be the only one that can enter it.
        if nix::unistd::chdir(home.as_c_str()).is_err() {
            nix::unistd::chdir(c"/")?;
        }
        // Last of all, as becoming another user forgets what is to happen when the agent dies.
        if let Some(gate) = &gate {
            pass(gate, agent)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec this makes system calls only, and allocates nothing: all it needs was looked up
    // before, and an errno becomes an error without allocation.
    unsafe { command.pre_exec(become_account) };
    // With `command` the agent's own ends of the pipe's writing side are dropped, so it ends with the last process.
    Ok((command.spawn()?, output))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use nix::unistd::{User, geteuid};
    use serde_json::json;

    use super::*;
    use crate::client::Outcome;

    /// Far more than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn a_bounded_number_of_ids_is_known() {
        let id = |number: usize| Uuid::from_u128(number as u128);
        let mut known = Known::default();
        assert!((0..REMEMBERED).all(|number| known.is_new(id(number))));
        assert!((0..REMEMBERED).all(|number| !known.is_new(id(number))));
        assert!(known.is_new(id(REMEMBERED)) && known.is_new(id(0)), "the oldest gives way");
        assert_eq!((known.ids.len(), known.in_order.len()), (REMEMBERED, REMEMBERED));
    }

    fn own_name() -> String {
        User::from_uid(geteuid()).unwrap().unwrap().name
    }

    fn order(line: &str) -> Order {
        Order {
            id: Uuid::nil(),
            shell: "system".into(),
            line: line.into(),
            user: own_name(),
            group: String::new(),
            env: None,
            allow_sh: true,
            data: None,
            timeout: None,
        }
    }

    /// Runs an order; its end and its chunks.
    async fn run(order: &Order) -> (Fin, Vec<String>) {
        run_until(order, &never()).await
    }

    fn never() -> Stops {
        Stops { stopping: CancellationToken::new(), killed: CancellationToken::new() }
    }

    async fn run_until(order: &Order, stops: &Stops) -> (Fin, Vec<String>) {
        let (queue, mut reports) = mpsc::channel(2);
        let chunks = async {
            let mut chunks = Vec::new();
            while let Some(Report::Chunk(chunk)) = reports.recv().await {
                assert_eq!(chunk.seq as usize, chunks.len());
                chunks.push(chunk.content);
            }
            chunks
        };
        let execute = async {
            let queue = queue;
            execute(order, Own::current(), &Groups::default(), stops, &Memory::default(), &queue).await
        };
        tokio::time::timeout(PATIENCE, async { tokio::join!(execute, chunks) }).await.expect("it does not end")
    }

    /// The exit code and the result of a line.
    async fn result(line: &str) -> (i64, String) {
        let (fin, chunks) = run(&order(line)).await;
        let (code, result) = (fin.exit_code.unwrap(), fin.result.unwrap());
        assert_eq!(fin.success, code == 0);
        assert_eq!(chunks.concat(), result);
        (code, result)
    }

    async fn refusal(order: &Order) -> (i64, String) {
        let (fin, chunks) = run(order).await;
        assert!(!fin.success && chunks.is_empty());
        (fin.exit_code.unwrap(), fin.result.unwrap())
    }

    async fn eventually(condition: impl Fn() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < until, "it never happened");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Whether a process runs; one that nobody has waited for yet does not.
    fn is_running(pid: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
    }

    #[tokio::test]
    async fn exit_codes_are_those_of_a_shell() {
        assert_eq!(result("exit 0").await, (0, String::new()));
        assert_eq!(result("echo x; exit 3").await, (3, "x\n".to_owned()));
        assert_eq!(result("kill -9 $$").await.0, 137);
        assert_eq!(result("kill -TERM $$").await.0, 143);
        assert_eq!(result("no-such-program-1").await.0, 127);
        assert_eq!(result("").await.0, 0);
    }

    #[tokio::test]
    async fn without_a_shell_a_line_is_words() {
        let words = |line: &str| Order { allow_sh: false, ..order(line) };
        let (fin, _) = run(&words("  echo  'a b' | $HOME ")).await;
        assert_eq!(fin.result.unwrap(), "'a b' | $HOME\n");
        assert_eq!(refusal(&words("no-such-program-1 x")).await, (127, "no-such-program-1: not found".to_owned()));
        assert_eq!(refusal(&words("/etc/passwd")).await.0, 126);
        assert_eq!(refusal(&words(" \t")).await, (127, "The line is empty.".to_owned()));
    }

    #[tokio::test]
    async fn what_cannot_be_run_is_refused() {
        assert_eq!(refusal(&Order { shell: "fish".into(), ..order("x") }).await.0, 126);
        assert_eq!(refusal(&Order { user: String::new(), ..order("id") }).await.0, 126);
        assert_eq!(refusal(&Order { user: "no-such-user".into(), ..order("id") }).await.0, 126);
        assert_eq!(refusal(&Order { group: "no-such-group".into(), ..order("id") }).await.0, 126);
        assert_eq!(refusal(&order("a\0b")).await.0, 126);
        for env in [json!({"A": 1}), json!({"": "x"}), json!({"A=B": "x"}), json!({"A": "\u{0}"})] {
            let env = env.as_object().cloned();
            assert_eq!(refusal(&Order { env, ..order("true") }).await.0, 126);
        }
    }

    #[tokio::test]
    async fn both_outputs_keep_their_order() {
        let line = "i=0; while [ $i -lt 200 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
        let expected: String = (0..200).map(|i| format!("out {i}\nerr {i}\n")).collect();
        assert_eq!(result(line).await, (0, expected));
    }

    #[tokio::test]
    async fn input_is_at_its_end() {
        assert_eq!(result("cat; echo done").await, (0, "done\n".to_owned()));
    }

    #[tokio::test]
    async fn the_environment_is_clean() {
        let user = User::from_uid(geteuid()).unwrap().unwrap();
        let env = json!({"COLOUR": "blue", "LANG": "de_DE.UTF-8"}).as_object().cloned();
        let (fin, _) = run(&Order { env, allow_sh: false, ..order("env") }).await;
        let mut lines: Vec<_> = fin.result.as_deref().unwrap().lines().collect();
        lines.sort_unstable();
        let expected = [
            "COLOUR=blue".to_owned(),
            format!("HOME={}", user.dir.display()),
            "LANG=de_DE.UTF-8".to_owned(),
            format!("LOGNAME={}", user.name),
            format!("PATH={PATH}"),
            format!("SHELL={}", user.shell.display()),
            format!("USER={}", user.name),
        ];
        assert_eq!(lines, expected);
    }

    #[tokio::test]
    async fn a_command_has_its_own_session_and_no_files_of_the_agent() {
        // As if the agent had been started with a file open.
        let file = std::fs::File::open("/etc/passwd").unwrap();
        nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let line = format!("[ -e /proc/$$/fd/0 ] && echo input; [ -e /proc/$$/fd/{fd} ] || echo closed");
        assert_eq!(result(&line).await.1, "input\nclosed\n");
        let (_, stat) = result("cat /proc/$$/stat").await;
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        // State, parent, group, session.
        let pid = stat.split(' ').next().unwrap();
        assert_eq!((fields[2], fields[3]), (pid, pid));
    }

    #[tokio::test]
    async fn a_command_begins_at_home() {
        let user = User::from_uid(geteuid()).unwrap().unwrap();
        let home = if user.dir.is_dir() { user.dir } else { "/".into() };
        assert_eq!(result("pwd -P").await.1.trim(), home.canonicalize().unwrap().to_str().unwrap());
    }

    #[tokio::test]
    async fn root_becomes_the_account() {
        if !geteuid().is_root() {
            let (code, why) = refusal(&Order { user: "root".into(), ..order("id") }).await;
            assert!(code == 126 && why.contains("cannot run a command as root"), "{code} {why}");
            return;
        }
        let nobody = User::from_name("nobody").unwrap().unwrap();
        let line = "id -un; id -u; id -g; id -G; pwd; grep -E '^(Uid|Gid|CapEff)' /proc/self/status | tr -s '\\t' ' '";
        let (fin, _) = run(&Order { user: "nobody".into(), ..order(line) }).await;
        let home = if nobody.dir.is_dir() { nobody.dir.clone() } else { "/".into() };
        let (uid, gid) = (nobody.uid, nobody.gid);
        let expected = format!(
            "nobody\n{uid}\n{gid}\n{gid}\n{}\nUid: {uid} {uid} {uid} {uid}\nGid: {gid} {gid} {gid} {gid}\nCapEff: 0000000000000000\n",
            home.display()
        );
        assert_eq!(fin.result.unwrap(), expected);
        let (fin, _) = run(&Order { user: "nobody".into(), ..order("cat /etc/shadow") }).await;
        assert!(!fin.success);
    }

    #[tokio::test]
    async fn a_child_in_the_background_does_not_hold_the_command() {
        let (fin, _) = run(&order("sleep 60 & echo $!")).await;
        let pid = fin.result.unwrap().trim().to_owned();
        assert_eq!(fin.exit_code, Some(0));
        assert!(fin.elapsed_time.unwrap() < 5.0);
        assert!(is_running(&pid), "it was killed");
        nix::sys::signal::kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
    }

    #[tokio::test]
    async fn output_just_after_the_exit_is_read() {
        assert_eq!(result("(sleep 0.3; echo late) & echo early").await.1, "early\nlate\n");
    }

    #[tokio::test]
    async fn much_output_is_whole_and_its_result_cut() {
        let line = "yes 0123456789abcde | head -n 65536";
        let (fin, chunks) = run(&order(line)).await;
        let whole = "0123456789abcde\n".repeat(65536);
        assert_eq!(whole.len(), 1024 * 1024);
        assert!(chunks.concat() == whole);
        assert!(chunks.iter().all(|chunk| chunk.len() <= crate::output::CHUNK_BYTES));
        assert!(fin.result.unwrap() == farhand_domain::output::result(&whole).0);
    }

    #[tokio::test]
    async fn output_is_sent_while_the_command_runs() {
        let directory = tempfile::tempdir().unwrap();
        let go = directory.path().join("go");
        let (queue, mut reports) = mpsc::channel(2);
        let order = order(&format!("printf a; until [ -e {} ]; do sleep 0.02; done; printf b", go.display()));
        let (groups, never, memory) = (Groups::default(), never(), Memory::default());
        let execute = execute(&order, Own::current(), &groups, &never, &memory, &queue);
        let watch = async {
            let Some(Report::Chunk(chunk)) = reports.recv().await else { panic!("no chunk") };
            assert_eq!((chunk.seq, chunk.content.as_str()), (0, "a"));
            std::fs::write(&go, "").unwrap();
            let Some(Report::Chunk(chunk)) = reports.recv().await else { panic!("no chunk") };
            assert_eq!((chunk.seq, chunk.content.as_str()), (1, "b"));
        };
        let (fin, ()) = tokio::time::timeout(PATIENCE, async { tokio::join!(execute, watch) }).await.unwrap();
        assert_eq!(fin.result.unwrap(), "ab");
    }

    #[tokio::test]
    async fn a_slow_service_makes_the_command_wait() {
        let directory = tempfile::tempdir().unwrap();
        let done = directory.path().join("done");
        let (queue, mut reports) = mpsc::channel(2);
        let order = order(&format!("head -c 1000000 /dev/zero; touch {}", done.display()));
        let (groups, never, memory) = (Groups::default(), never(), Memory::default());
        let mut execute = Box::pin(execute(&order, Own::current(), &groups, &never, &memory, &queue));
        // The queue, the buffer and the pipe are full, and nothing more happens.
        assert!(tokio::time::timeout(Duration::from_millis(500), &mut execute).await.is_err());
        assert!(!done.exists());
        let drain = async { while !done.exists() && reports.recv().await.is_some() {} };
        tokio::time::timeout(PATIENCE, async {
            tokio::select! { _ = &mut execute => {}, () = drain => {} }
        })
        .await
        .unwrap();
        assert!(done.exists());
    }

    #[tokio::test]
    async fn endless_output_is_drained_and_stopped() {
        let stops = never();
        let endless = order("yes");
        let (queue, mut reports) = mpsc::channel(16);
        let groups = Groups::default();
        let execute = async {
            let queue = queue;
            execute(&endless, Own::current(), &groups, &stops, &Memory::default(), &queue).await
        };
        let most = farhand_domain::output::MAX_KEPT as usize;
        let sent = async {
            let mut sent = 0;
            while let Some(Report::Chunk(chunk)) = reports.recv().await {
                sent += chunk.content.len();
                if sent > most {
                    // From here on it is read, and thrown away.
                    stops.stopping.cancel();
                }
            }
            sent
        };
        let (fin, sent) = tokio::time::timeout(PATIENCE, async { tokio::join!(execute, sent) }).await.unwrap();
        assert!(sent > most && sent <= most + crate::output::CHUNK_BYTES, "{sent}");
        assert_eq!((fin.success, fin.exit_code), (false, Some(143)));
        let result = fin.result.unwrap();
        assert!(result.len() <= farhand_domain::output::MAX_RESULT);
        assert!(result.starts_with("y\ny\n") && result.ends_with("\nThe agent was stopped.\n"));
    }

    #[tokio::test]
    async fn stopping_ends_the_whole_group() {
        let directory = tempfile::tempdir().unwrap();
        let pids = [directory.path().join("child"), directory.path().join("shell")];
        let line = format!("sleep 60 & echo $! > {}; echo $$ > {}; wait", pids[0].display(), pids[1].display());
        let (stops, order) = (never(), order(&line));
        let stop = async {
            eventually(|| pids.iter().all(|pid| !read(pid).is_empty())).await;
            stops.stopping.cancel();
        };
        let ((fin, _), ()) = tokio::join!(run_until(&order, &stops), stop);
        assert_eq!((fin.success, fin.exit_code), (false, Some(143)), "{fin:?}");
        assert!(pids.iter().all(|pid| !is_running(&read(pid))));
    }

    #[tokio::test]
    async fn what_does_not_end_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let ready = directory.path().join("ready");
        let order = order(&format!("trap '' TERM; echo x > {}; while :; do sleep 1; done", ready.display()));
        let stops = never();
        let stop = async {
            eventually(|| !read(&ready).is_empty()).await;
            stops.stopping.cancel();
        };
        let ((fin, _), ()) = tokio::join!(run_until(&order, &stops), stop);
        assert_eq!((fin.success, fin.exit_code), (false, Some(137)));
        assert!(fin.elapsed_time.unwrap() >= crate::group::GRACE.as_secs_f64());
    }

    /// Takes every report, keeps the fins, and counts all calls.
    #[derive(Clone, Default)]
    struct Service(Arc<Mutex<Vec<(Uuid, Fin)>>>, Arc<AtomicUsize>);

    impl Transport for Service {
        async fn post(&self, path: &str, body: hyper::body::Bytes, _: Duration) -> Outcome {
            self.1.fetch_add(1, Ordering::Relaxed);
            let mut parts = path.trim_start_matches("/api/events/commands/").split('/');
            let id = parts.next().unwrap().parse().unwrap();
            if parts.next() == Some("fin") {
                self.0.lock().unwrap().push((id, serde_json::from_slice(&body).unwrap()));
            }
            Ok(204)
        }
    }

    fn numbered(number: usize, line: &str) -> Order {
        Order { id: Uuid::from_u128(number as u128), ..order(line) }
    }

    #[tokio::test]
    async fn commands_run_in_order_and_too_many_fail() {
        let directory = tempfile::tempdir().unwrap();
        let (go, log) = (directory.path().join("go"), directory.path().join("log"));
        let service = Service::default();
        let reports = Reports::new(service.clone(), Memory::default(), CancellationToken::new());
        let (groups, ending) = (Groups::default(), Ending::default());
        let runner =
            Runner::new(1, Own::current(), reports.clone(), groups.clone(), ending.clone(), Program::current());
        runner.take(numbered(0, &format!("until [ -e {} ]; do sleep 0.02; done", go.display())));
        eventually(|| !groups.ids().is_empty()).await;
        // A place in the queue becomes free when the next one starts, and that waits for the first.
        for number in 1..=QUEUE + 3 {
            runner.take(numbered(number, &format!("echo {number} >> {}", log.display())));
        }
        eventually(|| service.0.lock().unwrap().len() == 3).await;
        for (id, fin) in service.0.lock().unwrap().iter() {
            assert!(id.as_u128() > QUEUE as u128 && fin.exit_code == Some(1) && !fin.success, "{id} {fin:?}");
            assert_eq!(fin.result.as_deref(), Some("The agent is busy: 200 commands wait already."));
        }
        std::fs::write(&go, "").unwrap();
        eventually(|| service.0.lock().unwrap().len() == QUEUE + 4).await;
        let expected: Vec<_> = (1..=QUEUE).map(|number| number.to_string()).collect();
        assert_eq!(read(&log).lines().collect::<Vec<_>>(), expected);
    }

    #[tokio::test]
    async fn draining_fails_what_waits_and_lets_run_what_runs() {
        let directory = tempfile::tempdir().unwrap();
        let go = directory.path().join("go");
        let service = Service::default();
        let reports = Reports::new(service.clone(), Memory::default(), CancellationToken::new());
        let (groups, ending) = (Groups::default(), Ending::default());
        let runner =
            Runner::new(1, Own::current(), reports.clone(), groups.clone(), ending.clone(), Program::current());
        runner.take(numbered(1, &format!("until [ -e {} ]; do sleep 0.02; done", go.display())));
        eventually(|| !groups.ids().is_empty()).await;
        runner.take(numbered(2, "true"));
        ending.draining.cancel();
        eventually(|| service.0.lock().unwrap().len() == 1).await;
        runner.take(numbered(3, "true"));
        eventually(|| service.0.lock().unwrap().len() == 2).await;
        std::fs::write(&go, "").unwrap();
        tokio::time::timeout(PATIENCE, runner.finished()).await.unwrap();
        tokio::time::timeout(PATIENCE, reports.finished()).await.unwrap();
        let ends = service.0.lock().unwrap();
        let ends: Vec<_> = ends.iter().map(|(id, fin)| (id.as_u128(), fin.exit_code.unwrap())).collect();
        assert_eq!(ends, [(2, 143), (3, 143), (1, 0)]);
    }

    /// Runs an order, and kills it when it has told the numbers of its processes, each in a line; its end and those.
    async fn killed(line: &str, processes: usize) -> (Fin, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let told = directory.path().join("told");
        let stops = never();
        let order = order(&line.replace("TOLD", told.to_str().unwrap()));
        let kill = async {
            eventually(|| read(&told).lines().count() == processes).await;
            stops.killed.cancel();
        };
        let ((fin, _), ()) = tokio::join!(run_until(&order, &stops), kill);
        (fin, read(&told).lines().map(str::to_owned).collect())
    }

    #[tokio::test]
    async fn a_kill_ends_the_whole_group() {
        let (fin, processes) = killed("sleep 60 & echo $! >> TOLD; echo $$ >> TOLD; echo out; wait", 2).await;
        assert_eq!((fin.success, fin.exit_code, fin.chunks), (false, Some(143), Some(1)));
        assert_eq!(fin.result.unwrap(), "out\n\nThe command was killed.\n");
        assert!(!processes.iter().any(|pid| is_running(pid)));
    }

    #[tokio::test]
    async fn the_end_comes_when_the_last_of_the_group_is_gone() {
        // The shell goes at once, and the one in the background takes no TERM.
        let line = "(trap '' TERM; sh -c 'echo $$ >> TOLD; sleep 60; sleep 60') & echo $$ >> TOLD; wait";
        let (fin, processes) = killed(line, 2).await;
        assert_eq!((fin.success, fin.exit_code), (false, Some(137)));
        assert!(!processes.iter().any(|pid| is_running(pid)));
    }

    #[tokio::test]
    async fn what_is_stopped_is_ended_too() {
        let (fin, processes) = killed("echo $$ >> TOLD; kill -STOP $$; sleep 60", 1).await;
        assert_eq!(fin.exit_code, Some(143));
        assert!(!is_running(&processes[0]));
    }

    #[tokio::test]
    async fn what_left_the_group_is_not_the_groups() {
        let (fin, processes) = killed("setsid sh -c 'echo $$ >> TOLD; sleep 60' & sleep 60", 1).await;
        assert_eq!(fin.exit_code, Some(143));
        assert!(is_running(&processes[0]), "it was killed");
        nix::sys::signal::killpg(Pid::from_raw(processes[0].parse().unwrap()), Signal::SIGKILL).unwrap();
    }

    #[tokio::test]
    async fn what_a_command_left_is_killed_while_its_output_is_read() {
        // On a busy machine what it left can be quiet for so long that the command is over before it is killed.
        for _ in 0..5 {
            if kills_what_a_command_left().await {
                return;
            }
        }
        panic!("it was over before it was killed, each time");
    }

    /// Kills what a command left while its output is read. False: there was nothing to kill any more.
    async fn kills_what_a_command_left() -> bool {
        let directory = tempfile::tempdir().unwrap();
        let told = directory.path().join("told");
        let (stops, groups, memory) = (never(), Groups::default(), Memory::default());
        // It writes all the time, so the pipe is never quiet.
        let line = "sh -c 'echo $$ > TOLD; while :; do echo x; sleep 0.1; done' & exit 0";
        let order = order(&line.replace("TOLD", told.to_str().unwrap()));
        let (queue, mut reports) = mpsc::channel(2);
        let execute = async {
            let queue = queue;
            execute(&order, Own::current(), &groups, &stops, &memory, &queue).await
        };
        let kill = async {
            eventually(|| !read(&told).is_empty()).await;
            let parent = || std::fs::read_to_string(format!("/proc/{}/stat", read(&told))).unwrap_or_default();
            // Its shell has exited: it has another parent.
            eventually(|| leader(&groups).is_none_or(|leader| !parent().contains(&format!(" S {leader} ")))).await;
            stops.killed.cancel();
            while reports.recv().await.is_some() {}
        };
        let (fin, ()) = tokio::time::timeout(PATIENCE, async { tokio::join!(execute, kill) }).await.unwrap();
        if fin.exit_code == Some(0) {
            return false;
        }
        assert_eq!((fin.success, fin.exit_code), (false, Some(143)));
        assert!(!is_running(&read(&told)));
        true
    }

    /// How many bytes a process has written.
    fn written(pid: &str) -> u64 {
        let io = std::fs::read_to_string(format!("/proc/{}/io", pid.trim())).unwrap_or_default();
        let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
        line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
    }

    #[tokio::test]
    async fn a_kill_works_while_nobody_takes_the_output() {
        let directory = tempfile::tempdir().unwrap();
        let told = directory.path().join("told");
        let (stops, groups, memory) = (never(), Groups::default(), Memory::default());
        let order = order(&format!("echo $$ > {}; exec yes", told.display()));
        let (queue, mut reports) = mpsc::channel(2);
        let mut execute = Box::pin(execute(&order, Own::current(), &groups, &stops, &memory, &queue));
        let kill = async {
            eventually(|| !read(&told).is_empty()).await;
            // More than there is room for, or else nothing would be left unsent.
            eventually(|| queue.capacity() == 0 && written(&read(&told)) > 16 * 1024).await;
            stops.killed.cancel();
            eventually(|| !is_running(&read(&told))).await;
        };
        tokio::select! { _ = &mut execute => panic!("it ended with its output unsent"), () = kill => {} }
        // What found no room is dropped after a while, and is not counted.
        let fin = tokio::time::timeout(PATIENCE, execute).await.unwrap();
        assert_eq!((fin.exit_code, fin.chunks), (Some(143), Some(2)));
        drop(queue);
        for seq in 0..2 {
            assert!(matches!(reports.recv().await, Some(Report::Chunk(chunk)) if chunk.seq == seq));
        }
        assert!(reports.recv().await.is_none());
        assert!(fin.result.unwrap().ends_with("\nThe command was killed.\n"));
    }

    #[tokio::test]
    async fn a_timeout_ends_the_group() {
        let directory = tempfile::tempdir().unwrap();
        let told = directory.path().join("told");
        let line = format!("trap '' TERM; echo $$ >> {}; while :; do sleep 1; done", told.display());
        let (fin, _) = run(&Order { timeout: Some(1), ..order(&line) }).await;
        assert_eq!((fin.success, fin.exit_code), (false, Some(124)));
        assert_eq!(fin.result.unwrap(), "\nThe command was killed: its timeout of 1 s was over.\n");
        assert!(!is_running(&read(&told)));
        for timeout in [0, -1, i64::MIN] {
            assert_eq!(refusal(&Order { timeout: Some(timeout), ..order("true") }).await.0, 126);
        }
        let (fin, _) = run(&Order { timeout: Some(i64::MAX), ..order("echo x") }).await;
        assert_eq!(fin.result.unwrap(), "x\n");
    }

    #[tokio::test]
    async fn chunks_are_counted() {
        for (line, chunks) in [("true", 0), ("echo x", 1), ("head -c 10000 /dev/zero", 3)] {
            let (fin, sent) = run(&order(line)).await;
            assert_eq!((fin.chunks, sent.len()), (Some(chunks), chunks as usize), "{line}");
        }
    }

    /// The one group that runs, if there is one.
    fn leader(groups: &Groups) -> Option<String> {
        groups.ids().first().map(ToString::to_string)
    }

    /// A service, and a runner of one command at once with a memory.
    struct Host {
        service: Service,
        reports: Reports<Service>,
        runner: Runner<Service>,
        groups: Groups,
        ending: Ending,
    }

    impl Host {
        fn new(memory: Memory) -> Self {
            let service = Service::default();
            let reports = Reports::new(service.clone(), memory, CancellationToken::new());
            let (groups, ending) = (Groups::default(), Ending::default());
            let runner =
                Runner::new(1, Own::current(), reports.clone(), groups.clone(), ending.clone(), Program::current());
            Self { service, reports, runner, groups, ending }
        }

        fn ends(&self) -> Vec<(u128, Fin)> {
            self.service.0.lock().unwrap().iter().map(|(id, fin)| (id.as_u128(), fin.clone())).collect()
        }

        async fn ended(&self, count: usize) -> Vec<(u128, i64, String)> {
            eventually(|| self.ends().len() >= count).await;
            let tell = |(id, fin): (u128, Fin)| (id, fin.exit_code.unwrap(), fin.result.unwrap());
            self.ends().into_iter().map(tell).collect()
        }

        async fn finish(self) {
            self.ending.draining.cancel();
            tokio::time::timeout(PATIENCE, self.runner.finished()).await.unwrap();
            tokio::time::timeout(PATIENCE, self.reports.finished()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn what_waits_is_killed_at_once_and_makes_room() {
        let directory = tempfile::tempdir().unwrap();
        let (go, ran) = (directory.path().join("go"), directory.path().join("ran"));
        let host = Host::new(Memory::default());
        host.runner.take(numbered(0, &format!("until [ -e {} ]; do sleep 0.02; done", go.display())));
        eventually(|| !host.groups.ids().is_empty()).await;
        for number in 1..=QUEUE {
            host.runner.take(numbered(number, &format!("echo {number} >> {}", ran.display())));
        }
        host.runner.kill(Uuid::from_u128(7));
        host.runner.kill(Uuid::from_u128(7));
        host.runner.kill(Uuid::from_u128(9_999));
        let killed = (7, 143, "The command was killed before it ran.".to_owned());
        assert_eq!(host.ended(1).await, [killed]);
        // There is room for one, and not for two.
        host.runner.take(numbered(QUEUE + 1, "true"));
        host.runner.take(numbered(QUEUE + 2, "true"));
        assert_eq!(host.ended(2).await[1].0, QUEUE as u128 + 2);
        host.runner.kill(Uuid::from_u128(0));
        let ends = host.ended(QUEUE + 3).await;
        assert!(ends.contains(&(0, 143, "\nThe command was killed.\n".to_owned())));
        assert_eq!(ends.iter().filter(|(id, ..)| *id == 7).count(), 1);
        assert!(!read(&ran).lines().any(|line| line == "7"));
        host.finish().await;
    }

    #[tokio::test]
    async fn the_time_of_a_command_begins_with_its_process() {
        let host = Host::new(Memory::default());
        host.runner.take(numbered(1, "sleep 1.5"));
        host.runner.take(Order { timeout: Some(1), ..numbered(2, "echo x") });
        assert_eq!(host.ended(2).await[1], (2, 0, "x\n".to_owned()));
        host.finish().await;
    }

    #[tokio::test]
    async fn a_command_and_its_process_are_noted_before_it_runs() {
        let directory = tempfile::tempdir().unwrap();
        let (memory, _) = Memory::open(directory.path()).unwrap();
        let host = Host::new(memory);
        let journal = directory.path().join("commands.journal");
        // What a process finds that begins with looking.
        let line = format!("exec grep -c \"taken\\|\\\"pid\\\":$$,\" {}", journal.display());
        host.runner.take(numbered(1, &line));
        assert_eq!(host.ended(1).await, [(1, 0, "2\n".to_owned())]);
        // Without a shell, so that nothing runs before it.
        let line = format!("grep -c pid {}", journal.display());
        host.runner.take(Order { allow_sh: false, ..numbered(2, &line) });
        assert_eq!(host.ended(2).await[1], (2, 0, "2\n".to_owned()));
        let refused = Order { allow_sh: false, ..numbered(3, "/no/such/program") };
        host.runner.take(refused);
        assert_eq!(host.ended(3).await[2].1, 127);
        host.finish().await;
    }

    #[tokio::test]
    async fn nothing_is_done_before_it_is_noted() {
        let directory = tempfile::tempdir().unwrap();
        let ran = directory.path().join("ran");
        let (memory, disk) = Memory::held();
        let host = Host::new(memory);
        let next = async || {
            let found = std::cell::RefCell::new(None);
            eventually(|| {
                *found.borrow_mut() = disk.next();
                found.borrow().is_some()
            })
            .await;
            found.take().unwrap()
        };
        // For what must not happen there is no condition to wait for.
        let moment = async || sleep(Duration::from_millis(200)).await;
        host.runner.take(numbered(1, &format!("echo x >> {}", ran.display())));
        let (event, guard) = next().await;
        moment().await;
        assert_eq!((event, host.service.1.load(Ordering::Relaxed), disk.next().is_none()), ("taken", 0, true));
        drop(guard);
        let (event, guard) = next().await;
        moment().await;
        assert_eq!((event, ran.exists()), ("started", false));
        drop(guard);
        let (event, guard) = next().await;
        moment().await;
        // The acknowledgement, and no end.
        assert_eq!((event, read(&ran).as_str(), host.ends().len()), ("ended", "x", 0));
        assert_eq!(host.service.1.load(Ordering::Relaxed), 1);
        drop(guard);
        assert_eq!(host.ended(1).await[0].1, 0);
        assert_eq!(next().await.0, "answered");
        host.finish().await;
    }

    #[tokio::test]
    async fn a_repeated_command_is_answered_and_not_run() {
        let directory = tempfile::tempdir().unwrap();
        let ran = directory.path().join("ran");
        let state = directory.path().join("state");
        let line = format!("echo x >> {}; echo done", ran.display());
        for expected in 1..4 {
            let (memory, known) = eventually_open(&state).await;
            let host = Host::new(memory);
            host.runner.recover(known);
            host.runner.take(numbered(1, &line));
            assert_eq!(host.ended(1).await[0], (1, 0, "done\n".to_owned()), "{expected}");
            host.runner.take(numbered(1, &line));
            assert_eq!(host.ended(2).await[1], (1, 0, "done\n".to_owned()));
            host.finish().await;
        }
        assert_eq!(read(&ran), "x");
    }

    /// Opens a memory that another one may not have let go of yet.
    async fn eventually_open(directory: &Path) -> (Memory, Vec<(Uuid, Stage)>) {
        let directory = directory.to_owned();
        tokio::task::spawn_blocking(move || Memory::open(&directory).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn what_an_agent_left_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let left = |line: &str| {
            let mut command = std::process::Command::new("sh");
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            command.args(["-c", line]).spawn().unwrap()
        };
        let mut own = left("sleep 60 & wait");
        // Has the number of one that ran, and is another.
        let mut stranger = left("sleep 60");
        let identity = |child: &std::process::Child| Identity::of(child.id() as i32).unwrap();
        let mut other = serde_json::to_value(identity(&stranger)).unwrap();
        other["start"] = json!(1);
        let (memory, _) = Memory::open(directory.path()).unwrap();
        let id = Uuid::from_u128;
        let fin = serde_json::to_vec(&failure(7, "kept")).unwrap();
        for noted in [
            memory.taken(id(1)),
            memory.started(id(2), Some(identity(&own))),
            memory.started(id(3), Some(serde_json::from_value(other).unwrap())),
            memory.started(id(4), None),
            memory.ended(id(5), fin.clone().into()),
            memory.ended(id(6), fin.into()),
            memory.answered(id(6)),
        ] {
            noted.wait().await;
        }
        drop(memory);
        let (memory, known) = eventually_open(directory.path()).await;
        let host = Host::new(memory);
        host.runner.recover(known);
        let mut ends = host.ended(5).await;
        ends.sort();
        let died = |id, rest: &str| (id, 137, format!("The agent died {rest}"));
        let lost = "while the command ran. How it ended is not known.";
        let expected = [
            died(1, "before the command ran. It was not run."),
            died(2, "while the command ran. What was left of it was killed."),
            died(3, lost),
            died(4, lost),
            (5, 7, "kept".to_owned()),
        ];
        assert_eq!(ends, expected);
        assert!(!is_running(&own.id().to_string()) && is_running(&stranger.id().to_string()));
        own.wait().unwrap();
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        host.finish().await;
        // Once told, it is told no more.
        let (_, known) = eventually_open(directory.path()).await;
        assert!(known.iter().all(|(_, stage)| *stage == Stage::Ended { is_answered: true }), "{known:?}");
    }
}
