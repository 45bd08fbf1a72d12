//! The clock jumps; alarms come late or twice.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use farhand_tests::agents::wait_until_connected;
use farhand_tests::alpamon::Alpamon;
use farhand_tests::instance::{ALARM_IS_LONG_AGO, change_objects, delay_alarms, set_off_alarms};
use farhand_tests::people::COMMANDS;
use farhand_tests::{Instance, ScriptedAgent, Workspace, eventually, now};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use super::cell::{Cell, Host, Kind};
use super::{either, rounds};

/// The clock that workerd sees: that of the machine, and so many seconds. What counts seconds goes
/// on as before, as it does when somebody sets a machine's clock.
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
        assert!(built.is_ok_and(|status| status.success()), "the clock needs a C compiler, as cc");
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

    /// What is to be run in workerd's place.
    fn program(&self) -> PathBuf {
        self.folder.path().join("workerd")
    }

    /// Sets the clock. The file is written over, as workerd has it in its memory.
    fn set(&self, offset: i64) {
        let file =
            File::options().create(true).truncate(false).write(true).open(self.file()).unwrap();
        file.write_all_at(&offset.to_ne_bytes(), 0).unwrap();
    }
}

/// The runtime's program, whatever machine this is.
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
async fn the_clock_jumps() {
    // Where it stands after each jump, in seconds off the truth: forward over what makes a command
    // stuck, and back; an hour, over the latest time of what waits.
    const OFFSETS: [i64; 8] = [90, 45, 3_700, 3_660, 3_720, 3_690, 7_500, 7_440];
    let clock = Clock::new();
    let program = clock.program();
    let variables = [("MINIFLARE_WORKERD_PATH", program.to_str().unwrap())];
    let mut cell = Cell::start(
        "clock of workerd set forward by up to an hour, or back by up to a minute",
        &variables,
    )
    .await;
    let [real, scripted] = cell.servers(["real", "scripted"]).await;
    let mut host = Host::new(&cell.desk.workspace, &real, cell.port());
    host.start();
    let agent = cell.scripted(&scripted, false).await;
    let connected = [(&real, true), (&scripted, true)];
    cell.connections_are(&connected).await;
    for offset in &OFFSETS[..either(2, OFFSETS.len())] {
        let (desk, servers) = (cell.desk.clone(), [real.clone(), scripted.clone()]);
        let asked = desk.asked();
        let load = tokio::spawn(async move { desk.load(&servers.each_ref(), 24).await });
        cell.desk.until_asked(asked + 12).await;
        clock.set(*offset);
        cell.fault();
        load.await.unwrap();
        cell.connections_are(&connected).await;
        cell.look(&[&agent]).await;
    }
    cell.settle(&[&agent]).await;
}

/// Asks for commands that go out in some seconds.
async fn plan(cell: &Cell, servers: &[&Value], seconds: i64) {
    let asked =
        servers.iter().cycle().take(8).map(|server| cell.desk.ask(server, Kind::In(seconds)));
    for (_, id) in join_all(asked).await {
        assert!(id.is_some(), "nothing is wrong yet");
    }
}

/// Waits until a scripted agent was handed more than that.
async fn until_handed(agent: &Alpamon, many: usize) {
    while agent.ledger().orders.len() <= many {
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alarms_come_late_or_twice() {
    let mut cell = Cell::start("alarms late, twice, or cut off after what they did", &[]).await;
    let [real, scripted] = cell.servers(["real", "scripted"]).await;
    let servers = [&real, &scripted];
    let mut host = Host::new(&cell.desk.workspace, &real, cell.port());
    host.start();
    let agent = cell.scripted(&scripted, false).await;
    let connected = [(&real, true), (&scripted, true)];
    cell.connections_are(&connected).await;
    for _ in rounds(1, 6) {
        // Late: the machine stands still when they are due.
        plan(&cell, &servers, 1).await;
        cell.instance().pause(true);
        sleep(Duration::from_secs(3)).await;
        cell.instance().pause(false);
        cell.fault();
        cell.look(&[&agent]).await;
        // Cut off: the service dies as soon as there is something to be seen of what the alarm
        // does.
        let handed = agent.ledger().orders.len();
        plan(&cell, &servers, 2).await;
        until_handed(&agent, handed).await;
        cell.kill().await;
        cell.fault();
        // Twice: what went off goes off again, and what was to go off later does so as well.
        assert!(set_off_alarms(cell.state(), "ServerLink") >= servers.len());
        cell.restart().await;
        eventually("the alarms to go off", || async {
            cell.instance().read_objects("ServerLink", ALARM_IS_LONG_AGO).is_empty().then_some(())
        })
        .await;
        cell.fault();
        cell.connections_are(&connected[1..]).await;
        cell.look(&[&agent]).await;
        // Much too late: in an hour, unless the object is called and looks.
        plan(&cell, &servers, 2).await;
        cell.kill().await;
        assert!(delay_alarms(cell.state(), "ServerLink", 3_600) >= servers.len());
        cell.fault();
        cell.restart().await;
        cell.connections_are(&connected[1..]).await;
        cell.look(&[&agent]).await;
    }
    cell.connections_are(&connected).await;
    cell.settle(&[&agent]).await;
}

/// The runtime died when an alarm was about to go off, which then comes an hour late; and the agent
/// is back just after the time that the object believes its alarm is set for. No other call comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_call_after_a_restart_relies_on_no_alarm_of_the_past() {
    let (instance, state) = Instance::new().await;
    let (state, mut workspace) =
        (state.path(), Workspace::made_by(&instance.operator(), "late").await);
    let server = workspace.server("late").await;
    let id = server["id"].as_str().unwrap();
    let agent = ScriptedAgent::connect(&workspace, &server).await;
    wait_until_connected(&workspace, id, true).await;
    // Something that an alarm is set for.
    let later = now().plus_seconds(3_600).to_string();
    let body = json!({"server": "late", "line": "true", "username": "root", "scheduled_at": later});
    workspace.admin.post(COMMANDS, &body).await.expect(201);
    drop(agent);
    wait_until_connected(&workspace, id, false).await;
    instance.kill().await;
    assert!(delay_alarms(state, "ServerLink", 3_600) > 0);
    let instance = Instance::restart(state).await;
    for api in [&mut workspace.admin, &mut workspace.anonymous] {
        *api = api.on(&instance.url);
    }
    // Nobody called the object yet.
    let just_now = i64::try_from(now().as_millis()).unwrap() - 500;
    let believes = format!("UPDATE _cf_METADATA SET value = {just_now} * 1000000 WHERE key = 1");
    assert!(change_objects(state, "ServerLink", &believes) > 0);
    let _agent = ScriptedAgent::connect(&workspace, &server).await;
    wait_until_connected(&workspace, id, true).await;
}
