//! Instances that belong to one test: for tests of `npm start`, and for tests that open the
//! databases. A process that opens the databases of the shared instance could lock out concurrent
//! tests.

use std::collections::BTreeSet;
use std::io::{Read, Seek};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid};
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::{Batch, Connection, OpenFlags, Row};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::client::Api;
use crate::listeners::{Listener, listeners_of};
use crate::processes::Process;
use crate::{PATIENCE, eventually, eventually_within};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// The operator token of the instances that [`Instance::new`] starts.
const OPERATOR_TOKEN: &str = "operator-of-this-instance-of-a-test";
/// The folder of D1 in a state folder.
const D1: &str = "v3/d1/miniflare-D1DatabaseObject";
/// The folder of KV in a state folder.
const KV: &str = "v3/kv/miniflare-KVNamespaceObject";
/// Time limit for `npm start` to listen, if everything is already built.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(180);
/// Time limit for `npm start` to exit, including the draining of its agent.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for unused objects to be evicted. workerd evicts them after ten seconds without use.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(120);

/// A running instance. Dropping it kills its processes.
pub struct Instance {
    /// The URL at which it listens.
    pub url: String,
    /// The standard output until it listened.
    pub printed: String,
    /// The state folder.
    pub state: PathBuf,
    port: u16,
    process: Process,
}

/// A new state folder for an instance. Under `npm test` it is kept after the test, so that it can
/// be searched for secrets.
pub fn state_folder() -> TempDir {
    match std::env::var("FARHAND_INSTANCES") {
        Ok(folder) => tempfile::Builder::new().disable_cleanup(true).tempdir_in(folder).unwrap(),
        Err(_) => tempfile::tempdir().unwrap(),
    }
}

/// A port that is free now. The instance binds it later, and again after a restart. So the port is
/// below the range that the system uses for outgoing connections. Each test process starts at
/// another number, because several may run on one machine.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let offset =
            std::process::id() % 100 * 100 + u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 20_000 + (offset % 10_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Instance {
    /// Runs `npm start` with a state folder and variables, and waits until it listens.
    pub async fn start(state: &Path, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new("npm");
        command.args(["start", "--silent"]);
        Self::run(command, free_port(), state, variables).await
    }

    /// Runs a program that serves a state folder, and waits until it listens.
    async fn run(
        mut command: Command,
        port: u16,
        state: &Path,
        variables: &[(&str, &str)],
    ) -> Self {
        let mut errors = tempfile::tempfile().unwrap();
        command
            .current_dir(ROOT)
            .env("PORT", port.to_string())
            .env("STATE_DIR", state)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors.try_clone().unwrap());
        let mut process = Process::spawn(&mut command);
        let mut lines = BufReader::new(process.child().stdout.take().unwrap()).lines();
        let mut printed = String::new();
        let read = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                printed.push_str(&line);
                printed.push('\n');
                if line.contains("Ctrl-C") {
                    return true;
                }
            }
            false
        };
        let served = tokio::time::timeout(LISTEN_TIMEOUT, read)
            .await
            .expect("the instance did not listen in time");
        if !served {
            errors.rewind().unwrap();
            errors.read_to_string(&mut printed).unwrap();
            panic!("the instance exited before it listened: {printed}");
        }
        Self {
            url: format!("http://127.0.0.1:{port}"),
            printed,
            state: state.to_owned(),
            port,
            process,
        }
    }

    /// Starts an instance without the demo server. The returned folder is its state folder.
    pub async fn new() -> (Self, TempDir) {
        Self::new_with(&[]).await
    }

    /// Like [`Instance::new`], with variables.
    pub async fn new_with(variables: &[(&str, &str)]) -> (Self, TempDir) {
        let folder = state_folder();
        (Self::without_demo(free_port(), folder.path(), variables).await, folder)
    }

    /// Starts an instance like [`Instance::new`] with the state of an earlier instance.
    pub async fn restart(state: &Path) -> Self {
        Self::restart_with(state, &[]).await
    }

    /// Like [`Instance::restart`], with variables.
    pub async fn restart_with(state: &Path, variables: &[(&str, &str)]) -> Self {
        Self::without_demo(free_port(), state, variables).await
    }

    /// Like [`Instance::restart`], on the port of the earlier instance, so that agents can
    /// reconnect.
    pub async fn restart_at(port: u16, state: &Path, variables: &[(&str, &str)]) -> Self {
        Self::without_demo(port, state, variables).await
    }

    async fn without_demo(port: u16, state: &Path, more: &[(&str, &str)]) -> Self {
        // Tests insert commands with end times in the past. Only tests of retention purge such
        // commands.
        let variables = [
            ("OPERATOR_TOKEN", OPERATOR_TOKEN),
            ("PBKDF2_ITERATIONS", "100000"),
            ("COMMAND_RETENTION_DAYS", "0"),
            ("TRUSTED_PROXIES", "127.0.0.1"),
        ];
        let mut command = Command::new("node");
        command.arg("tests/support/instance.mjs");
        Self::run(command, port, state, &[&variables[..], more].concat()).await
    }

    /// Asserts that `npm start` with these variables exits with an error. Returns what it printed.
    pub async fn expect_failed_start(state: &Path, variables: &[(&str, &str)]) -> String {
        let mut command = Command::new("npm");
        command
            .args(["start", "--silent"])
            .current_dir(ROOT)
            .env("PORT", free_port().to_string())
            .env("STATE_DIR", state)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(LISTEN_TIMEOUT, command.output())
            .await
            .expect("npm start did not end")
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(!output.status.success(), "npm start must fail: {}", text(&output.stdout));
        text(&output.stdout) + &text(&output.stderr)
    }

    /// Serves the state of a stopped instance with changed variables, and skips the checks of `npm
    /// start`, as a deployed Worker does.
    pub async fn serve_unchecked(state: &Path, variables: &[(&str, &str)]) -> (Process, String) {
        let file = state.join("variables.json");
        let mut values: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        for (name, value) in variables {
            values[*name] = Value::from(*value);
        }
        std::fs::write(&file, values.to_string()).unwrap();
        let port = free_port();
        let mut command = Command::new("node");
        command
            .current_dir(ROOT)
            .arg("scripts/serve.mjs")
            .args([state.as_os_str(), port.to_string().as_ref(), file.as_os_str(), ROOT.as_ref()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = Process::spawn(&mut command);
        let url = format!("http://127.0.0.1:{port}");
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        eventually_within(LISTEN_TIMEOUT, "the Worker to serve", || async {
            client.get(format!("{url}/healthz")).send().await.ok().map(drop)
        })
        .await;
        (process, url)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The sockets on which its processes listen.
    pub fn listeners(&self) -> BTreeSet<Listener> {
        listeners_of(&processes_in(&process_groups_of(&self.state)))
    }

    /// Kills all processes at the same time, as a crash would, and waits until they have ended.
    pub async fn kill(self) {
        let groups = process_groups_of(&self.state);
        drop(self);
        eventually("everything to end", || async {
            processes_in(&groups).is_empty().then_some(())
        })
        .await;
    }

    /// Stops all processes, as a suspended machine would, or continues them.
    pub fn pause(&self, is_paused: bool) {
        let signal = if is_paused { Signal::SIGSTOP } else { Signal::SIGCONT };
        for pid in processes_in(&process_groups_of(&self.state)) {
            kill(Pid::from_raw(pid), signal).unwrap();
        }
    }

    /// A client of the operator API of an instance that [`Instance::new`] started.
    pub fn operator(&self) -> Api {
        Api::new(&self.url, "127.0.0.1").with_authorization(&format!("Bearer {OPERATOR_TOKEN}"))
    }

    /// Sends SIGTERM, and waits until all processes have ended.
    pub async fn stop(mut self) {
        let groups = process_groups_of(&self.state);
        assert!(processes_in(&groups).len() > 2, "an instance has several processes");
        self.process.signal(Signal::SIGTERM);
        self.process.wait_for_exit(EXIT_TIMEOUT).await;
        eventually("everything to end", || async {
            let is_free = TcpListener::bind(("127.0.0.1", self.port)).is_ok();
            (processes_in(&groups).is_empty()
                && process_groups_of(&self.state).is_empty()
                && is_free)
                .then_some(())
        })
        .await;
    }

    /// Runs wrangler on the instance's state. Retries while the service holds the database's write
    /// lock, because wrangler then fails without having done anything.
    async fn wrangler(&self, arguments: &[&str]) -> String {
        eventually("the database's lock", || async {
            let output = Command::new("node_modules/.bin/wrangler")
                .args(arguments)
                .args(["--local", "--persist-to"])
                .arg(&self.state)
                .env("WRANGLER_SEND_METRICS", "false")
                .env("WRANGLER_LOG_PATH", self.state.join("discarded.log"))
                .env("CI", "true")
                .current_dir(ROOT)
                .output()
                .await
                .unwrap();
            let (out, errors) = (
                String::from_utf8(output.stdout).unwrap(),
                String::from_utf8_lossy(&output.stderr),
            );
            let is_locked_out =
                !output.status.success() && format!("{out}{errors}").contains("SQLITE_BUSY");
            assert!(output.status.success() || is_locked_out, "{arguments:?}: {out}{errors}");
            (!is_locked_out).then_some(out)
        })
        .await
    }

    /// Waits until the outboxes of all servers' objects are empty: D1 has every change of their
    /// commands.
    pub async fn wait_until_d1_is_current(&self) {
        eventually("D1 to know everything", || async {
            let behind =
                self.read_objects("ServerLink", "SELECT id FROM commands WHERE flushed < revision");
            behind.is_empty().then_some(())
        })
        .await;
    }

    /// Waits until D1 has every change of commands, and stops the instance.
    pub async fn stop_when_d1_is_current(self) {
        self.wait_until_d1_is_current().await;
        self.stop().await;
    }

    /// Waits until the janitor has finished the pass that begins when an instance starts. The pass
    /// seals audit events, and calls the objects of open batches, which start commands. So a test
    /// that writes to D1 behind the service's back waits for it.
    pub async fn wait_until_first_pass_is_over(&self) {
        let log = self.state.join("worker.log");
        eventually("the end of the first pass", || async {
            let has_begun =
                std::fs::read_to_string(&log).unwrap().contains("\"event\":\"retention_over\"");
            let is_over = self
                .read_objects("Janitor", "SELECT key FROM _cf_KV WHERE key IN ('batch', 'sealed')")
                .is_empty();
            (has_begun && is_over).then_some(())
        })
        .await;
    }

    /// Waits for the log line of a request, by the request's id.
    pub async fn request_log_line(&self, id: &str) -> Value {
        let log = self.state.join("worker.log");
        eventually("the log's line", || async {
            let text = std::fs::read_to_string(&log).unwrap();
            let line = text
                .lines()
                .rev()
                .find(|line| line.contains(id) && line.contains("\"event\":\"request\""))?;
            serde_json::from_str(&line[line.find('{')?..]).ok()
        })
        .await
    }

    /// Executes statements on D1 through wrangler, and returns the rows of each. This uses the
    /// platform's own SQLite, and takes seconds. [`Instance::d1`] is faster.
    pub async fn d1_through_wrangler(&self, sql: &str) -> Vec<Value> {
        let file = tempfile::Builder::new().suffix(".sql").tempfile_in(&self.state).unwrap();
        std::fs::write(file.path(), sql).unwrap();
        let arguments =
            ["d1", "execute", "DB", "--json", "--yes", "--file", file.path().to_str().unwrap()];
        let text = self.wrangler(&arguments).await;
        let answer: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        answer.as_array().unwrap().iter().map(|of_one| of_one["results"].clone()).collect()
    }

    /// Executes statements on D1, and returns the rows of the first one.
    pub fn d1(&self, sql: &str) -> Value {
        let connection = open(&self.state.join(D1), OpenFlags::default());
        let mut first = None;
        let mut batch = Batch::new(&connection, sql);
        while let Some(mut statement) = FallibleIterator::next(&mut batch).unwrap() {
            let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
            let row = |row: &Row<'_>| {
                names
                    .iter()
                    .enumerate()
                    .map(|(at, name)| Ok((name.clone(), value(row, at)?)))
                    .collect()
            };
            let rows: Vec<Value> = statement
                .query_map((), row)
                .unwrap()
                .map(Result::unwrap)
                .map(Value::Object)
                .collect();
            first.get_or_insert(rows);
        }
        first.unwrap_or_default().into()
    }

    /// The names and expiration times of a workspace's KV entries.
    pub fn kv_entries(&self, workspace: &str) -> Vec<Value> {
        let connection = open(&self.state.join(KV), OpenFlags::SQLITE_OPEN_READ_ONLY);
        let sql = "SELECT key, expiration / 1000 FROM _mf_entries WHERE key LIKE ?1 || '/%'
            AND (expiration IS NULL OR expiration > unixepoch() * 1000) ORDER BY key";
        let mut statement = connection.prepare(sql).unwrap();
        let entry =
            |row: &Row<'_>| Ok(json!({"name": value(row, 0)?, "expiration": value(row, 1)?}));
        statement.query_map([workspace], entry).unwrap().map(Result::unwrap).collect()
    }

    /// Removes a KV entry without the service noticing.
    pub fn kv_delete(&self, name: &str) {
        let connection = open(&self.state.join(KV), OpenFlags::default());
        assert_eq!(connection.execute("DELETE FROM _mf_entries WHERE key = ?1", [name]), Ok(1));
    }
}

/// Opens the only database in a folder of the platform.
fn open(folder: &Path, flags: OpenFlags) -> Connection {
    let connection = Connection::open_with_flags(databases(folder).next().unwrap(), flags).unwrap();
    connection.busy_timeout(PATIENCE).unwrap();
    connection
}

/// A column of a row, as JSON.
fn value(row: &Row<'_>, at: usize) -> rusqlite::Result<Value> {
    Ok(match row.get(at)? {
        rusqlite::types::Value::Null => Value::Null,
        rusqlite::types::Value::Integer(number) => number.into(),
        rusqlite::types::Value::Real(number) => number.into(),
        rusqlite::types::Value::Text(text) => text.into(),
        rusqlite::types::Value::Blob(bytes) => bytes.into(),
    })
}

/// A held write lock on D1. The service cannot write to D1 until this is dropped.
pub struct LockedDatabase(#[expect(dead_code, reason = "it holds the lock")] Connection);

impl Instance {
    pub async fn lock_d1(&self) -> LockedDatabase {
        let folder = self.state.join(D1);
        let connection = Connection::open(databases(&folder).next().unwrap()).unwrap();
        eventually("the lock", || async { connection.execute_batch("BEGIN IMMEDIATE").ok() }).await;
        LockedDatabase(connection)
    }
}

impl Instance {
    /// Changes D1 while the service runs, as an attacker with access to the database could.
    pub fn tamper_with_d1(&self, sql: &str) {
        let connection = open(&self.state.join(D1), OpenFlags::default());
        connection.execute_batch(&format!("BEGIN IMMEDIATE; {sql}; COMMIT")).unwrap();
    }

    /// Executes SQL on every object of a class while the service runs. Objects that were wiped have
    /// no table; they are skipped.
    pub fn tamper_with_objects(&self, class: &str, sql: &str) {
        for file in databases(&self.objects(class)) {
            let connection = Connection::open(file).unwrap();
            connection.busy_timeout(PATIENCE).unwrap();
            match connection.execute_batch(sql) {
                Err(error) if is_wiped(&error) => {}
                executed => executed.unwrap(),
            }
        }
    }

    /// Reads a text column from D1.
    pub fn read_d1(&self, sql: &str) -> Vec<String> {
        let connection = open(&self.state.join(D1), OpenFlags::SQLITE_OPEN_READ_ONLY);
        let mut statement = connection.prepare(sql).unwrap();
        statement.query_map((), |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    /// Reads a text column from every object of a class. Objects that were wiped have no table;
    /// they are skipped.
    pub fn read_objects(&self, class: &str, sql: &str) -> Vec<String> {
        let mut found = Vec::new();
        for file in databases(&self.objects(class)) {
            let connection =
                Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
            connection.busy_timeout(PATIENCE).unwrap();
            let mut statement = match connection.prepare(sql) {
                Err(error) if is_wiped(&error) => continue,
                statement => statement.unwrap(),
            };
            found.extend(
                statement.query_map((), |row| row.get::<_, String>(0)).unwrap().map(Result::unwrap),
            );
        }
        found
    }

    /// True if the runtime has an object of a class in memory, because then its database file is
    /// open.
    pub fn has_objects_in_memory(&self, class: &str) -> bool {
        let folder = self.objects(class);
        let running = processes_in(&process_groups_of(&self.state));
        assert!(!running.is_empty(), "the service ended");
        running
            .into_iter()
            .flat_map(open_files)
            .any(|file| file.starts_with(&folder) && is_database(&file))
    }

    /// Waits until the runtime has evicted all objects of a class.
    pub async fn wait_until_objects_are_evicted(&self, class: &str) {
        eventually_within(EVICTION_TIMEOUT, "the objects to be evicted", || async {
            (!self.has_objects_in_memory(class)).then_some(())
        })
        .await;
    }

    fn objects(&self, class: &str) -> PathBuf {
        self.state.join("v3/do").join(format!("farhand-{class}"))
    }
}

/// The files and sockets that a process has open.
pub(crate) fn open_files(pid: i32) -> Vec<PathBuf> {
    // The process may end during this loop.
    let Ok(links) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return vec![] };
    links.flatten().filter_map(|link| std::fs::read_link(link.path()).ok()).collect()
}

/// Executes SQL on every object of a class while the instance is stopped, and returns the number of
/// changed rows. Use it only to simulate the passing of time.
pub fn change_objects(state: &Path, class: &str, sql: &str) -> usize {
    let folder = state.join("v3/do").join(format!("farhand-{class}"));
    let changed =
        databases(&folder).map(|file| match Connection::open(file).unwrap().execute(sql, ()) {
            Err(error) if is_wiped(&error) => 0,
            changed => changed.unwrap(),
        });
    changed.sum()
}

/// An alarm time in the past that the service never sets, in nanoseconds.
const LONG_AGO: i64 = 1_000_000_000_000;
/// Returns a row if the object's alarm is set to `LONG_AGO`. The platform stores the alarm time
/// that the object sees in `_cf_METADATA`.
pub const ALARM_IS_LONG_AGO: &str =
    "SELECT 'yes' FROM _cf_METADATA WHERE key = 1 AND value = 1000000000000";

/// Sets an alarm for every object of a class that fires as soon as the instance starts, even if the
/// object has none. The instance must be stopped.
pub fn fire_alarms_at_start(state: &Path, class: &str) -> usize {
    let folder = state.join("v3/do").join(format!("farhand-{class}"));
    let all = Connection::open(folder.join("metadata.sqlite")).unwrap();
    let mut set = 0;
    for file in databases(&folder) {
        let own = Connection::open(&file).unwrap();
        if own
            .execute("INSERT OR REPLACE INTO _cf_METADATA (key, value) VALUES (1, ?1)", [LONG_AGO])
            .is_ok()
        {
            let id = file.file_stem().unwrap().to_str().unwrap();
            set += all
                .execute("INSERT OR REPLACE INTO _cf_ALARM VALUES (?1, ?2)", (id, LONG_AGO))
                .unwrap();
        }
    }
    set
}

/// Delays the alarms of all objects of a class. The objects do not notice. The instance must be
/// stopped.
pub fn delay_alarms(state: &Path, class: &str, seconds: i64) -> usize {
    let file = state.join("v3/do").join(format!("farhand-{class}")).join("metadata.sqlite");
    let later = "UPDATE _cf_ALARM SET scheduled_time = scheduled_time + ?1 * 1000000000";
    Connection::open(file).unwrap().execute(later, [seconds]).unwrap()
}

/// Executes SQL on D1 while the instance is stopped, and returns the number of rows that the last
/// statement changed.
pub fn change_d1(state: &Path, sql: &str) -> u64 {
    let connection = Connection::open(databases(&state.join(D1)).next().unwrap()).unwrap();
    connection.execute_batch(sql).unwrap();
    connection.changes()
}

/// True for the error that the database of a wiped object returns.
fn is_wiped(error: &rusqlite::Error) -> bool {
    error.to_string().contains("no such table")
}

/// The databases in a folder of the platform.
fn databases(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| is_database(file))
}

fn is_database(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "sqlite")
        && file.file_stem().unwrap() != "metadata"
}

impl Drop for Instance {
    /// No process outlives the test that started it.
    fn drop(&mut self) {
        kill_processes_with(&self.state);
    }
}

/// Kills all processes that mention a folder, with their process groups, and waits until they have
/// ended. A running process would write into the folder while it is removed.
pub(crate) fn kill_processes_with(folder: &Path) {
    let until = Instant::now() + PATIENCE;
    loop {
        let left = processes_in(&process_groups_of(folder));
        if left.is_empty() || Instant::now() > until {
            return;
        }
        for pid in left {
            // The process may have ended together with another process.
            kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process that has not ended.
struct Running {
    pid: i32,
    group: i32,
    /// True if an argument or an environment variable contains the folder.
    is_named: bool,
}

/// All processes except this one. A zombie has no command line, and is skipped.
fn running(folder: &Path) -> Vec<Running> {
    let needle = folder.to_str().unwrap().as_bytes();
    let names = |bytes: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    let own = i32::try_from(std::process::id()).unwrap();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let file_name = entry.file_name();
        let Some(pid) = file_name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // The process may end during this loop.
        let Ok(group) = getpgid(Some(Pid::from_raw(pid))) else { continue };
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let command = read("cmdline");
        if pid != own && !command.is_empty() {
            found.push(Running {
                pid,
                group: group.as_raw(),
                is_named: names(&command) || names(&read("environ")),
            });
        }
    }
    found
}

/// The process groups of an instance: each has a process that mentions the state folder. The
/// runtime does not mention the folder, but is in such a group.
fn process_groups_of(state: &Path) -> Vec<i32> {
    let own_group = getpgid(None).unwrap().as_raw();
    let named =
        running(state).into_iter().filter(|process| process.is_named && process.group != own_group);
    named.map(|process| process.group).collect()
}

/// The processes in some groups.
pub(crate) fn processes_in(groups: &[i32]) -> Vec<i32> {
    let all = running(Path::new("/")).into_iter();
    all.filter(|process| groups.contains(&process.group)).map(|process| process.pid).collect()
}
