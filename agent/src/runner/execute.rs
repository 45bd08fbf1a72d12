//! Follows one command from its start to its end.

use std::future::pending;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use farhand_domain::agent::wire::{AgentCommand, Fin};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::journal::writer::JournalWriter;
use crate::reports::Report;
use crate::runner::fin::{
    KILLED, REFUSED, TERMINATED, TIMED_OUT, failure, killed_before_start, stopped_before_start,
};
use crate::runner::group::{Group, Groups};
use crate::runner::host_settings::HostSettings;
use crate::runner::pump::{PumpControl, pump};
use crate::runner::spawn::{SpawnedCommand, child_id};
use crate::runner::start::start;

/// The time limit for queuing the output of a killed command. Output that is not queued by then is
/// dropped.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);

/// Signals that end a command early.
pub struct StopSignals {
    /// The agent stops all commands.
    pub stopping: CancellationToken,
    /// A client asked to kill the command.
    pub killed: CancellationToken,
}

/// The reason why a command was ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StopReason {
    Stopping,
    Killed,
    /// The command's timeout, in seconds, has passed.
    TimedOut(u64),
}

impl StopSignals {
    /// Waits until a signal is cancelled or `limit` seconds have passed.
    async fn wait(&self, limit: Option<u64>) -> StopReason {
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
            () = self.killed.cancelled() => StopReason::Killed,
            () = self.stopping.cancelled() => StopReason::Stopping,
            seconds = timed_out => StopReason::TimedOut(seconds),
        }
    }
}

impl StopReason {
    /// The exit code of a command that was ended for this reason, and a line for its result.
    /// `is_killed` is true if TERM did not end the command and KILL was sent.
    fn exit_code_and_note(self, is_killed: bool) -> (i64, Option<String>) {
        let by_signal = if is_killed { KILLED } else { TERMINATED };
        match self {
            Self::Stopping => (by_signal, Some("The agent was stopped.".to_owned())),
            Self::Killed => (by_signal, Some("The command was killed.".to_owned())),
            Self::TimedOut(seconds) => (
                TIMED_OUT,
                Some(format!("The command was killed: its timeout of {seconds} s was over.")),
            ),
        }
    }
}

/// Runs a command and returns its fin. Queues its output in `chunks`. When one of `stops` is
/// cancelled or the order's timeout has passed, ends all processes of the command: it sends TERM,
/// and KILL after [`crate::runner::group::KILL_DELAY`].
pub async fn execute(
    order: &AgentCommand,
    host: &HostSettings,
    groups: &Groups,
    stops: &StopSignals,
    journal: &JournalWriter,
    chunks: &mpsc::Sender<Report>,
) -> Fin {
    if stops.killed.is_cancelled() {
        return killed_before_start();
    }
    if stops.stopping.is_cancelled() {
        return stopped_before_start();
    }
    let limit = match order.timeout.map(u64::try_from).transpose() {
        Ok(limit) if limit != Some(0) => limit,
        _ => return failure(REFUSED, "The timeout is not a number of seconds above 0."),
    };
    let began = Instant::now();
    let SpawnedCommand { mut child, output, containment, script: _script } =
        match start(order, host, journal).await {
            Ok(started) => started,
            Err(refusal) => return refusal,
        };
    let Some(id) = child_id(&child) else {
        return failure(REFUSED, "The command could not be started.");
    };
    // The process called setsid, so its number is also the number of its process group.
    let group = groups.add(id, containment);
    let control = PumpControl {
        exited: CancellationToken::new(),
        no_linger: stops.stopping.child_token(),
        dropping: stops.stopping.child_token(),
        finished: CancellationToken::new(),
    };
    let wait_or_end = async {
        let (reason, ended_at) = wait_or_end(&group, stops, limit, &control).await;
        // The child is reaped only now, because before that no other process can get its number.
        (group.status(&mut child).await, reason, ended_at)
    };
    let (ended, (mut kept, count)) = tokio::join!(wait_or_end, pump(output, chunks, &control));
    let (status, reason, ended_at) = ended;
    let (exit_code, note) = match (status, reason) {
        (_, Some((reason, is_killed))) => reason.exit_code_and_note(is_killed),
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
        ..Fin::default()
    }
}

/// The exit code that a shell would report.
fn exit_code(status: ExitStatus) -> i64 {
    let signal = || status.signal().map_or(1, |signal| 128 + i64::from(signal));
    status.code().map_or_else(signal, i64::from)
}

/// Waits until a command has exited and its output is queued, or ends its processes early. If they
/// were ended early, returns the reason and whether KILL was needed. Also returns the time when the
/// command ended, which can be before its output is queued.
async fn wait_or_end(
    group: &Group,
    stops: &StopSignals,
    limit: Option<u64>,
    control: &PumpControl,
) -> (Option<(StopReason, bool)>, Instant) {
    let reason = tokio::select! {
        biased;
        () = group.exited() => None,
        reason = stops.wait(limit) => Some(reason),
    };
    let reason = match reason {
        Some(reason) => reason,
        None => {
            let ended_at = Instant::now();
            control.exited.cancel();
            // The command does not wait for background processes to exit. But while their output is
            // read, a kill ends them.
            tokio::select! {
                biased;
                () = control.finished.cancelled() => return (None, ended_at),
                () = stops.killed.cancelled() => {}
            }
            if !group.runs().await {
                control.no_linger.cancel();
                return (None, ended_at);
            }
            StopReason::Killed
        }
    };
    let is_killed = group.end().await;
    let ended_at = Instant::now();
    control.exited.cancel();
    control.no_linger.cancel();
    tokio::select! {
        () = control.finished.cancelled() => {}
        () = sleep(OUTPUT_TIMEOUT) => control.dropping.cancel(),
    }
    (Some((reason, is_killed)), ended_at)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nix::sys::signal::Signal;
    use nix::unistd::Pid;

    use super::*;
    use crate::runner::testing::*;

    #[tokio::test]
    async fn exit_codes_are_the_same_as_a_shells() {
        assert_eq!(result("exit 0").await, (0, String::new()));
        assert_eq!(result("echo x; exit 3").await, (3, "x\n".to_owned()));
        assert_eq!(result("kill -9 $$").await.0, 137);
        assert_eq!(result("kill -TERM $$").await.0, 143);
        assert_eq!(result("no-such-program-1").await.0, 127);
        assert_eq!(result("").await.0, 0);
    }

    #[tokio::test]
    async fn a_supervisor_does_not_change_the_fin() {
        let argv = |word: &str| AgentCommand { argv: Some(vec![word.to_owned()]), ..order("") };
        let orders = [
            order("exit 0"),
            order("echo x; exit 3"),
            order("kill -9 $$"),
            order("kill -TERM $$"),
            // A signal number without a name.
            order("kill -40 $$"),
            order("no-such-program-1"),
            argv("no-such-program-1"),
            argv("/etc/passwd"),
            AgentCommand { cwd: Some("/no/such/directory".to_owned()), ..order("true") },
            order("sleep 3 & exit 4"),
        ];
        for order in orders {
            let ends = [&*HOST, &*SUPERVISED].map(async |host| {
                let Fin { success, exit_code, result, reason, .. } =
                    run_at(host, &order, &never()).await.0;
                (success, exit_code, result, reason)
            });
            let [one, other] = ends;
            assert_eq!(one.await, other.await, "{order:?}");
        }
    }

    #[tokio::test]
    async fn stopping_ends_the_whole_group() {
        let directory = tempfile::tempdir().unwrap();
        let pids = [directory.path().join("child"), directory.path().join("shell")];
        let line = format!(
            "sleep 60 & echo $! > {}; echo $$ > {}; wait",
            pids[0].display(),
            pids[1].display()
        );
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
    async fn a_command_that_ignores_term_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let ready = directory.path().join("ready");
        let order = order(&format!(
            "trap '' TERM; echo x > {}; while :; do sleep 1; done",
            ready.display()
        ));
        let stops = never();
        let stop = async {
            eventually(|| !read(&ready).is_empty()).await;
            stops.stopping.cancel();
        };
        let ((fin, _), ()) = tokio::join!(run_until(&order, &stops), stop);
        assert_eq!((fin.success, fin.exit_code), (false, Some(137)));
        assert!(fin.elapsed_time.unwrap() >= crate::runner::group::KILL_DELAY.as_secs_f64());
    }

    /// Runs a line, and kills the command after it has written `processes` process numbers to a
    /// file. Returns the fin and the process numbers.
    async fn killed(host: &HostSettings, line: &str, processes: usize) -> (Fin, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let pids = directory.path().join("pids");
        let stops = never();
        let order = order(&line.replace("PIDS", pids.to_str().unwrap()));
        let kill = async {
            eventually(|| read(&pids).lines().count() >= processes).await;
            stops.killed.cancel();
        };
        let ((fin, _), ()) = tokio::join!(run_at(host, &order, &stops), kill);
        (fin, read(&pids).lines().map(str::to_owned).collect())
    }

    #[tokio::test]
    async fn a_kill_ends_the_whole_group() {
        for host in hosts() {
            let line = "sleep 60 & echo $! >> PIDS; echo $$ >> PIDS; echo out; wait";
            let (fin, processes) = killed(host, line, 2).await;
            assert_eq!((fin.success, fin.exit_code, fin.chunks), (false, Some(143), Some(1)));
            assert_eq!(fin.result.unwrap(), "out\n\nThe command was killed.\n");
            assert!(!processes.iter().any(|pid| is_running(pid)));
        }
    }

    #[tokio::test]
    async fn a_killed_command_ends_with_its_last_process() {
        // The shell exits immediately. The background process ignores TERM.
        let line =
            "(trap '' TERM; sh -c 'echo $$ >> PIDS; sleep 60; sleep 60') & echo $$ >> PIDS; wait";
        for host in hosts() {
            let (fin, processes) = killed(host, line, 2).await;
            assert_eq!((fin.success, fin.exit_code), (false, Some(137)));
            assert!(!processes.iter().any(|pid| is_running(pid)));
        }
    }

    #[tokio::test]
    async fn a_kill_ends_stopped_processes() {
        for host in hosts() {
            let (fin, processes) =
                killed(host, "echo $$ >> PIDS; kill -STOP $$; sleep 60", 1).await;
            assert_eq!(fin.exit_code, Some(143));
            assert!(!is_running(&processes[0]));
        }
    }

    #[tokio::test]
    async fn a_kill_ends_processes_that_left_the_session() {
        // The processes leave the session twice, ignore TERM too, or are started in an endless
        // loop.
        let lines = [
            ("setsid setsid -f sh -c 'echo $$ >> PIDS; sleep 60' & sleep 60", 143),
            (
                "setsid setsid -f sh -c 'echo $$ >> PIDS; trap \"\" TERM; sleep 60; sleep 60' & sleep 60",
                137,
            ),
            ("while :; do setsid sh -c 'echo $$ >> PIDS; exec sleep 60' & done", 143),
        ];
        for (host, (line, code)) in hosts().flat_map(|host| lines.map(|line| (host, line))) {
            let (fin, processes) = killed(host, line, 1).await;
            assert_eq!(fin.exit_code, Some(code), "{line}");
            assert!(!processes.iter().any(|pid| is_running(pid)), "{line}");
        }
    }

    #[tokio::test]
    async fn a_timeout_ends_processes_that_left_the_session() {
        for host in hosts() {
            let directory = tempfile::tempdir().unwrap();
            let pids = directory.path().join("pids");
            let line = format!("setsid sh -c 'echo $$ > {}; exec sleep 60' & wait", pids.display());
            let (fin, _) =
                run_at(host, &AgentCommand { timeout: Some(1), ..order(&line) }, &never()).await;
            assert_eq!(fin.exit_code, Some(124));
            assert!(!read(&pids).is_empty() && !is_running(&read(&pids)));
        }
    }

    #[tokio::test]
    async fn processes_that_left_the_session_survive_a_normal_end() {
        for host in hosts() {
            let directory = tempfile::tempdir().unwrap();
            let pids = directory.path().join("pids");
            let line = format!(
                "setsid -f sh -c 'echo $$ > {0}; exec sleep 60'; until [ -s {0} ]; do sleep 0.02; done; echo $PPID; exit 3",
                pids.display()
            );
            let (fin, _) = run_at(host, &order(&line), &never()).await;
            let left = read(&pids);
            assert!(fin.exit_code == Some(3) && is_running(&left), "it was killed");
            // The command's supervisor, if it had one, has exited.
            let (parent, own) =
                (fin.result.unwrap().trim().to_owned(), std::process::id().to_string());
            assert_eq!(parent == own, host.cgroups.is_available());
            assert!(parent == own || !is_running(&parent));
            nix::sys::signal::kill(Pid::from_raw(left.parse().unwrap()), Signal::SIGKILL).unwrap();
        }
    }

    #[tokio::test]
    async fn a_kill_ends_background_processes_that_still_write() {
        // On a busy machine, the background process can be silent long enough for the command to
        // end before the kill.
        for host in hosts() {
            let mut killed = false;
            for _ in 0..5 {
                killed = killed || kills_background_process(host).await;
            }
            assert!(killed, "the command ended before the kill each time");
        }
    }

    /// Kills a command's background process while its output is read. Returns false if the command
    /// ended before the kill.
    async fn kills_background_process(host: &HostSettings) -> bool {
        let directory = tempfile::tempdir().unwrap();
        let pids = directory.path().join("pids");
        let (stops, groups, journal) = (never(), Groups::default(), JournalWriter::default());
        // The background process writes all the time, so the pipe is never silent for long.
        let line = "echo $$ > PIDS; setsid sh -c 'echo $$ >> PIDS; while :; do echo x; sleep 0.1; done' & exit 0";
        let order = order(&line.replace("PIDS", pids.to_str().unwrap()));
        let (queue, mut reports) = mpsc::channel(2);
        let execute = async {
            let queue = queue;
            execute(&order, host, &groups, &stops, &journal, &queue).await
        };
        let kill = async {
            eventually(|| read(&pids).lines().count() == 2).await;
            eventually(|| !is_running(read(&pids).lines().next().unwrap())).await;
            stops.killed.cancel();
            while reports.recv().await.is_some() {}
        };
        let (fin, ()) =
            tokio::time::timeout(PATIENCE, async { tokio::join!(execute, kill) }).await.unwrap();
        if fin.exit_code == Some(0) {
            return false;
        }
        assert_eq!((fin.success, fin.exit_code), (false, Some(143)));
        assert!(!is_running(read(&pids).lines().nth(1).unwrap()));
        true
    }

    /// The number of bytes that a process has written.
    fn written(pid: &str) -> u64 {
        let io = std::fs::read_to_string(format!("/proc/{}/io", pid.trim())).unwrap_or_default();
        let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
        line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
    }

    #[tokio::test]
    async fn a_kill_works_while_no_output_is_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let pids = directory.path().join("pids");
        let (stops, groups, journal) = (never(), Groups::default(), JournalWriter::default());
        let order = order(&format!("echo $$ > {}; exec yes", pids.display()));
        let (queue, mut reports) = mpsc::channel(2);
        let mut execute = Box::pin(execute(&order, &HOST, &groups, &stops, &journal, &queue));
        let kill = async {
            eventually(|| !read(&pids).is_empty()).await;
            // More output than fits into the queue, so that some output is unsent.
            eventually(|| queue.capacity() == 0 && written(&read(&pids)) > 16 * 1024).await;
            stops.killed.cancel();
            eventually(|| !is_running(&read(&pids))).await;
        };
        tokio::select! { _ = &mut execute => panic!("it ended although its output was unsent"), () = kill => {} }
        // Output that does not fit into the queue is dropped after [`OUTPUT_TIMEOUT`] and is not
        // counted.
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
        let pids = directory.path().join("pids");
        let line =
            format!("trap '' TERM; echo $$ >> {}; while :; do sleep 1; done", pids.display());
        let (fin, _) = run(&AgentCommand { timeout: Some(1), ..order(&line) }).await;
        assert_eq!((fin.success, fin.exit_code), (false, Some(124)));
        assert_eq!(fin.result.unwrap(), "\nThe command was killed: its timeout of 1 s was over.\n");
        assert!(!is_running(&read(&pids)));
        for timeout in [0, -1, i64::MIN] {
            assert_eq!(
                refusal(&AgentCommand { timeout: Some(timeout), ..order("true") }).await.0,
                126
            );
        }
        let (fin, _) = run(&AgentCommand { timeout: Some(i64::MAX), ..order("echo x") }).await;
        assert_eq!(fin.result.unwrap(), "x\n");
    }
}
