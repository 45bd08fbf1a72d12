//! The clock jumps, and alarms fire late or twice.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use farhand_tests::agents::wait_until_connected;
use farhand_tests::alpamon::Alpamon;
use farhand_tests::instance::{
    ALARM_IS_LONG_AGO, change_objects, delay_alarms, fire_alarms_at_start,
};
use farhand_tests::people::COMMANDS;
use farhand_tests::{Instance, ScriptedAgent, Workspace, eventually, now};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use super::cell::{AgentHost, Cell, CommandKind};
use super::{few_or_many, rounds};

/// A clock for workerd: the machine's time of day plus an offset in seconds. Monotonic clocks are
/// not changed, as when an administrator sets the clock.
struct Clock {
    folder: TempDir,
}

impl Clock {
    fn new() -> Self {
        let clock = Self { folder: tempfile::tempdir().unwrap() };
        clock.set(0);
        let library = clock.folder.path().join("clock.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/faults/clock.c");
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
        assert!(
            built.is_ok_and(|status| status.success()),
            "the test clock needs a C compiler named cc"
        );
        let program = format!(
            "#!/bin/sh\nexport LD_PRELOAD='{}' FARHAND_CLOCK='{}'\nexec '{}' \"$@\"\n",
            library.display(),
            clock.file().display(),
            workerd().display()
        );
        std::fs::write(clock.program(), program).unwrap();
        std::fs::set_permissions(clock.program(), Permissions::from_mode(0o755)).unwrap();
        clock
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    /// The path of a script that runs workerd with this clock.
    fn program(&self) -> PathBuf {
        self.folder.path().join("workerd")
    }

    /// Sets the offset. The file is overwritten in place, because workerd has mapped it into
    /// memory.
    fn set(&self, offset: i64) {
        let file =
            File::options().create(true).truncate(false).write(true).open(self.file()).unwrap();
        file.write_all_at(&offset.to_ne_bytes(), 0).unwrap();
    }
}

/// The workerd program for this machine's platform.
fn workerd() -> PathBuf {
    let packages =
        std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../node_modules/@cloudflare"))
            .unwrap();
    let mut programs = packages
        .map(|entry| entry.unwrap().path().join("bin/workerd"))
        .filter(|path| path.exists());
    programs.next().expect("workerd is installed")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_survive_jumps_of_the_clock() {
    // The offset after each jump, in seconds. The clock jumps forward past the limit after which a
    // command is stuck, and back. Then it jumps by an hour, past the expiry of waiting commands.
    const OFFSETS: [i64; 8] = [90, 45, 3_700, 3_660, 3_720, 3_690, 7_500, 7_440];
    let clock = Clock::new();
    let program = clock.program();
    let variables = [("MINIFLARE_WORKERD_PATH", program.to_str().unwrap())];
    let mut cell = Cell::start(
        "clock of workerd set forward by up to an hour, or back by up to a minute",
        &variables,
    )
    .await;
    let [real, scripted] = cell.create_servers(["real", "scripted"]).await;
    let mut host = AgentHost::new(&cell.workload.workspace, &real, cell.port());
    host.start();
    let agent = cell.connect_scripted(&scripted, false).await;
    let connected = [(&real, true), (&scripted, true)];
    cell.wait_for_connections(&connected).await;
    for offset in &OFFSETS[..few_or_many(2, OFFSETS.len())] {
        let (workload, servers) = (cell.workload.clone(), [real.clone(), scripted.clone()]);
        let requested = workload.requested();
        let load = tokio::spawn(async move { workload.run(&servers.each_ref(), 24).await });
        cell.workload.wait_until_requested(requested + 12).await;
        clock.set(*offset);
        cell.count_fault();
        load.await.unwrap();
        cell.wait_for_connections(&connected).await;
        cell.check(&[&agent]).await;
    }
    cell.settle_and_check(&[&agent]).await;
}

/// Requests commands that are due after some seconds.
async fn schedule_commands(cell: &Cell, servers: &[&Value], seconds: i64) {
    let requested = servers
        .iter()
        .cycle()
        .take(8)
        .map(|server| cell.workload.request(server, CommandKind::After(seconds)));
    for (_, id) in join_all(requested).await {
        assert!(id.is_some(), "the service works and accepts the command");
    }
}

/// Waits until a scripted agent has received more than `count` commands.
async fn wait_for_more_deliveries(agent: &Alpamon, count: usize) {
    while agent.log().delivered.len() <= count {
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_survive_late_and_repeated_alarms() {
    let mut cell =
        Cell::start("alarms that are late, repeated, or cut off after their effects", &[]).await;
    let [real, scripted] = cell.create_servers(["real", "scripted"]).await;
    let servers = [&real, &scripted];
    let mut host = AgentHost::new(&cell.workload.workspace, &real, cell.port());
    host.start();
    let agent = cell.connect_scripted(&scripted, false).await;
    let connected = [(&real, true), (&scripted, true)];
    cell.wait_for_connections(&connected).await;
    for _ in rounds(1, 6) {
        // Late: the processes are stopped when the alarms are due.
        schedule_commands(&cell, &servers, 1).await;
        cell.instance().pause(true);
        sleep(Duration::from_secs(3)).await;
        cell.instance().pause(false);
        cell.count_fault();
        cell.check(&[&agent]).await;
        // Cut off: the service is killed as soon as the alarm's work has a visible effect.
        let delivered = agent.log().delivered.len();
        schedule_commands(&cell, &servers, 2).await;
        wait_for_more_deliveries(&agent, delivered).await;
        cell.kill().await;
        cell.count_fault();
        // Twice: alarms that have fired fire again, and later alarms fire immediately.
        assert!(fire_alarms_at_start(cell.state(), "ServerLink") >= servers.len());
        cell.restart().await;
        eventually("the alarms to go off", || async {
            cell.instance().read_objects("ServerLink", ALARM_IS_LONG_AGO).is_empty().then_some(())
        })
        .await;
        cell.count_fault();
        cell.wait_for_connections(&connected[1..]).await;
        cell.check(&[&agent]).await;
        // Much too late: the alarm fires after an hour, unless a call makes the object notice the
        // delay.
        schedule_commands(&cell, &servers, 2).await;
        cell.kill().await;
        assert!(delay_alarms(cell.state(), "ServerLink", 3_600) >= servers.len());
        cell.count_fault();
        cell.restart().await;
        cell.wait_for_connections(&connected[1..]).await;
        cell.check(&[&agent]).await;
    }
    cell.wait_for_connections(&connected).await;
    cell.settle_and_check(&[&agent]).await;
}

/// The runtime dies shortly before an alarm, which then fires an hour late. The agent reconnects
/// just after the time for which the object believes its alarm is set. Nothing else calls the
/// object.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_after_a_restart_does_not_rely_on_old_alarms() {
    let (instance, state) = Instance::new().await;
    let (state, mut workspace) =
        (state.path(), Workspace::create_with(&instance.operator(), "late").await);
    let server = workspace.server("late").await;
    let id = server["id"].as_str().unwrap();
    let agent = ScriptedAgent::connect(&workspace, &server).await;
    wait_until_connected(&workspace, id, true).await;
    // The service sets an alarm for this command.
    let later = now().plus_seconds(3_600).to_string();
    let body = json!({"server": "late", "line": "true", "username": "root", "scheduled_at": later});
    workspace.admin.post(COMMANDS, &body).await.expect(201);
    drop(agent);
    wait_until_connected(&workspace, id, false).await;
    instance.kill().await;
    assert!(delay_alarms(state, "ServerLink", 3_600) > 0);
    let instance = Instance::restart(state).await;
    for api in [&mut workspace.admin, &mut workspace.anonymous] {
        *api = api.with_url(&instance.url);
    }
    // Nothing has called the object since the restart.
    let just_now = i64::try_from(now().as_millis()).unwrap() - 500;
    let believes = format!("UPDATE _cf_METADATA SET value = {just_now} * 1000000 WHERE key = 1");
    assert!(change_objects(state, "ServerLink", &believes) > 0);
    let _agent = ScriptedAgent::connect(&workspace, &server).await;
    wait_until_connected(&workspace, id, true).await;
}
