//! D1 takes no writes, as another process holds the lock of its file.

use std::time::Duration;

use farhand_tests::alpamon::Alpamon;
use farhand_tests::eventually_within;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use tokio::time::sleep;

use super::cell::{Cell, Host, Kind};
use super::{either, rounds};

/// How long D1 takes no writes, in seconds, in turn.
const SECONDS: [u64; 4] = [3, 1, 8, 5];
/// How long some hundred reports may take.
const LONG: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_takes_no_writes_for_seconds() {
    let mut cell = Cell::start("D1 takes no writes for 1 to 8 s under load", &[]).await;
    let [real, scripted] = cell.servers(["real", "scripted"]).await;
    let mut host = Host::new(&cell.desk.workspace, &real, cell.port());
    host.start();
    let agent = cell.scripted(&scripted, false).await;
    let connected = [(&real, true), (&scripted, true)];
    cell.connections_are(&connected).await;
    for round in rounds(2, 12) {
        let (desk, servers) = (cell.desk.clone(), [real.clone(), scripted.clone()]);
        let asked = desk.asked();
        let load = tokio::spawn(async move { desk.load(&servers.each_ref(), 24).await });
        cell.desk.until_asked(asked + 8).await;
        let lock = cell.instance().lock_d1().await;
        sleep(Duration::from_secs(SECONDS[round % SECONDS.len()])).await;
        drop(lock);
        cell.fault();
        load.await.unwrap();
        cell.connections_are(&connected).await;
        cell.look(&[&agent]).await;
    }
    cell.settle(&[&agent]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_that_is_full_empties() {
    /// As many as an agent is given at once.
    const WINDOW: usize = 200;
    let mut cell = Cell::start("outbox full: all reports come while D1 takes no writes", &[]).await;
    let servers = cell.servers(["one", "two", "three", "four"]).await;
    let servers = &servers[..either(1, servers.len())];
    let agents = join_all(servers.iter().map(|server| cell.scripted(server, true))).await;
    let agents: Vec<&Alpamon> = agents.iter().collect();
    let desk = cell.desk.clone();
    let asked = servers.iter().flat_map(|server| (0..WINDOW).map(move |_| server));
    stream::iter(asked.map(|server| desk.ask(server, Kind::Queued)))
        .buffer_unordered(4)
        .for_each(async |_| {})
        .await;
    for agent in &agents {
        agent.until("its commands", |ledger| ledger.orders.len() == WINDOW).await;
    }
    let lock = cell.instance().lock_d1().await;
    // What was not asked for in time may be stuck; its report replaces that.
    let over = "SELECT id || ' ' || state FROM commands WHERE handled_at IS NOT NULL ORDER BY id";
    let before = cell.instance().read_d1(over);
    for agent in &agents {
        agent.release();
    }
    // Every end is in an object, and none in D1.
    eventually_within(LONG, "the reports to come", || async {
        let ended = "SELECT id FROM commands WHERE document -> '$.life.end.Finished' IS NOT NULL";
        (cell.instance().read_objects("ServerLink", ended).len() == WINDOW * servers.len())
            .then_some(())
    })
    .await;
    assert_eq!(cell.instance().read_d1(over), before);
    drop(lock);
    for _ in servers {
        cell.fault();
    }
    for agent in &agents {
        agent.until_idle(LONG).await;
    }
    let connected: Vec<_> = servers.iter().map(|server| (server, true)).collect();
    cell.connections_are(&connected).await;
    cell.look(&agents).await;
    cell.settle(&agents).await;
}
