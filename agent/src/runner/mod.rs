//! Running commands: the queue, the processes and their ends (agent-protocol 3, 4 and 6).
//!
//! A command is a process in a session of its own, with `/dev/null` as its input and one pipe for both of its outputs.
//! It ends when that process has exited and its pipe is drained. What it left in the background may hold the pipe: it
//! does not hold the command. After the exit the pipe is read to its end, or until nothing came for [`QUIET`], or until
//! it is empty after [`LINGER`]; then the pipe is closed, and a process that still writes into it gets SIGPIPE.
//!
//! A command that is killed, or whose time is over, ends when no process of its group runs any more, those in the
//! background included: all that the command started. The agent finds them in a control group if it can create one, else
//! below a supervisor (supervisor.rs).

pub mod built_in;
pub mod cgroup;
pub mod group;
pub mod output;
pub mod policy;
pub mod supervisor;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::CString;
use std::fs::{File, OpenOptions, Permissions};
use std::future::pending;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown};
use std::os::unix::net::UnixStream as Socket;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farhand_domain::output::sha256;
use farhand_domain::wire::{
    Chunk, FEATURE_ARGV, FEATURE_CWD, FEATURE_KILL, FEATURE_REPLAY, FEATURE_SCRIPT, FEATURE_STDIN, Fin, Order, Script,
};
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

use crate::connection::websocket::Commands;
use crate::host::account::{self, Account, Own};
use crate::host::process::{self, Identity};
use crate::host::program::Program;
use crate::journal::file::Stage;
use crate::journal::host_journal::HostJournal;
use crate::journal::writer::{Memory, Noted};
use crate::reports::{Report, Reporter, Reports, Transport};
use crate::runner::cgroup::{Cgroup, Cgroups};
use crate::runner::group::{Group, Groups, Hold};
use crate::runner::output::{CHUNK_BYTES, Chunker, Decoder, Kept, LARGE_CHUNK_BYTES};
use crate::runner::policy::PolicyFile;
use crate::runner::supervisor::Supervisor;

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
/// How often, and how far apart, what an agent before this one left in a control group is killed until none of it runs.
const LEFTOVER_KILLS: (usize, Duration) = (100, Duration::from_millis(20));
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

/// The shell of orders that run a program of the host.
const SYSTEM: &str = "system";
/// Added to the error of a new process that cannot enter its directory: it has nothing but a number to report an error
/// with, and the kernel's are all smaller.
const CANNOT_ENTER: i32 = 10_000;

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

/// What this host says about the commands that run here.
#[derive(Clone, Debug)]
pub struct Site {
    /// Who the agent runs as.
    pub own: Own,
    /// What the host allows.
    pub policy: PolicyFile,
    /// Where the host records commands.
    pub journal: HostJournal,
    /// Where commands get control groups.
    pub cgroups: Cgroups,
}

/// Takes commands and runs them.
pub struct Runner<T> {
    queue: Arc<Queue>,
    reports: Reports<T>,
    groups: Groups,
    tasks: TaskTracker,
    program: Arc<Program>,
    site: Arc<Site>,
    restarting: CancellationToken,
}

impl<T: Transport> Runner<T> {
    /// A runner of at most `max_running` commands at once, in a process of `program`.
    pub fn new(
        max_running: usize,
        site: Site,
        reports: Reports<T>,
        groups: Groups,
        ending: Ending,
        program: Program,
    ) -> Self {
        let queue = Arc::new(Queue::default());
        let site = Arc::new(site);
        let tasks = TaskTracker::new();
        let runner = Self {
            queue: queue.clone(),
            reports,
            groups: groups.clone(),
            tasks: tasks.clone(),
            program: Arc::new(program),
            site: site.clone(),
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
                let (queue, groups, memory, site) = (queue.clone(), groups.clone(), memory.clone(), site.clone());
                let stops = Stops { stopping: ending.stopping.clone(), killed };
                running.spawn(async move {
                    noted.wait().await;
                    let fin = execute(&order, &site, &groups, &stops, &memory, reporter.queue()).await;
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
                    let cgroup = self.site.cgroups.left(id);
                    self.tasks.spawn(async move {
                        let was_there = end_leftover(process, cgroup, &groups).await;
                        drop(ScriptFile(ScriptFile::path(id)));
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
        let (memory, site) = (self.reports.memory().clone(), self.site.clone());
        self.tasks.spawn(async move {
            noted.wait().await;
            let admitted = order.clone();
            let admitted = tokio::task::spawn_blocking(move || site.admit_internal(&admitted)).await;
            if let Err(why) = admitted.unwrap_or_else(|error| Err(error.to_string())) {
                return end(reporter, &order, failure(REFUSED, why)).await;
            }
            let done = built_in::run(&order.line, &program, memory.is_sound()).await;
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
        } else if order.shell == built_in::SHELL {
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
        let replay = self.reports.memory().is_sound().then_some(FEATURE_REPLAY);
        let features = [FEATURE_KILL].into_iter().chain(replay);
        features.chain([FEATURE_ARGV, FEATURE_SCRIPT, FEATURE_STDIN, FEATURE_CWD]).collect::<Vec<_>>().join(", ")
    }
}

/// Ends what is left of a command that an agent before this one ran; false if that is not there any more, or cannot be
/// told from others.
async fn end_leftover(process: Option<Identity>, cgroup: Option<Cgroup>, groups: &Groups) -> bool {
    let Some(process) = process.filter(Identity::is_there) else {
        // What left the process group is still in the control group, which has the command's own name.
        let Some(cgroup) = cgroup.filter(Cgroup::runs) else {
            return false;
        };
        for _ in 0..LEFTOVER_KILLS.0 {
            cgroup.signal(Signal::SIGKILL, None);
            tokio::time::sleep(LEFTOVER_KILLS.1).await;
            if !cgroup.runs() {
                break;
            }
        }
        return true;
    };
    let id = Pid::from_raw(process.pid);
    let hold = match cgroup {
        _ if process.is_supervisor => Hold::Supervisor(Arc::new(Supervisor::new(process.clone(), None))),
        Some(cgroup) => Hold::Cgroup(Arc::new(cgroup)),
        None => Hold::Nothing,
    };
    groups.enter(id, hold).end().await;
    true
}

async fn end(reporter: Reporter, order: &Order, fin: Fin) {
    let (code, seconds) = (fin.exit_code.unwrap_or_default(), fin.elapsed_time.unwrap_or_default());
    log::info!("command {}: as {:?}, exit code {code} after {seconds:.1} s", reporter.id(), order.user);
    reporter.fin(fin).await;
}

/// The end of a command that was never run, and why.
fn failure(exit_code: i64, reason: impl Into<String>) -> Fin {
    Fin {
        success: false,
        result: Some(String::new()),
        elapsed_time: Some(0.0),
        exit_code: Some(exit_code),
        chunks: Some(0),
        output_bytes: None,
        reason: Some(reason.into()),
    }
}

fn stopped_before() -> Fin {
    failure(TERMINATED.0, "The agent was stopped before the command ran.")
}

/// The end of a command that ran when the agent died. How long it ran, and what of its output was sent, nobody knows.
fn lost(was_there: bool) -> Fin {
    let rest = if was_there { "What was left of it was killed." } else { "How it ended is not known." };
    let result = Some(format!("The agent died while the command ran. {rest}"));
    Fin {
        success: false,
        result,
        elapsed_time: None,
        exit_code: Some(TERMINATED.1),
        chunks: None,
        output_bytes: None,
        reason: None,
    }
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
/// order's timeout is over, all its processes are ended: TERM, and KILL after [`crate::runner::group::GRACE`].
pub async fn execute(
    order: &Order,
    site: &Site,
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
    let Started { mut child, output, hold, script: _script } = match start(order, site, memory).await {
        Ok(started) => started,
        Err(refusal) => return refusal,
    };
    let Some(id) = child_id(&child) else {
        return failure(REFUSED, "The command could not be started.");
    };
    // It called setsid, so its process group has its number.
    let group = groups.enter(id, hold);
    let reading = Reading {
        exited: CancellationToken::new(),
        hasty: stops.stopping.child_token(),
        dropping: stops.stopping.child_token(),
        over: CancellationToken::new(),
    };
    let supervise = async {
        let (why, ended_at) = supervise(&group, stops, limit, &reading).await;
        // Only now, as its number stands for the group.
        (group.status(&mut child).await, why, ended_at)
    };
    let (ended, (mut kept, count)) = tokio::join!(supervise, pump(output, chunks, &reading));
    let (status, why, ended_at) = ended;
    let (exit_code, note) = match (status, why) {
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
        elapsed_time: Some(ended_at.duration_since(began).as_secs_f64()),
        exit_code: Some(exit_code),
        chunks: Some(count),
        output_bytes: Some(output_bytes),
        reason: None,
    }
}

fn child_id(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw)
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

/// Waits until a command has exited and its output is sent, or ends its processes when there is a reason to.
/// Returns that reason, with whether it took KILL, and when the command ended: sending its output takes longer.
async fn supervise(
    group: &Group,
    stops: &Stops,
    limit: Option<u64>,
    reading: &Reading,
) -> (Option<(Why, bool)>, Instant) {
    let why = tokio::select! {
        biased;
        () = group.exited() => None,
        why = stops.first(limit) => Some(why),
    };
    let why = match why {
        Some(why) => why,
        None => {
            let ended_at = Instant::now();
            reading.exited.cancel();
            // What is in the background is not waited for, but as long as it is read it is part of the command.
            tokio::select! {
                biased;
                () = reading.over.cancelled() => return (None, ended_at),
                () = stops.killed.cancelled() => {}
            }
            if !group.runs().await {
                reading.hasty.cancel();
                return (None, ended_at);
            }
            Why::Killed
        }
    };
    let is_killed = group.end().await;
    let ended_at = Instant::now();
    reading.exited.cancel();
    reading.hasty.cancel();
    tokio::select! {
        () = reading.over.cancelled() => {}
        () = sleep(SETTLING) => reading.dropping.cancel(),
    }
    (Some((why, is_killed)), ended_at)
}

/// Reads the output to its end and sends it in chunks. Returns what is kept of it and the number of chunks.
async fn pump(mut output: pipe::Receiver, chunks: &mpsc::Sender<Report>, reading: &Reading) -> (Kept, u32) {
    let mut bytes = vec![0; READ];
    let mut text = String::new();
    let (mut decoder, mut chunker, mut kept) = (Decoder::default(), Chunker::default(), Kept::default());
    let mut count = 0;
    // When text that waits is sent, even if it is less than a chunk.
    let mut flush_at = Instant::now();
    // Since the process has exited: until when the pipe is read on, and how much came.
    let mut until: Option<Instant> = None;
    let mut quiet_at = Instant::now();
    let mut left_over: u64 = 0;
    loop {
        let is_late = chunker.is_waiting() && flush_at <= Instant::now();
        let hurries = chunker.is_waiting() && reading.dropping.is_cancelled();
        tokio::select! {
            // Sent first, as reading may never pause. Read before any timer counts, so that time alone never cuts
            // off what is there.
            biased;
            room = chunks.reserve(), if is_late || chunker.has_chunk() || hurries => {
                send(room, chunks, &mut chunker, &mut count);
                flush_at = Instant::now() + FLUSH;
            }
            () = reading.dropping.cancelled(), if chunker.is_waiting() => chunker.close(),
            read = output.read(&mut bytes), if chunker.has_room() => {
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
            }
            // What is in the pipe is not cut off while it waits for room.
            () = sleep_until(quiet_at), if until.is_some() && chunker.has_room() => break,
            () = reading.hasty.cancelled(), if until.is_some_and(|until| until > Instant::now()) => {
                // There is no time to wait for what others may still write.
                let now = Instant::now();
                (until, quiet_at) = (Some(now), now + FLUSH);
            }
            () = sleep_until(flush_at), if chunker.is_waiting() && !is_late => {}
        }
    }
    decoder.finish(&mut text);
    chunker.push(&text);
    kept.push(&text);
    while chunker.is_waiting() {
        tokio::select! {
            biased;
            room = chunks.reserve() => send(room, chunks, &mut chunker, &mut count),
            () = reading.dropping.cancelled() => chunker.close(),
        }
    }
    reading.over.cancel();
    (kept, count)
}

/// Queues the next chunk: a large one if others wait before it.
fn send(
    room: Result<mpsc::Permit<'_, Report>, mpsc::error::SendError<()>>,
    chunks: &mpsc::Sender<Report>,
    chunker: &mut Chunker,
    count: &mut u32,
) {
    // Without a receiver there is nothing to report to.
    let Ok(room) = room else { return chunker.close() };
    // The permit itself is one place.
    let limit = if chunks.capacity() + 1 < chunks.max_capacity() { LARGE_CHUNK_BYTES } else { CHUNK_BYTES };
    if let Some(content) = chunker.next(limit) {
        room.send(Report::Chunk(Chunk { seq: *count, content }));
        *count += 1;
    }
}

/// Starts the process of a command. Before anything of it runs, `memory` knows which process it is.
///
/// # Errors
/// The end of a command that cannot be run.
async fn start(order: &Order, site: &Site, memory: &Memory) -> Result<Started, Fin> {
    let failed = || failure(REFUSED, "The command could not be started.");
    let (door, gate) = Gate::new(memory).map_err(|_| failed())?.unzip();
    let (for_start, site) = (order.clone(), site.clone());
    // Account databases and home directories may be far away, and must not make everything else wait.
    let mut started = tokio::task::spawn_blocking(move || prepare(&for_start, &site, door));
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

/// A process that runs a command.
struct Started {
    child: Child,
    output: pipe::Receiver,
    /// What it cannot leave.
    hold: Hold,
    /// The script that it runs.
    script: Option<ScriptFile>,
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
        let mut is_supervisor = [0];
        if self.0.read_exact(&mut number).await.is_err() || self.0.read_exact(&mut is_supervisor).await.is_err() {
            // It ended before it came here.
            return;
        }
        let process = Identity::of(i32::from_ne_bytes(number));
        let process = process.map(|process| process.supervising(is_supervisor != [0]));
        memory.started(id, process).wait().await;
        // Where nobody is there any more, nobody has to go on.
        let _ = self.0.write_all(&[1]).await;
        // Kept open until the process is through.
        pending().await
    }
}

/// The process's side of [`Gate::open`]. Makes system calls only.
fn pass(gate: &OwnedFd, agent: Pid, is_supervisor: bool) -> nix::Result<()> {
    use nix::sys::prctl::set_pdeathsig;
    set_pdeathsig(Signal::SIGKILL)?;
    // The agent may have died before it was asked for.
    if nix::unistd::getppid() != agent {
        return Err(Errno::ESRCH);
    }
    nix::unistd::write(gate.as_fd(), &nix::unistd::getpid().as_raw().to_ne_bytes())?;
    nix::unistd::write(gate.as_fd(), &[u8::from(is_supervisor)])?;
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

impl Site {
    /// Finds the account of a command, and records the command in the host's journal. Blocks.
    ///
    /// # Errors
    /// Why this host refuses the command, in a sentence.
    fn admit(&self, order: &Order) -> Result<Account, String> {
        let admitted = self.policy.read().and_then(|policy| {
            let account = account::resolve(&order.user, &order.group, self.own)?;
            policy.check(order, account.uid)?;
            Ok(account)
        });
        self.journal.write(order, admitted.as_ref().err().map(String::as_str));
        admitted
    }

    /// The same for a built-in, which has no account. Blocks.
    fn admit_internal(&self, order: &Order) -> Result<(), String> {
        let admitted = self.policy.read().and_then(|policy| policy.check_internal(&order.line));
        self.journal.write(order, admitted.as_ref().err().map(String::as_str));
        admitted
    }
}

/// A script in a file of its own, which is removed when this is dropped.
struct ScriptFile(PathBuf);

impl ScriptFile {
    /// Where the script of a command is.
    fn path(id: Uuid) -> PathBuf {
        std::env::temp_dir().join(format!("farhand-{id}.script"))
    }

    /// Writes a script that only `account` can read.
    fn write(id: Uuid, script: &Script, account: &Account) -> io::Result<Self> {
        let path = Self::path(id);
        // Never one that is there already: in a folder that all accounts can write to, it could be a link.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let written = Self(path);
        file.write_all(script.body.as_bytes())?;
        file.set_permissions(Permissions::from_mode(0o700))?;
        if let Some(switch) = &account.switch {
            fchown(&file, Some(switch.uid.as_raw()), Some(switch.gid.as_raw()))?;
        }
        Ok(written)
    }
}

impl Drop for ScriptFile {
    fn drop(&mut self) {
        // The command can have removed it itself.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Starts the process of a command. It waits at `gate`, if there is one. Blocks.
///
/// # Errors
/// The end of a command that cannot be run.
fn prepare(order: &Order, site: &Site, gate: Option<OwnedFd>) -> Result<Started, Fin> {
    let refused = |why: String| failure(REFUSED, why);
    let account = site.admit(order).map_err(refused)?;
    if order.shell != SYSTEM {
        return Err(refused("This agent has no such shell.".to_owned()));
    }
    let blanks = |text: &str| text.split_ascii_whitespace().map(str::to_owned).collect();
    let mut script = None;
    let words: Vec<String> = match order {
        Order { script: Some(found), .. } => {
            if !sha256(&found.body).eq_ignore_ascii_case(&found.sha256) {
                return Err(refused("The script is not the one that its SHA-256 names.".to_owned()));
            }
            let file = ScriptFile::write(order.id, found, &account)
                .map_err(|error| refused(format!("The script could not be written: {error}.")))?;
            let path = file.0.to_string_lossy().into_owned();
            script = Some(file);
            let mut words: Vec<String> = blanks(&found.interpreter);
            if !words.is_empty() {
                words.push(path);
            }
            words
        }
        Order { argv: Some(words), .. } => words.clone(),
        Order { allow_sh: true, line, .. } => vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()],
        Order { line, .. } => blanks(line),
    };
    let (program, arguments) = words.split_first().ok_or_else(|| failure(NOT_FOUND, "No program is named."))?;
    let mut command = Command::new(program);
    command.args(arguments);
    set_environment(&mut command, &account, order).map_err(refused)?;
    let places = Places {
        input: order.stdin.as_deref().map(input).transpose().map_err(|_| refused("The input does not fit.".into()))?,
        cgroup: site.cgroups.create(order.id),
        directory: order
            .cwd
            .as_deref()
            .map(CString::new)
            .transpose()
            .map_err(|_| refused("The directory's name has a NUL.".to_owned()))?,
        gate,
    };
    let started = spawn(command, account, places).map_err(|error| match (error.raw_os_error(), &order.cwd) {
        (Some(code @ CANNOT_ENTER..), Some(cwd)) => {
            let why = io::Error::from_raw_os_error(code - CANNOT_ENTER);
            refused(format!("The directory {cwd} cannot be entered as {}: {why}.", order.user))
        }
        _ if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            failure(NOT_FOUND, format!("{program}: not found"))
        }
        _ => refused(format!("The command could not be started: {error}.")),
    })?;
    Ok(Started { script, ..started })
}

/// A file with a command's input, which has no name.
fn input(text: &str) -> io::Result<File> {
    // SAFETY: a system call with a constant name; what it returns is checked before it counts as a file.
    let fd = unsafe { libc::memfd_create(c"stdin".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and nothing else has it.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(text.as_bytes())?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

/// Where a command runs, and what it starts with.
struct Places {
    /// Its input, if it has any.
    input: Option<File>,
    /// Its control group, if it gets one.
    cgroup: Option<Cgroup>,
    /// Its directory, if it is not the account's home.
    directory: Option<CString>,
    /// What it waits at before it executes anything.
    gate: Option<OwnedFd>,
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

/// Starts a process in a session of its own, as `account`, with both outputs going into one pipe.
fn spawn(mut command: Command, account: Account, places: Places) -> io::Result<Started> {
    let Places { input, cgroup, directory, gate } = places;
    let door = cgroup.as_ref().map(Cgroup::door).transpose()?;
    // Without `/proc` the agent could not find what is below a supervisor.
    let supervision = (cgroup.is_none() && process::are_shown()).then(io::pipe).transpose()?;
    let (report, told) = supervision.map(|(reader, writer)| (reader, OwnedFd::from(writer))).unzip();
    let report = report.map(|reader| pipe::Receiver::from_owned_fd(OwnedFd::from(reader))).transpose()?;
    // One pipe, as two would lose the order of what comes out of them.
    let (reader, writer) = io::pipe()?;
    let output = pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?;
    command.stdin(input.map_or_else(Stdio::null, Stdio::from)).stdout(writer.try_clone()?).stderr(writer);
    let home = CString::new(account.home.as_os_str().as_bytes()).unwrap_or_default();
    let agent = nix::unistd::getpid();
    let become_account = move || {
        nix::unistd::setsid()?;
        if let Some(told) = &told {
            if let Some(gate) = &gate {
                pass(gate, agent, true)?;
            }
            supervisor::part(told)?;
            nix::unistd::setsid()?;
        }
        // As the agent: the account must not be able to enter other groups.
        if let Some(door) = &door {
            cgroup::enter(door)?;
        }
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
        match &directory {
            Some(directory) => nix::unistd::chdir(directory.as_c_str())
                .map_err(|error| io::Error::from_raw_os_error(CANNOT_ENTER + error as i32))?,
            None if nix::unistd::chdir(home.as_c_str()).is_err() => nix::unistd::chdir(c"/")?,
            None => {}
        }
        // Last of all, as becoming another user forgets what is to happen when the agent dies.
        if let (Some(gate), None) = (&gate, &told) {
            pass(gate, agent, false)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec this makes system calls only, and allocates nothing: all it needs was looked up
    // before, and an errno becomes an error without allocation.
    unsafe { command.pre_exec(become_account) };
    // With `command` the agent's own ends of the pipe's writing side are dropped, so it ends with the last process.
    let child = command.spawn()?;
    let hold = match (cgroup, report) {
        (Some(cgroup), _) => Hold::Cgroup(Arc::new(cgroup)),
        (None, Some(report)) => {
            let process = child_id(&child).and_then(|id| Identity::of(id.as_raw())).ok_or(Errno::ESRCH)?;
            Hold::Supervisor(Arc::new(Supervisor::new(process, Some(report))))
        }
        (None, None) => Hold::Nothing,
    };
    Ok(Started { child, output, hold, script: None })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use nix::unistd::{User, geteuid};
    use serde_json::json;

    use super::*;
    use crate::connection::client::Outcome;

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

    /// A host without a policy, whose journal is the agent's own log.
    static SITE: LazyLock<Site> = LazyLock::new(|| Site {
        own: Own::current(),
        policy: PolicyFile::absent(),
        journal: HostJournal::new("/no/such/socket".into()),
        cgroups: Cgroups::find(),
    });

    /// The same without control groups, so each command has a supervisor.
    static SUPERVISED: LazyLock<Site> = LazyLock::new(|| Site { cgroups: Cgroups::default(), ..SITE.clone() });

    /// The ways in which a command's processes are kept together on this host.
    fn sites() -> impl Iterator<Item = &'static Site> {
        if !SITE.cgroups.is_there() {
            eprintln!("control groups cannot be created here: with supervisors only");
        }
        [&*SITE, &*SUPERVISED].into_iter().skip(usize::from(!SITE.cgroups.is_there()))
    }

    fn own_name() -> String {
        User::from_uid(geteuid()).unwrap().unwrap().name
    }

    fn order(line: &str) -> Order {
        Order {
            id: Uuid::from_u128(fastrand::u128(..)),
            shell: "system".into(),
            line: line.into(),
            user: own_name(),
            group: String::new(),
            allow_sh: true,
            ..Order::default()
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
        run_at(&SITE, order, stops).await
    }

    async fn run_at(site: &Site, order: &Order, stops: &Stops) -> (Fin, Vec<String>) {
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
            execute(order, site, &Groups::default(), stops, &Memory::default(), &queue).await
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
        assert!(!fin.success && chunks.is_empty() && fin.result.as_deref() == Some(""));
        (fin.exit_code.unwrap(), fin.reason.unwrap())
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
    async fn a_supervisor_changes_no_end() {
        let argv = |word: &str| Order { argv: Some(vec![word.to_owned()]), ..order("") };
        let orders = [
            order("exit 0"),
            order("echo x; exit 3"),
            order("kill -9 $$"),
            order("kill -TERM $$"),
            // A signal without a name.
            order("kill -40 $$"),
            order("no-such-program-1"),
            argv("no-such-program-1"),
            argv("/etc/passwd"),
            Order { cwd: Some("/no/such/directory".to_owned()), ..order("true") },
            order("sleep 3 & exit 4"),
        ];
        for order in orders {
            let ends = [&*SITE, &*SUPERVISED].map(async |site| {
                let Fin { success, exit_code, result, reason, .. } = run_at(site, &order, &never()).await.0;
                (success, exit_code, result, reason)
            });
            let [one, other] = ends;
            assert_eq!(one.await, other.await, "{order:?}");
        }
    }

    #[tokio::test]
    async fn without_a_shell_a_line_is_words() {
        let words = |line: &str| Order { allow_sh: false, ..order(line) };
        let (fin, _) = run(&words("  echo  'a b' | $HOME ")).await;
        assert_eq!(fin.result.unwrap(), "'a b' | $HOME\n");
        assert_eq!(refusal(&words("no-such-program-1 x")).await, (127, "no-such-program-1: not found".to_owned()));
        assert_eq!(refusal(&words("/etc/passwd")).await.0, 126);
        assert_eq!(refusal(&words(" \t")).await, (127, "No program is named.".to_owned()));
    }

    #[tokio::test]
    async fn argv_never_meets_a_shell() {
        let argv = |words: &[&str]| {
            let argv = Some(words.iter().map(|word| (*word).to_owned()).collect());
            // With a line that says something else, which does not count.
            Order { argv, ..order("echo line") }
        };
        let (fin, _) = run(&argv(&["printf", "%s|", "a b", "$HOME;id", "", "*", "\"'"])).await;
        assert_eq!(fin.result.unwrap(), "a b|$HOME;id||*|\"'|");
        assert_eq!(refusal(&argv(&[])).await.0, 127);
        assert_eq!(refusal(&argv(&[""])).await.0, 127);
        assert_eq!(refusal(&argv(&["no such program"])).await, (127, "no such program: not found".to_owned()));
        assert_eq!(refusal(&argv(&["echo", "a\0b"])).await.0, 126);
    }

    fn script(interpreter: &str, body: &str) -> Order {
        let sha256 = sha256(body);
        let script = Script { interpreter: interpreter.into(), body: body.into(), sha256 };
        Order { script: Some(script), ..order("script:x@1") }
    }

    #[tokio::test]
    async fn a_script_runs_from_a_private_file_that_is_removed() {
        let order = script("/bin/sh -e", "stat -c '%a %U' $0; echo $0; false; echo no");
        let (fin, _) = run(&order).await;
        let path = ScriptFile::path(order.id);
        let expected = format!("700 {}\n{}\n", own_name(), path.display());
        assert_eq!((fin.exit_code, fin.result.unwrap()), (Some(1), expected));
        assert!(!path.exists());
        if geteuid().is_root() {
            let order = Order { user: "nobody".into(), ..script("sh", "stat -c '%a %U' $0; id -un") };
            assert_eq!(run(&order).await.0.result.unwrap(), "700 nobody\nnobody\n");
        }
        let mut other = script("sh", "true");
        other.script.as_mut().unwrap().body.push('x');
        assert!(refusal(&other).await.1.contains("SHA-256"));
        assert_eq!(refusal(&script(" ", "true")).await.0, 127);
        let missing = script("no-such-interpreter", "true");
        assert_eq!(refusal(&missing).await.0, 127);
        assert!(!ScriptFile::path(missing.id).exists());
        // A file that is there already is not used.
        let order = script("sh", "echo mine");
        std::fs::write(ScriptFile::path(order.id), "echo other").unwrap();
        assert!(refusal(&order).await.1.contains("could not be written"));
        drop(ScriptFile(ScriptFile::path(order.id)));
    }

    #[tokio::test]
    async fn a_command_has_the_input_that_its_order_has() {
        let text = "é\n\0".repeat(20_000);
        let order = Order { stdin: Some(text.clone()), ..order("cat") };
        let (fin, _) = run(&order).await;
        assert!(fin.exit_code == Some(0) && fin.result.unwrap() == text);
        let (fin, _) = run(&Order { stdin: Some(String::new()), ..order }).await;
        assert_eq!(fin.result.unwrap(), "");
    }

    #[tokio::test]
    async fn a_command_runs_in_the_directory_that_its_order_names() {
        let within = |cwd: &str| Order { cwd: Some(cwd.to_owned()), ..order("pwd") };
        assert_eq!(run(&within("/usr")).await.0.result.unwrap(), "/usr\n");
        for missing in ["/no/such/directory", "/etc/passwd", "/a\0b"] {
            let (code, why) = refusal(&within(missing)).await;
            assert!(code == 126 && why.contains("directory"), "{missing}: {code} {why}");
        }
        if geteuid().is_root() {
            let closed = tempfile::tempdir().unwrap();
            std::fs::set_permissions(closed.path(), Permissions::from_mode(0o700)).unwrap();
            std::fs::set_permissions(closed.path(), Permissions::from_mode(0o700)).unwrap();
            let order = Order { user: "nobody".into(), ..within(closed.path().to_str().unwrap()) };
            let (code, why) = refusal(&order).await;
            assert!(code == 126 && why.contains("cannot be entered as nobody: Permission denied"), "{code} {why}");
        }
    }

    #[tokio::test]
    async fn the_host_refuses_and_records() {
        let folder = tempfile::tempdir().unwrap();
        let (path, socket) = (folder.path().join("policy.toml"), folder.path().join("log"));
        let log = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
        log.set_read_timeout(Some(PATIENCE)).unwrap();
        let site = Site {
            policy: PolicyFile::new(Some(path.clone()), true),
            journal: HostJournal::new(socket),
            ..SITE.clone()
        };
        let run = async |order: Order| {
            let (queue, _reports) = mpsc::channel(2);
            let fin = execute(&order, &site, &Groups::default(), &never(), &Memory::default(), &queue).await;
            let mut bytes = [0; 2_048];
            let length = log.recv(&mut bytes).unwrap();
            (fin, String::from_utf8_lossy(&bytes[..length]).into_owned())
        };
        let ran = folder.path().join("ran");
        let line = format!("touch {}", ran.display());
        std::fs::write(&path, format!("deny_accounts = [\"{}\"]", own_name())).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let (fin, record) = run(order(&line)).await;
        let reason = fin.reason.unwrap();
        // An ordinary account cannot write a policy that counts: everything is refused.
        let rule = if geteuid().is_root() { "(deny_accounts)" } else { "its owner is not root" };
        assert!((fin.exit_code, fin.result.as_deref()) == (Some(126), Some("")) && reason.contains(rule), "{reason}");
        assert!(record.contains("refused: ") && record.contains(rule) && record.contains(&line), "{record}");
        assert!(!ran.exists());
        if !geteuid().is_root() {
            return;
        }
        std::fs::write(&path, "").unwrap();
        let (fin, record) = run(order(&line)).await;
        assert!(fin.success && ran.exists() && !record.contains("refused"), "{record}");
        // Nothing new starts, and what runs goes on.
        let go = folder.path().join("go");
        let running = run(order(&format!("until [ -e {} ]; do sleep 0.02; done", go.display())));
        let disable = async {
            sleep(Duration::from_millis(200)).await;
            std::fs::write(folder.path().join("disabled"), "").unwrap();
            let refused = site.admit(&order("true")).unwrap_err();
            std::fs::write(&go, "").unwrap();
            refused
        };
        let ((fin, _), refused) = tokio::join!(running, disable);
        assert!(fin.success && refused.contains("takes no commands"), "{refused}");
    }

    #[tokio::test]
    async fn much_output_takes_few_calls_and_no_time_of_the_command() {
        // A service that takes 100 ms for each call: chunks of 4 KiB would take 100 s.
        let (queue, mut reports) = mpsc::channel(crate::reports::QUEUE);
        let order = order("head -c 4000000 /dev/zero | tr '\\0' a");
        let (groups, never, memory) = (Groups::default(), never(), Memory::default());
        let execute = async {
            let queue = queue;
            execute(&order, &SITE, &groups, &never, &memory, &queue).await
        };
        let service = async {
            let mut calls: u32 = 0;
            while let Some(Report::Chunk(chunk)) = reports.recv().await {
                assert!(chunk.seq == calls && chunk.content.len() <= LARGE_CHUNK_BYTES);
                calls += 1;
                sleep(Duration::from_millis(100)).await;
            }
            calls
        };
        let (fin, calls) = tokio::time::timeout(PATIENCE, async { tokio::join!(execute, service) }).await.unwrap();
        assert_eq!((fin.chunks, fin.output_bytes), (Some(calls), Some(4_000_000)));
        assert!(calls <= 120, "{calls}");
        // The calls took six seconds and more.
        assert!(fin.elapsed_time.unwrap() < 1.5, "{fin:?}");
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
        for site in sites() {
            assert_eq!(run_at(site, &order(&line), &never()).await.0.result.unwrap(), "input\nclosed\n");
            let stat = run_at(site, &order("cat /proc/$$/stat"), &never()).await.0.result.unwrap();
            let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            // State, parent, group, session.
            let pid = stat.split(' ').next().unwrap();
            assert_eq!((fields[2], fields[3]), (pid, pid));
            // No signal is blocked, unlike in its supervisor.
            let blocked = run_at(site, &order("grep ^SigBlk /proc/self/status"), &never()).await.0.result.unwrap();
            assert_eq!(blocked, "SigBlk:\t0000000000000000\n");
        }
        // Nor has a supervisor, except for the pipe in which it reports to the agent.
        let line = "ls -l /proc/$PPID/fd | grep -c -- '->'; cat /proc/$PPID/comm";
        let supervisor = run_at(&SUPERVISED, &order(line), &never()).await.0.result.unwrap();
        assert_eq!(supervisor, "1\nfarhand-command\n");
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
        let home = if nobody.dir.is_dir() { nobody.dir.clone() } else { "/".into() };
        let (uid, gid) = (nobody.uid, nobody.gid);
        let expected = format!(
            "nobody\n{uid}\n{gid}\n{gid}\n{}\nUid: {uid} {uid} {uid} {uid}\nGid: {gid} {gid} {gid} {gid}\nCapEff: 0000000000000000\n",
            home.display()
        );
        for site in sites() {
            let order = Order { user: "nobody".into(), ..order(line) };
            assert_eq!(run_at(site, &order, &never()).await.0.result.unwrap(), expected);
        }
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
        assert!(chunks.iter().all(|chunk| chunk.len() <= LARGE_CHUNK_BYTES));
        assert_eq!(fin.chunks, Some(chunks.len() as u32));
        assert!(fin.result.unwrap() == farhand_domain::output::result(&whole).0);
    }

    #[tokio::test]
    async fn output_is_sent_while_the_command_runs() {
        let directory = tempfile::tempdir().unwrap();
        let go = directory.path().join("go");
        let (queue, mut reports) = mpsc::channel(2);
        let order = order(&format!("printf a; until [ -e {} ]; do sleep 0.02; done; printf b", go.display()));
        let (groups, never, memory) = (Groups::default(), never(), Memory::default());
        let execute = execute(&order, &SITE, &groups, &never, &memory, &queue);
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
        let order = order(&format!("head -c 8000000 /dev/zero; touch {}", done.display()));
        let (groups, never, memory) = (Groups::default(), never(), Memory::default());
        let mut execute = Box::pin(execute(&order, &SITE, &groups, &never, &memory, &queue));
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
        let (queue, mut reports) = mpsc::channel(crate::reports::QUEUE);
        let groups = Groups::default();
        let execute = async {
            let queue = queue;
            execute(&endless, &SITE, &groups, &stops, &Memory::default(), &queue).await
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
        assert!(sent > most && sent <= most + 4, "{sent}");
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
        assert!(fin.elapsed_time.unwrap() >= crate::runner::group::GRACE.as_secs_f64());
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
        let runner = Runner::new(1, SITE.clone(), reports.clone(), groups.clone(), ending.clone(), Program::current());
        runner.take(numbered(0, &format!("until [ -e {} ]; do sleep 0.02; done", go.display())));
        eventually(|| !groups.ids().is_empty()).await;
        // A place in the queue becomes free when the next one starts, and that waits for the first.
        for number in 1..=QUEUE + 3 {
            runner.take(numbered(number, &format!("echo {number} >> {}", log.display())));
        }
        eventually(|| service.0.lock().unwrap().len() == 3).await;
        for (id, fin) in service.0.lock().unwrap().iter() {
            assert!(id.as_u128() > QUEUE as u128 && fin.exit_code == Some(1) && !fin.success, "{id} {fin:?}");
            assert_eq!(fin.reason.as_deref(), Some("The agent is busy: 200 commands wait already."));
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
        let runner = Runner::new(1, SITE.clone(), reports.clone(), groups.clone(), ending.clone(), Program::current());
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
    async fn killed(site: &Site, line: &str, processes: usize) -> (Fin, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let told = directory.path().join("told");
        let stops = never();
        let order = order(&line.replace("TOLD", told.to_str().unwrap()));
        let kill = async {
            eventually(|| read(&told).lines().count() >= processes).await;
            stops.killed.cancel();
        };
        let ((fin, _), ()) = tokio::join!(run_at(site, &order, &stops), kill);
        (fin, read(&told).lines().map(str::to_owned).collect())
    }

    #[tokio::test]
    async fn a_kill_ends_the_whole_group() {
        for site in sites() {
            let line = "sleep 60 & echo $! >> TOLD; echo $$ >> TOLD; echo out; wait";
            let (fin, processes) = killed(site, line, 2).await;
            assert_eq!((fin.success, fin.exit_code, fin.chunks), (false, Some(143), Some(1)));
            assert_eq!(fin.result.unwrap(), "out\n\nThe command was killed.\n");
            assert!(!processes.iter().any(|pid| is_running(pid)));
        }
    }

    #[tokio::test]
    async fn the_end_comes_when_the_last_of_the_group_is_gone() {
        // The shell goes at once, and the one in the background takes no TERM.
        let line = "(trap '' TERM; sh -c 'echo $$ >> TOLD; sleep 60; sleep 60') & echo $$ >> TOLD; wait";
        for site in sites() {
            let (fin, processes) = killed(site, line, 2).await;
            assert_eq!((fin.success, fin.exit_code), (false, Some(137)));
            assert!(!processes.iter().any(|pid| is_running(pid)));
        }
    }

    #[tokio::test]
    async fn what_is_stopped_is_ended_too() {
        for site in sites() {
            let (fin, processes) = killed(site, "echo $$ >> TOLD; kill -STOP $$; sleep 60", 1).await;
            assert_eq!(fin.exit_code, Some(143));
            assert!(!is_running(&processes[0]));
        }
    }

    #[tokio::test]
    async fn what_left_the_session_is_killed_too() {
        // Also what takes no TERM, what left the session twice, and what starts all the time.
        let lines = [
            ("setsid setsid -f sh -c 'echo $$ >> TOLD; sleep 60' & sleep 60", 143),
            ("setsid setsid -f sh -c 'echo $$ >> TOLD; trap \"\" TERM; sleep 60; sleep 60' & sleep 60", 137),
            ("while :; do setsid sh -c 'echo $$ >> TOLD; exec sleep 60' & done", 143),
        ];
        for (site, (line, code)) in sites().flat_map(|site| lines.map(|line| (site, line))) {
            let (fin, processes) = killed(site, line, 1).await;
            assert_eq!(fin.exit_code, Some(code), "{line}");
            assert!(!processes.iter().any(|pid| is_running(pid)), "{line}");
        }
    }

    #[tokio::test]
    async fn a_timeout_reaches_what_left_the_session() {
        for site in sites() {
            let directory = tempfile::tempdir().unwrap();
            let told = directory.path().join("told");
            let line = format!("setsid sh -c 'echo $$ > {}; exec sleep 60' & wait", told.display());
            let (fin, _) = run_at(site, &Order { timeout: Some(1), ..order(&line) }, &never()).await;
            assert_eq!(fin.exit_code, Some(124));
            assert!(!read(&told).is_empty() && !is_running(&read(&told)));
        }
    }

    #[tokio::test]
    async fn what_left_the_session_stays_after_a_normal_end() {
        for site in sites() {
            let directory = tempfile::tempdir().unwrap();
            let told = directory.path().join("told");
            let line = format!(
                "setsid -f sh -c 'echo $$ > {0}; exec sleep 60'; until [ -s {0} ]; do sleep 0.02; done; echo $PPID; exit 3",
                told.display()
            );
            let (fin, _) = run_at(site, &order(&line), &never()).await;
            let left = read(&told);
            assert!(fin.exit_code == Some(3) && is_running(&left), "it was killed");
            // Its supervisor, if it had one, is gone.
            let (parent, own) = (fin.result.unwrap().trim().to_owned(), std::process::id().to_string());
            assert_eq!(parent == own, site.cgroups.is_there());
            assert!(parent == own || !is_running(&parent));
            nix::sys::signal::kill(Pid::from_raw(left.parse().unwrap()), Signal::SIGKILL).unwrap();
        }
    }

    #[tokio::test]
    async fn what_is_below_a_supervisor_is_found_by_the_next_agent() {
        let directory = tempfile::tempdir().unwrap();
        let told = directory.path().join("told");
        let left = format!(
            "setsid setsid -f sh -c 'echo $$ > {}; trap \"\" TERM; sleep 60; sleep 60'; sleep 60",
            told.display()
        );
        let (order, groups) = (order(&left), Groups::default());
        let (queue, _reports) = mpsc::channel(2);
        let (never, memory) = (never(), Memory::default());
        let begun = async {
            eventually(|| !read(&told).is_empty()).await;
            groups.ids()[0]
        };
        // The agent does not get to see the end.
        let id = tokio::select! {
            _ = execute(&order, &SUPERVISED, &groups, &never, &memory, &queue) => panic!("it has ended"),
            id = begun => id,
        };
        let process = Identity::of(id.as_raw()).unwrap().supervising(true);
        assert!(end_leftover(Some(process), None, &groups).await);
        assert!(!is_running(&read(&told)) && !is_running(&id.to_string()));
    }

    #[tokio::test]
    async fn what_a_command_left_is_killed_while_its_output_is_read() {
        // On a busy machine what it left can be quiet for so long that the command is over before it is killed.
        for site in sites() {
            let mut killed = false;
            for _ in 0..5 {
                killed = killed || kills_what_a_command_left(site).await;
            }
            assert!(killed, "it was over before it was killed, each time");
        }
    }

    /// Kills what a command left while its output is read. False: there was nothing to kill any more.
    async fn kills_what_a_command_left(site: &Site) -> bool {
        let directory = tempfile::tempdir().unwrap();
        let told = directory.path().join("told");
        let (stops, groups, memory) = (never(), Groups::default(), Memory::default());
        // It writes all the time, so the pipe is never quiet.
        let line = "echo $$ > TOLD; setsid sh -c 'echo $$ >> TOLD; while :; do echo x; sleep 0.1; done' & exit 0";
        let order = order(&line.replace("TOLD", told.to_str().unwrap()));
        let (queue, mut reports) = mpsc::channel(2);
        let execute = async {
            let queue = queue;
            execute(&order, site, &groups, &stops, &memory, &queue).await
        };
        let kill = async {
            eventually(|| read(&told).lines().count() == 2).await;
            eventually(|| !is_running(read(&told).lines().next().unwrap())).await;
            stops.killed.cancel();
            while reports.recv().await.is_some() {}
        };
        let (fin, ()) = tokio::time::timeout(PATIENCE, async { tokio::join!(execute, kill) }).await.unwrap();
        if fin.exit_code == Some(0) {
            return false;
        }
        assert_eq!((fin.success, fin.exit_code), (false, Some(143)));
        assert!(!is_running(read(&told).lines().nth(1).unwrap()));
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
        let mut execute = Box::pin(execute(&order, &SITE, &groups, &stops, &memory, &queue));
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
        for (line, chunks) in [("true", 0..=0), ("echo x", 1..=1), ("head -c 10000 /dev/zero", 2..=3)] {
            let (fin, sent) = run(&order(line)).await;
            assert_eq!(fin.chunks, Some(sent.len() as u32), "{line}");
            assert!(chunks.contains(&sent.len()), "{line}: {}", sent.len());
        }
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
            Self::at(&SITE, memory)
        }

        fn at(site: &Site, memory: Memory) -> Self {
            let service = Service::default();
            let reports = Reports::new(service.clone(), memory, CancellationToken::new());
            let (groups, ending) = (Groups::default(), Ending::default());
            let runner =
                Runner::new(1, site.clone(), reports.clone(), groups.clone(), ending.clone(), Program::current());
            Self { service, reports, runner, groups, ending }
        }

        fn ends(&self) -> Vec<(u128, Fin)> {
            self.service.0.lock().unwrap().iter().map(|(id, fin)| (id.as_u128(), fin.clone())).collect()
        }

        async fn ended(&self, count: usize) -> Vec<(u128, i64, String)> {
            eventually(|| self.ends().len() >= count).await;
            let tell = |(id, fin): (u128, Fin)| {
                let text = fin.reason.or(fin.result).unwrap();
                (id, fin.exit_code.unwrap(), text)
            };
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
        for site in sites() {
            let directory = tempfile::tempdir().unwrap();
            let (memory, _) = Memory::open(directory.path()).unwrap();
            let host = Host::at(site, memory);
            let journal = directory.path().join("commands.journal");
            // What a process finds that begins with looking: itself, or its supervisor.
            let noted = if site.cgroups.is_there() { "$$" } else { "$PPID" };
            let line = format!("exec grep -c \"taken\\|\\\"pid\\\":{noted},\" {}", journal.display());
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
