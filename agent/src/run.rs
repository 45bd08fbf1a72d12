//! Running commands: the queue, the processes and their ends (agent-protocol 3, 4 and the last paragraph of 6).
//!
//! A command is a process in a session of its own, with `/dev/null` as its input and one pipe for both of its outputs.
//! It ends when that process has exited and its pipe is drained. What it left in the background may hold the pipe: it
//! does not hold the command. After the exit the pipe is read to its end, or until nothing came for [`QUIET`], or until
//! it is empty after [`LINGER`]; then the pipe is closed, and a process that still writes into it gets SIGPIPE.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farhand_domain::wire::{Chunk, Fin, Order};
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::account::{self, Account, Own};
use crate::output::{Chunker, Decoder, Kept};
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
/// How long a process has from TERM to KILL.
pub const GRACE: Duration = Duration::from_secs(5);
/// How many bytes of a pipe are read at once: what fits into it.
const READ: usize = 64 * 1024;
/// Where programs are looked for.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The exit code of a command that the agent would not run, or that could not be executed; as of a shell.
const REFUSED: i64 = 126;
/// The exit code of a command that is not there; as of a shell.
const NOT_FOUND: i64 = 127;

/// The process groups that run.
#[derive(Clone, Default)]
pub struct Groups(Arc<Mutex<BTreeSet<Pid>>>);

/// A process group that runs, until dropped.
struct Group {
    id: Pid,
    groups: Groups,
}

impl Groups {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, id: Pid) -> Group {
        self.lock().insert(id);
        Group { id, groups: self.clone() }
    }

    /// Kills all of them, at once and without waiting.
    pub fn kill(&self) {
        for id in self.lock().iter() {
            let _ = killpg(*id, Signal::SIGKILL);
        }
    }
}

impl Group {
    /// Sends a signal to each process of the group. That none is left is no error.
    fn signal(&self, signal: Signal) {
        let _ = killpg(self.id, signal);
    }

    /// Whether any process of the group is left.
    fn is_alive(&self) -> bool {
        killpg(self.id, None) != Err(Errno::ESRCH)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.groups.lock().remove(&self.id);
    }
}

/// When the agent ends: first it takes no more commands, later those that still run are stopped.
#[derive(Clone, Default)]
pub struct Ending {
    /// Cancelled when no more commands are taken.
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

/// Takes commands and runs them.
pub struct Runner<T> {
    known: Mutex<Known>,
    reports: Reports<T>,
    queue: mpsc::Sender<(Order, Reporter)>,
    tasks: TaskTracker,
}

impl<T: Transport> Runner<T> {
    /// A runner of at most `max_running` commands at once.
    pub fn new(max_running: usize, own: Own, reports: Reports<T>, groups: Groups, ending: Ending) -> Self {
        let (queue, mut waiting) = mpsc::channel::<(Order, Reporter)>(QUEUE);
        let tasks = TaskTracker::new();
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
                let (order, reporter) = tokio::select! {
                    biased;
                    () = ending.draining.cancelled() => break,
                    next = waiting.recv() => match next {
                        Some(next) => next,
                        None => break,
                    },
                };
                let (groups, stopping) = (groups.clone(), ending.stopping.clone());
                running.spawn(async move {
                    let fin = execute(&order, own, &groups, &stopping, reporter.queue()).await;
                    // The place is for the process, and not for its reports.
                    drop(place);
                    end(reporter, &order, fin).await;
                });
            }
            waiting.close();
            while let Some((order, reporter)) = waiting.recv().await {
                end(reporter, &order, stopped_before()).await;
            }
        });
        Self { known: Mutex::default(), reports, queue, tasks }
    }

    /// Takes a command: acknowledges it and runs it, now or when others have ended. One that finds the queue full, or
    /// the agent about to exit, fails. One that came before is dropped: nothing is run twice.
    pub fn take(&self, order: Order) {
        if !self.known.lock().unwrap_or_else(PoisonError::into_inner).is_new(order.id) {
            log::warn!("command {}: it came before, and is not run again", order.id);
            return;
        }
        let reporter = self.reports.begin(order.id);
        let (fin, (order, reporter)) = match self.queue.try_send((order, reporter)) {
            Ok(()) => return,
            Err(mpsc::error::TrySendError::Full(back)) => {
                (failure(1, format!("The agent is busy: {QUEUE} commands wait already.")), back)
            }
            Err(mpsc::error::TrySendError::Closed(back)) => (stopped_before(), back),
        };
        self.tasks.spawn(async move { end(reporter, &order, fin).await });
    }

    /// Waits until no command runs or waits. For the time after draining began.
    pub async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
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
        chunks: None,
        output_bytes: None,
    }
}

fn stopped_before() -> Fin {
    failure(143, "The agent was stopped before the command ran.")
}

/// Runs a command and tells its end. Chunks of its output go to `chunks` meanwhile. When `stopping` is cancelled, its
/// process group is ended: TERM, and KILL after [`GRACE`].
pub async fn execute(
    order: &Order,
    own: Own,
    groups: &Groups,
    stopping: &CancellationToken,
    chunks: &mpsc::Sender<Report>,
) -> Fin {
    if stopping.is_cancelled() {
        return stopped_before();
    }
    let began = Instant::now();
    let for_start = order.clone();
    // Account databases and home directories may be far away, and must not make everything else wait.
    let started = tokio::task::spawn_blocking(move || start(&for_start, own)).await;
    let (mut child, output) = match started {
        Ok(Ok(started)) => started,
        Ok(Err(refusal)) => return refusal,
        Err(_) => return failure(REFUSED, "The command could not be started."),
    };
    let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) else {
        return failure(REFUSED, "The command could not be started.");
    };
    // It called setsid, so its process group has its number.
    let group = groups.enter(Pid::from_raw(id));
    let exited = CancellationToken::new();
    let supervise = async {
        let ended = supervise(&mut child, &group, stopping).await;
        exited.cancel();
        ended
    };
    let (ended, mut kept) = tokio::join!(supervise, pump(output, chunks, &exited, stopping));
    let (exit_code, note) = match ended {
        Ended::ByItself(Ok(status)) => (exit_code(status), None),
        Ended::ByItself(Err(error)) => (REFUSED, Some(format!("The exit code is not known: {error}."))),
        Ended::Stopped { killed } => (if killed { 137 } else { 143 }, Some("The agent was stopped.".to_owned())),
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
        chunks: None,
        output_bytes: Some(output_bytes),
    }
}

/// What a shell would call the end of a process.
fn exit_code(status: ExitStatus) -> i64 {
    let signal = || status.signal().map_or(1, |signal| 128 + i64::from(signal));
    status.code().map_or_else(signal, i64::from)
}

/// How a process came to its end.
enum Ended {
    /// As it does.
    ByItself(io::Result<ExitStatus>),
    /// Because the agent was stopped.
    Stopped {
        /// Whether it took a KILL.
        killed: bool,
    },
}

/// Waits for a process to exit; when `stopping` is cancelled, until its whole group is gone.
async fn supervise(child: &mut Child, group: &Group, stopping: &CancellationToken) -> Ended {
    tokio::select! {
        biased;
        status = child.wait() => return Ended::ByItself(status),
        () = stopping.cancelled() => {}
    }
    group.signal(Signal::SIGTERM);
    let gone = async {
        let _ = child.wait().await;
        while group.is_alive() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(GRACE, gone).await.is_ok() {
        return Ended::Stopped { killed: false };
    }
    group.signal(Signal::SIGKILL);
    let _ = child.wait().await;
    Ended::Stopped { killed: true }
}

/// Reads the output to its end, sends it in chunks, and tells what is kept of it.
async fn pump(
    mut output: pipe::Receiver,
    chunks: &mpsc::Sender<Report>,
    exited: &CancellationToken,
    stopping: &CancellationToken,
) -> Kept {
    let mut bytes = vec![0; READ];
    let mut text = String::new();
    let (mut decoder, mut chunker, mut kept) = (Decoder::default(), Chunker::default(), Kept::default());
    let mut seq = 0;
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
                } else if exited.is_cancelled() {
                    until = Some(now + LINGER);
                    quiet_at = now + QUIET;
                }
            }
            () = exited.cancelled(), if until.is_none() => {
                let now = Instant::now();
                (until, quiet_at) = (Some(now + LINGER), now + QUIET);
                continue;
            }
            () = sleep_until(quiet_at), if until.is_some() => break,
            () = stopping.cancelled(), if until.is_some_and(|until| until > Instant::now()) => {
                // There is no time to wait for what others may still write.
                let now = Instant::now();
                (until, quiet_at) = (Some(now), now + FLUSH);
                continue;
            }
            () = sleep_until(flush_at), if chunker.is_waiting() => is_flush = true,
        }
        while let Some(content) = chunker.next(is_flush) {
            send(chunks, &mut seq, content, stopping).await;
        }
    }
    decoder.finish(&mut text);
    chunker.push(&text);
    kept.push(&text);
    while let Some(content) = chunker.next(true) {
        send(chunks, &mut seq, content, stopping).await;
    }
    kept
}

/// Queues a chunk, when there is room for it. Once the agent is being stopped, it is dropped rather than waited for.
async fn send(chunks: &mpsc::Sender<Report>, seq: &mut u32, content: String, stopping: &CancellationToken) {
    let chunk = Report::Chunk(Chunk { seq: *seq, content });
    *seq += 1;
    tokio::select! {
        biased;
        room = chunks.reserve() => if let Ok(room) = room {
            room.send(chunk);
        },
        () = stopping.cancelled() => {}
    }
}

/// Starts the process of a command.
///
/// # Errors
/// The end of a command that cannot be run.
fn start(order: &Order, own: Own) -> Result<(Child, pipe::Receiver), Fin> {
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
        "internal" => return Err(failure(NOT_FOUND, "This agent has no such built-in.")),
        _ => return Err(failure(REFUSED, "This agent has no such shell.")),
    };
    let account = account::resolve(&order.user, &order.group, own).map_err(|why| failure(REFUSED, why))?;
    set_environment(&mut command, &account, order).map_err(|why| failure(REFUSED, why))?;
    spawn(command, account).map_err(|error| match error.kind() {
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
fn spawn(mut command: Command, account: Account) -> io::Result<(Child, pipe::Receiver)> {
    // One pipe, as two would lose the order of what comes out of them.
    let (reader, writer) = io::pipe()?;
    let output = pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let home = CString::new(account.home.as_os_str().as_bytes()).unwrap_or_default();
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
        run_until(order, &CancellationToken::new()).await
    }

    async fn run_until(order: &Order, stopping: &CancellationToken) -> (Fin, Vec<String>) {
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
            execute(order, Own::current(), &Groups::default(), stopping, &queue).await
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
        let internal = Order { shell: "internal".into(), ..order("upgrade") };
        assert_eq!(refusal(&internal).await, (127, "This agent has no such built-in.".to_owned()));
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
        let (groups, never) = (Groups::default(), CancellationToken::new());
        let execute = execute(&order, Own::current(), &groups, &never, &queue);
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
        let (groups, never) = (Groups::default(), CancellationToken::new());
        let mut execute = Box::pin(execute(&order, Own::current(), &groups, &never, &queue));
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
        let stopping = CancellationToken::new();
        let endless = order("yes");
        let (queue, mut reports) = mpsc::channel(16);
        let groups = Groups::default();
        let execute = async {
            let queue = queue;
            execute(&endless, Own::current(), &groups, &stopping, &queue).await
        };
        let most = farhand_domain::output::MAX_KEPT as usize;
        let sent = async {
            let mut sent = 0;
            while let Some(Report::Chunk(chunk)) = reports.recv().await {
                sent += chunk.content.len();
                if sent > most {
                    // From here on it is read, and thrown away.
                    stopping.cancel();
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
        let (stopping, order) = (CancellationToken::new(), order(&line));
        let stop = async {
            eventually(|| pids.iter().all(|pid| !read(pid).is_empty())).await;
            stopping.cancel();
        };
        let ((fin, _), ()) = tokio::join!(run_until(&order, &stopping), stop);
        assert!(!fin.success);
        // 137 where nobody waits for orphans, as in many containers: then they look alive until the KILL.
        assert!(matches!(fin.exit_code, Some(143 | 137)), "{fin:?}");
        assert!(pids.iter().all(|pid| !is_running(&read(pid))));
    }

    #[tokio::test]
    async fn what_does_not_end_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let ready = directory.path().join("ready");
        let order = order(&format!("trap '' TERM; echo x > {}; while :; do sleep 1; done", ready.display()));
        let stopping = CancellationToken::new();
        let stop = async {
            eventually(|| !read(&ready).is_empty()).await;
            stopping.cancel();
        };
        let ((fin, _), ()) = tokio::join!(run_until(&order, &stopping), stop);
        assert_eq!((fin.success, fin.exit_code), (false, Some(137)));
        assert!(fin.elapsed_time.unwrap() >= GRACE.as_secs_f64());
    }

    /// Takes every report, and keeps the fins.
    #[derive(Clone, Default)]
    struct Service(Arc<Mutex<Vec<(Uuid, Fin)>>>);

    impl Transport for Service {
        async fn post(&self, path: &str, body: hyper::body::Bytes, _: Duration) -> Outcome {
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
        let reports = Reports::new(service.clone(), CancellationToken::new());
        let (groups, ending) = (Groups::default(), Ending::default());
        let runner = Runner::new(1, Own::current(), reports.clone(), groups.clone(), ending.clone());
        runner.take(numbered(0, &format!("until [ -e {} ]; do sleep 0.02; done", go.display())));
        eventually(|| !groups.lock().is_empty()).await;
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
        let reports = Reports::new(service.clone(), CancellationToken::new());
        let (groups, ending) = (Groups::default(), Ending::default());
        let runner = Runner::new(1, Own::current(), reports.clone(), groups.clone(), ending.clone());
        runner.take(numbered(1, &format!("until [ -e {} ]; do sleep 0.02; done", go.display())));
        eventually(|| !groups.lock().is_empty()).await;
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
}
