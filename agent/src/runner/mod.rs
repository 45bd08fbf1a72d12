//! Runs commands: the queue, the processes and their final reports ("fins", agent-protocol 3, 4 and
//! 6).
//!
//! A command is a process in its own session, with one pipe for stdout and stderr. It ends when the
//! process has exited and the pipe is drained. A background process may keep the pipe open, but
//! does not delay the end: `pump.rs` stops reading soon after the exit. A process that writes later
//! gets SIGPIPE.
//!
//! A killed or timed-out command ends when none of its processes runs, including background
//! processes. The agent finds these processes in a control group (`cgroup.rs`). If it cannot create
//! one, it finds them as descendants of a supervisor (`supervisor.rs`).

pub mod builtins;
pub mod cgroup;
mod environment;
mod execute;
mod fin;
mod gate;
pub mod group;
pub mod host_settings;
mod leftover;
mod output;
pub mod policy;
mod pump;
mod queue;
mod script;
mod spawn;
mod start;
mod supervisor;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use farhand_domain::agent::wire::{
    AgentCommand, FEATURE_ARGV, FEATURE_CWD, FEATURE_KILL, FEATURE_REPLAY, FEATURE_SCRIPT,
    FEATURE_STDIN, Fin,
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::connection::websocket::CommandHandler;
use crate::journal::file::Stage;
use crate::journal::writer::Written;
use crate::reports::{Reporter, Reports, Transport};
use crate::runner::execute::{StopSignals, execute};
use crate::runner::fin::{
    KILLED, REFUSED, failure, killed_before_start, lost, stopped_before_start,
};
use crate::runner::group::Groups;
use crate::runner::host_settings::HostSettings;
use crate::runner::leftover::kill_leftover;
use crate::runner::queue::{Job, MAX_WAITING, Queue};
use crate::runner::script::ScriptFile;
use crate::upgrade::Upgrader;

/// Signals for the steps of the agent's shutdown, in order.
#[derive(Clone, Default)]
pub struct Shutdown {
    /// Requests a restart. Cancelled after the fin of a built-in that restarts the agent is queued.
    pub restarting: CancellationToken,
    /// Disconnects from the service. Commands that the service has already sent are still accepted.
    pub leaving: CancellationToken,
    /// Makes waiting and new commands fail instead of starting.
    pub draining: CancellationToken,
    /// Stops running commands.
    pub stopping: CancellationToken,
}

/// Accepts commands and runs them.
pub struct Runner<T> {
    queue: Arc<Queue>,
    reports: Reports<T>,
    groups: Groups,
    tasks: TaskTracker,
    upgrader: Arc<Upgrader>,
    host: Arc<HostSettings>,
    restarting: CancellationToken,
}

impl<T: Transport> Runner<T> {
    /// Creates a runner that runs at most `max_running` commands concurrently. The built-ins
    /// `restart` and `upgrade` use `upgrader`.
    pub fn new(
        max_running: usize,
        host: HostSettings,
        reports: Reports<T>,
        groups: Groups,
        shutdown: Shutdown,
        upgrader: Upgrader,
    ) -> Self {
        let queue = Arc::new(Queue::default());
        let host = Arc::new(host);
        let tasks = TaskTracker::new();
        let runner = Self {
            queue: queue.clone(),
            reports,
            groups: groups.clone(),
            tasks: tasks.clone(),
            upgrader: Arc::new(upgrader),
            host: host.clone(),
            restarting: shutdown.restarting.clone(),
        };
        let journal = runner.reports.journal().clone();
        let running = tasks.clone();
        tasks.spawn(async move {
            let slots = Arc::new(Semaphore::new(max_running));
            loop {
                // Waits for a free slot before it takes a command, so that waiting commands remain
                // in the queue, in order.
                let slot = tokio::select! {
                    biased;
                    () = shutdown.draining.cancelled() => break,
                    slot = slots.clone().acquire_owned() => slot,
                };
                let Job { order, reporter, written, killed } = tokio::select! {
                    biased;
                    () = shutdown.draining.cancelled() => break,
                    job = queue.next() => job,
                };
                let (queue, groups, journal, host) =
                    (queue.clone(), groups.clone(), journal.clone(), host.clone());
                let stops = StopSignals { stopping: shutdown.stopping.clone(), killed };
                running.spawn(async move {
                    written.wait().await;
                    let fin =
                        execute(&order, &host, &groups, &stops, &journal, reporter.queue()).await;
                    // Frees the slot now, because the next command need not wait for unsent
                    // reports.
                    drop(slot);
                    queue.remove_running(order.id);
                    report_end(reporter, &order, fin).await;
                });
            }
            for job in queue.close() {
                report_end(job.reporter, &job.order, stopped_before_start()).await;
            }
        });
        runner
    }

    /// Finishes the commands of the previous agent: sends fins that the service has not accepted,
    /// fails the commands that waited, and kills the commands that ran. Call it before the first
    /// [`accept`](Self::accept).
    pub fn recover(&self, commands: Vec<(Uuid, Stage)>) {
        let mut jobs = self.queue.lock();
        let mut unreported = Vec::new();
        for (id, stage) in commands {
            jobs.seen.insert(id);
            match stage {
                Stage::Ended { is_fin_accepted: true } => {}
                Stage::Ended { is_fin_accepted: false } => unreported.push(id),
                Stage::Received => {
                    // The agent may have died between writing the script and starting it.
                    drop(ScriptFile::all(id));
                    let reporter = self.reports.begin(id, Written::already());
                    log::warn!("command {id}: the agent died before it started");
                    let fin =
                        failure(KILLED, "The agent died before the command ran. It was not run.");
                    self.tasks.spawn(reporter.fin(fin));
                }
                Stage::Started(process) => {
                    let (reporter, groups) =
                        (self.reports.begin(id, Written::already()), self.groups.clone());
                    let cgroup = self.host.cgroups.find_leftover(id);
                    self.tasks.spawn(async move {
                        let was_killed = kill_leftover(process, cgroup, &groups).await;
                        drop(ScriptFile::all(id));
                        log::warn!("command {id}: the agent died while it ran");
                        reporter.fin(lost(was_killed)).await;
                    });
                }
            }
        }
        self.resend_reports(unreported);
    }

    /// Sends the ack and fin of ended commands again.
    fn resend_reports(&self, ids: Vec<Uuid>) {
        let reports = self.reports.clone();
        self.tasks.spawn(async move {
            for id in ids {
                reports.resend(id).await;
            }
        });
    }

    /// Runs a built-in and reports its fin.
    fn run_builtin(&self, order: AgentCommand, reporter: Reporter, written: Written) {
        let (upgrader, restarting) = (self.upgrader.clone(), self.restarting.clone());
        let (journal, host) = (self.reports.journal().clone(), self.host.clone());
        self.tasks.spawn(async move {
            written.wait().await;
            let admitted = order.clone();
            let admitted = tokio::task::spawn_blocking(move || host.admit_builtin(&admitted)).await;
            if let Err(why) = admitted.unwrap_or_else(|error| Err(error.to_string())) {
                return report_end(reporter, &order, failure(REFUSED, why)).await;
            }
            let done = builtins::run(&order.line, &upgrader, journal.is_durable()).await;
            report_end(reporter, &order, done.fin).await;
            if done.restarts {
                restarting.cancel();
            }
        });
    }

    /// Waits until no command waits or runs. Reports of ended commands may still be unsent.
    pub async fn idle(&self) {
        self.queue.idle().await;
    }

    /// Waits until all commands have ended and all fins are queued. Call it after `draining` is
    /// cancelled.
    pub async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl<T: Transport> CommandHandler for Runner<T> {
    /// Acknowledges a command and queues it. The command fails if the queue is full or the agent is
    /// shutting down. A repeated command does not run again. If it has ended, its ack and fin are
    /// sent again.
    fn accept(&self, order: AgentCommand) {
        let id = order.id;
        let mut jobs = self.queue.lock();
        if !jobs.seen.insert(id) {
            drop(jobs);
            log::warn!("command {id}: repeated, not run again");
            return self.resend_reports(vec![id]);
        }
        let written = self.reports.journal().record_received(id);
        let reporter = self.reports.begin(id, written.clone());
        let refusal = if jobs.is_closed {
            stopped_before_start()
        } else if order.shell == builtins::BUILTIN_SHELL {
            drop(jobs);
            return self.run_builtin(order, reporter, written);
        } else if jobs.waiting.len() >= MAX_WAITING {
            failure(1, format!("The agent is busy: {MAX_WAITING} commands are waiting."))
        } else {
            jobs.waiting.push_back(Job {
                order,
                reporter,
                written,
                killed: CancellationToken::new(),
            });
            self.queue.added.notify_one();
            return;
        };
        drop(jobs);
        self.tasks.spawn(async move { report_end(reporter, &order, refusal).await });
    }

    /// Kills a running command, or fails a waiting command. If the command has ended, sends its ack
    /// and fin again. Ignores an unknown id.
    fn kill(&self, id: Uuid) {
        let mut jobs = self.queue.lock();
        if let Some(index) = jobs.waiting.iter().position(|job| job.order.id == id)
            && let Some(job) = jobs.waiting.remove(index)
        {
            drop(jobs);
            self.queue.removed.notify_waiters();
            log::info!("command {id}: killed before it started");
            let fin = killed_before_start();
            self.tasks.spawn(async move { report_end(job.reporter, &job.order, fin).await });
        } else if let Some(killed) = jobs.running.get(&id) {
            if !killed.is_cancelled() {
                log::info!("command {id}: kill requested");
            }
            killed.cancel();
        } else if jobs.seen.ids.contains(&id) {
            log::info!("command {id}: kill requested, but it has ended");
            self.resend_reports(vec![id]);
        } else {
            log::warn!("command {id}: kill requested, but the command is unknown");
        }
    }

    fn features(&self) -> String {
        let replay = self.reports.journal().is_durable().then_some(FEATURE_REPLAY);
        let features = [FEATURE_KILL].into_iter().chain(replay);
        features
            .chain([FEATURE_ARGV, FEATURE_SCRIPT, FEATURE_STDIN, FEATURE_CWD])
            .collect::<Vec<_>>()
            .join(", ")
    }
}

async fn report_end(reporter: Reporter, order: &AgentCommand, fin: Fin) {
    let (code, seconds) = (fin.exit_code.unwrap_or_default(), fin.elapsed_time.unwrap_or_default());
    log::info!(
        "command {}: as {:?}, exit code {code} after {seconds:.1} s",
        reporter.id(),
        order.user
    );
    reporter.fin(fin).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use serde_json::json;
    use tokio::time::sleep;

    use super::*;
    use crate::connection::client::Outcome;
    use crate::host::process::Identity;
    use crate::journal::writer::JournalWriter;
    use crate::runner::testing::*;

    /// Accepts every report, stores the fins, and counts all calls.
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

    fn numbered(number: usize, line: &str) -> AgentCommand {
        AgentCommand { id: Uuid::from_u128(number as u128), ..order(line) }
    }

    #[tokio::test]
    async fn commands_run_in_order_and_a_full_queue_refuses() {
        let directory = tempfile::tempdir().unwrap();
        let (go, log) = (directory.path().join("go"), directory.path().join("log"));
        let service = Service::default();
        let reports =
            Reports::new(service.clone(), JournalWriter::default(), CancellationToken::new());
        let (groups, shutdown) = (Groups::default(), Shutdown::default());
        let runner = Runner::new(
            1,
            HOST.clone(),
            reports.clone(),
            groups.clone(),
            shutdown.clone(),
            upgrader(),
        );
        runner.accept(numbered(0, &format!("until [ -e {} ]; do sleep 0.02; done", go.display())));
        eventually(|| !groups.ids().is_empty()).await;
        // No place in the queue becomes free before the first command ends.
        for number in 1..=MAX_WAITING + 3 {
            runner.accept(numbered(number, &format!("echo {number} >> {}", log.display())));
        }
        eventually(|| service.0.lock().unwrap().len() == 3).await;
        for (id, fin) in service.0.lock().unwrap().iter() {
            assert!(
                id.as_u128() > MAX_WAITING as u128 && fin.exit_code == Some(1) && !fin.success,
                "{id} {fin:?}"
            );
            assert_eq!(fin.reason.as_deref(), Some("The agent is busy: 200 commands are waiting."));
        }
        std::fs::write(&go, "").unwrap();
        eventually(|| service.0.lock().unwrap().len() == MAX_WAITING + 4).await;
        let expected: Vec<_> = (1..=MAX_WAITING).map(|number| number.to_string()).collect();
        assert_eq!(read(&log).lines().collect::<Vec<_>>(), expected);
    }

    #[tokio::test]
    async fn draining_fails_waiting_commands_only() {
        let directory = tempfile::tempdir().unwrap();
        let go = directory.path().join("go");
        let service = Service::default();
        let reports =
            Reports::new(service.clone(), JournalWriter::default(), CancellationToken::new());
        let (groups, shutdown) = (Groups::default(), Shutdown::default());
        let runner = Runner::new(
            1,
            HOST.clone(),
            reports.clone(),
            groups.clone(),
            shutdown.clone(),
            upgrader(),
        );
        runner.accept(numbered(1, &format!("until [ -e {} ]; do sleep 0.02; done", go.display())));
        eventually(|| !groups.ids().is_empty()).await;
        runner.accept(numbered(2, "true"));
        shutdown.draining.cancel();
        eventually(|| service.0.lock().unwrap().len() == 1).await;
        runner.accept(numbered(3, "true"));
        eventually(|| service.0.lock().unwrap().len() == 2).await;
        std::fs::write(&go, "").unwrap();
        tokio::time::timeout(PATIENCE, runner.finished()).await.unwrap();
        tokio::time::timeout(PATIENCE, reports.finished()).await.unwrap();
        let ends = service.0.lock().unwrap();
        let ends: Vec<_> =
            ends.iter().map(|(id, fin)| (id.as_u128(), fin.exit_code.unwrap())).collect();
        assert_eq!(ends, [(2, 143), (3, 143), (1, 0)]);
    }

    /// A service, and a runner that runs one command at a time.
    struct TestAgent {
        service: Service,
        reports: Reports<Service>,
        runner: Runner<Service>,
        groups: Groups,
        shutdown: Shutdown,
    }

    impl TestAgent {
        fn new(journal: JournalWriter) -> Self {
            Self::at(&HOST, journal)
        }

        fn at(host: &HostSettings, journal: JournalWriter) -> Self {
            let service = Service::default();
            let reports = Reports::new(service.clone(), journal, CancellationToken::new());
            let (groups, shutdown) = (Groups::default(), Shutdown::default());
            let runner = Runner::new(
                1,
                host.clone(),
                reports.clone(),
                groups.clone(),
                shutdown.clone(),
                upgrader(),
            );
            Self { service, reports, runner, groups, shutdown }
        }

        fn ends(&self) -> Vec<(u128, Fin)> {
            self.service
                .0
                .lock()
                .unwrap()
                .iter()
                .map(|(id, fin)| (id.as_u128(), fin.clone()))
                .collect()
        }

        async fn ended(&self, count: usize) -> Vec<(u128, i64, String)> {
            eventually(|| self.ends().len() >= count).await;
            let summary = |(id, fin): (u128, Fin)| {
                let text = fin.reason.or(fin.result).unwrap();
                (id, fin.exit_code.unwrap(), text)
            };
            self.ends().into_iter().map(summary).collect()
        }

        async fn finish(self) {
            self.shutdown.draining.cancel();
            tokio::time::timeout(PATIENCE, self.runner.finished()).await.unwrap();
            tokio::time::timeout(PATIENCE, self.reports.finished()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn killing_a_waiting_command_frees_its_place_in_the_queue() {
        let directory = tempfile::tempdir().unwrap();
        let (go, ran) = (directory.path().join("go"), directory.path().join("ran"));
        let agent = TestAgent::new(JournalWriter::default());
        agent
            .runner
            .accept(numbered(0, &format!("until [ -e {} ]; do sleep 0.02; done", go.display())));
        eventually(|| !agent.groups.ids().is_empty()).await;
        for number in 1..=MAX_WAITING {
            agent.runner.accept(numbered(number, &format!("echo {number} >> {}", ran.display())));
        }
        agent.runner.kill(Uuid::from_u128(7));
        agent.runner.kill(Uuid::from_u128(7));
        agent.runner.kill(Uuid::from_u128(9_999));
        let killed = (7, 143, "The command was killed before it ran.".to_owned());
        assert_eq!(agent.ended(1).await, [killed]);
        // The queue has room for one more command.
        agent.runner.accept(numbered(MAX_WAITING + 1, "true"));
        agent.runner.accept(numbered(MAX_WAITING + 2, "true"));
        assert_eq!(agent.ended(2).await[1].0, MAX_WAITING as u128 + 2);
        agent.runner.kill(Uuid::from_u128(0));
        let ends = agent.ended(MAX_WAITING + 3).await;
        assert!(ends.contains(&(0, 143, "\nThe command was killed.\n".to_owned())));
        assert_eq!(ends.iter().filter(|(id, ..)| *id == 7).count(), 1);
        assert!(!read(&ran).lines().any(|line| line == "7"));
        agent.finish().await;
    }

    #[tokio::test]
    async fn the_timeout_starts_with_the_process() {
        let agent = TestAgent::new(JournalWriter::default());
        agent.runner.accept(numbered(1, "sleep 1.5"));
        agent.runner.accept(AgentCommand { timeout: Some(1), ..numbered(2, "echo x") });
        assert_eq!(agent.ended(2).await[1], (2, 0, "x\n".to_owned()));
        agent.finish().await;
    }

    #[tokio::test]
    async fn the_journal_has_a_command_and_its_process_before_the_command_runs() {
        for host in hosts() {
            let directory = tempfile::tempdir().unwrap();
            let (journal, _) = JournalWriter::open(directory.path()).unwrap();
            let agent = TestAgent::at(host, journal);
            let journal = directory.path().join("commands.journal");
            // The process number in the journal: of the command itself, or of its supervisor.
            let pid = if host.cgroups.is_available() { "$$" } else { "$PPID" };
            let line = format!("exec grep -c \"taken\\|\\\"pid\\\":{pid},\" {}", journal.display());
            agent.runner.accept(numbered(1, &line));
            assert_eq!(agent.ended(1).await, [(1, 0, "2\n".to_owned())]);
            // Without a shell, so that no other program runs first.
            let line = format!("grep -c pid {}", journal.display());
            agent.runner.accept(AgentCommand { allow_sh: false, ..numbered(2, &line) });
            assert_eq!(agent.ended(2).await[1], (2, 0, "2\n".to_owned()));
            let refused = AgentCommand { allow_sh: false, ..numbered(3, "/no/such/program") };
            agent.runner.accept(refused);
            assert_eq!(agent.ended(3).await[2].1, 127);
            agent.finish().await;
        }
    }

    #[tokio::test]
    async fn each_step_waits_for_the_journal() {
        let directory = tempfile::tempdir().unwrap();
        let ran = directory.path().join("ran");
        let (journal, disk) = JournalWriter::with_manual_disk();
        let agent = TestAgent::new(journal);
        let next = async || {
            let found = std::cell::RefCell::new(None);
            eventually(|| {
                *found.borrow_mut() = disk.next();
                found.borrow().is_some()
            })
            .await;
            found.take().unwrap()
        };
        // Waits a fixed time, because no condition shows that nothing happens.
        let moment = async || sleep(Duration::from_millis(200)).await;
        agent.runner.accept(numbered(1, &format!("echo x >> {}", ran.display())));
        let (event, guard) = next().await;
        moment().await;
        assert_eq!(
            (event, agent.service.1.load(Ordering::Relaxed), disk.next().is_none()),
            ("received", 0, true)
        );
        drop(guard);
        let (event, guard) = next().await;
        moment().await;
        assert_eq!((event, ran.exists()), ("started", false));
        drop(guard);
        let (event, guard) = next().await;
        moment().await;
        // Only the ack was sent.
        assert_eq!((event, read(&ran).as_str(), agent.ends().len()), ("ended", "x", 0));
        assert_eq!(agent.service.1.load(Ordering::Relaxed), 1);
        drop(guard);
        assert_eq!(agent.ended(1).await[0].1, 0);
        assert_eq!(next().await.0, "fin accepted");
        agent.finish().await;
    }

    #[tokio::test]
    async fn a_repeated_command_is_reported_and_not_run() {
        let directory = tempfile::tempdir().unwrap();
        let ran = directory.path().join("ran");
        let state = directory.path().join("state");
        let line = format!("echo x >> {}; echo done", ran.display());
        for expected in 1..4 {
            let (journal, stored) = eventually_open(&state).await;
            let agent = TestAgent::new(journal);
            agent.runner.recover(stored);
            agent.runner.accept(numbered(1, &line));
            assert_eq!(agent.ended(1).await[0], (1, 0, "done\n".to_owned()), "{expected}");
            agent.runner.accept(numbered(1, &line));
            assert_eq!(agent.ended(2).await[1], (1, 0, "done\n".to_owned()));
            agent.finish().await;
        }
        assert_eq!(read(&ran), "x");
    }

    /// Opens a journal that another runner may still have locked.
    async fn eventually_open(directory: &Path) -> (JournalWriter, Vec<(Uuid, Stage)>) {
        let directory = directory.to_owned();
        tokio::task::spawn_blocking(move || JournalWriter::open(&directory).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn commands_of_the_previous_agent_are_finished() {
        let directory = tempfile::tempdir().unwrap();
        let left = |line: &str| {
            let mut command = std::process::Command::new("sh");
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            command.args(["-c", line]).spawn().unwrap()
        };
        let mut own = left("sleep 60 & wait");
        // A process that now has the pid of a previous command.
        let mut stranger = left("sleep 60");
        let identity = |child: &std::process::Child| Identity::read(child.id() as i32).unwrap();
        let mut other = serde_json::to_value(identity(&stranger)).unwrap();
        other["start"] = json!(1);
        let (journal, _) = JournalWriter::open(directory.path()).unwrap();
        let id = Uuid::from_u128;
        let fin = serde_json::to_vec(&failure(7, "kept")).unwrap();
        for written in [
            journal.record_received(id(1)),
            journal.record_started(id(2), Some(identity(&own))),
            journal.record_started(id(3), Some(serde_json::from_value(other).unwrap())),
            journal.record_started(id(4), None),
            journal.record_ended(id(5), fin.clone().into()),
            journal.record_ended(id(6), fin.into()),
            journal.record_fin_accepted(id(6)),
        ] {
            written.wait().await;
        }
        drop(journal);
        let scripts = [id(1), id(2), id(4)]
            .map(|id| std::env::temp_dir().join(format!("farhand-{id}-0.script")));
        for script in &scripts {
            std::fs::write(script, "left").unwrap();
        }
        let (journal, stored) = eventually_open(directory.path()).await;
        let agent = TestAgent::new(journal);
        agent.runner.recover(stored);
        let mut ends = agent.ended(5).await;
        ends.sort();
        let died = |id, rest: &str| (id, 137, format!("The agent died {rest}"));
        let lost = "while the command ran. How it ended is not known.";
        let expected = [
            died(1, "before the command ran. It was not run."),
            died(2, "while the command ran. Its remaining processes were killed."),
            died(3, lost),
            died(4, lost),
            (5, 7, "kept".to_owned()),
        ];
        assert_eq!(ends, expected);
        assert!(!scripts.iter().any(|script| script.exists()), "the scripts are removed");
        assert!(!is_running(&own.id().to_string()) && is_running(&stranger.id().to_string()));
        own.wait().unwrap();
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        agent.finish().await;
        // The journal says that the service has all fins, so none is sent again.
        let (_, stored) = eventually_open(directory.path()).await;
        assert!(
            stored.iter().all(|(_, stage)| *stage == Stage::Ended { is_fin_accepted: true }),
            "{stored:?}"
        );
    }
}
