//! D1 rejects writes because another process holds the lock of its file.

use std::time::Duration;

use farhand_tests::alpamon::Alpamon;
use farhand_tests::eventually_within;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use tokio::time::sleep;

use super::cell::{AgentHost, Cell, CommandKind};
use super::{few_or_many, rounds};

/// How long D1 rejects writes, in seconds. Rounds use these values in turn.
const LOCK_SECONDS: [u64; 4] = [3, 1, 8, 5];
/// Time limit for some hundred reports.
const REPORTS_TIMEOUT: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_survive_seconds_without_writes_to_d1() {
    let mut cell = Cell::start("D1 takes no writes for 1 to 8 s under load", &[]).await;
    let [real, scripted] = cell.create_servers(["real", "scripted"]).await;
    let mut host = AgentHost::new(&cell.workload.workspace, &real, cell.port());
    host.start();
    let agent = cell.connect_scripted(&scripted, false).await;
    let connected = [(&real, true), (&scripted, true)];
    cell.wait_for_connections(&connected).await;
    for round in rounds(2, 12) {
        let (workload, servers) = (cell.workload.clone(), [real.clone(), scripted.clone()]);
        let requested = workload.requested();
        let load = tokio::spawn(async move { workload.run(&servers.each_ref(), 24).await });
        cell.workload.wait_until_requested(requested + 8).await;
        let lock = cell.instance().lock_d1().await;
        sleep(Duration::from_secs(LOCK_SECONDS[round % LOCK_SECONDS.len()])).await;
        drop(lock);
        cell.count_fault();
        load.await.unwrap();
        cell.wait_for_connections(&connected).await;
        cell.check(&[&agent]).await;
    }
    cell.settle_and_check(&[&agent]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_outbox_drains_when_d1_accepts_writes_again() {
    /// How many commands the service delivers to an agent at the same time.
    const WINDOW: usize = 200;
    let mut cell = Cell::start("outbox full: all reports come while D1 takes no writes", &[]).await;
    let servers = cell.create_servers(["one", "two", "three", "four"]).await;
    let servers = &servers[..few_or_many(1, servers.len())];
    let agents = join_all(servers.iter().map(|server| cell.connect_scripted(server, true))).await;
    let agents: Vec<&Alpamon> = agents.iter().collect();
    let workload = cell.workload.clone();
    let requested = servers.iter().flat_map(|server| (0..WINDOW).map(move |_| server));
    stream::iter(requested.map(|server| workload.request(server, CommandKind::Queued)))
        .buffer_unordered(4)
        .for_each(async |_| {})
        .await;
    for agent in &agents {
        agent.until("its commands", |log| log.delivered.len() == WINDOW).await;
    }
    let lock = cell.instance().lock_d1().await;
    // Commands that were not acknowledged in time may be stuck. A later report replaces that state.
    let over = "SELECT id || ' ' || state FROM commands WHERE handled_at IS NOT NULL ORDER BY id";
    let before = cell.instance().read_d1(over);
    for agent in &agents {
        agent.release();
    }
    // Each object has the ends of its commands, and D1 has none of them.
    eventually_within(REPORTS_TIMEOUT, "the reports to come", || async {
        let ended = "SELECT id FROM commands WHERE document -> '$.life.end.Finished' IS NOT NULL";
        (cell.instance().read_objects("ServerLink", ended).len() == WINDOW * servers.len())
            .then_some(())
    })
    .await;
    assert_eq!(cell.instance().read_d1(over), before);
    drop(lock);
    for _ in servers {
        cell.count_fault();
    }
    for agent in &agents {
        agent.until_idle(REPORTS_TIMEOUT).await;
    }
    let connected: Vec<_> = servers.iter().map(|server| (server, true)).collect();
    cell.wait_for_connections(&connected).await;
    cell.check(&agents).await;
    cell.settle_and_check(&agents).await;
}
