//! workerd is killed.

use farhand_tests::Dice;

use super::cell::{Cell, Host};
use super::rounds;

/// How many commands are asked for around each kill.
const LOAD: usize = 24;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_runtime_is_killed_under_load() {
    // A connection whose agent did not survive the service is noticed by the next ping.
    let variables = [("AGENT_PING_SECONDS", "5")];
    let mut cell = Cell::start("workerd killed under load, and started again", &variables).await;
    let [stays, dies, scripted, late, gone] =
        cell.servers(["stays", "dies", "scripted", "late", "gone"]).await;
    let [mut one, mut other, mut latecomer] =
        [&stays, &dies, &late].map(|server| Host::new(&cell.desk.workspace, server, cell.port()));
    one.start();
    other.start();
    let agent = cell.scripted(&scripted, false).await;
    let mut leaver = Some(cell.scripted(&gone, false).await);
    cell.connections_are(&[
        (&stays, true),
        (&dies, true),
        (&scripted, true),
        (&late, false),
        (&gone, true),
    ])
    .await;
    let mut dice = Dice(7);
    let mut loads = Vec::new();
    for round in rounds(2, 50) {
        let (desk, servers) =
            (cell.desk.clone(), [&stays, &dies, &scripted, &late].map(Clone::clone));
        let asked = desk.asked();
        loads.push(tokio::spawn(async move { desk.load(&servers.each_ref(), LOAD).await }));
        cell.desk.until_asked(asked + 4 + dice.roll(LOAD - 4)).await;
        if round == 0 {
            // Nobody tells the service that this agent is gone, too.
            drop(leaver.take());
        }
        cell.kill().await;
        cell.fault();
        // A whole machine that fails: an agent dies with the service, and is back after it.
        other.kill().await;
        cell.restart().await;
        other.start();
        // The third one dials again after up to a minute, having been cut off so often.
        cell.connections_are(&[(&dies, true), (&scripted, true), (&late, false)]).await;
        cell.look(&[&agent]).await;
    }
    // A request with a key whose first try was cut off in the middle is taken after half a minute.
    for load in loads {
        load.await.unwrap();
    }
    latecomer.start();
    cell.connections_are(&[
        (&stays, true),
        (&dies, true),
        (&scripted, true),
        (&late, true),
        (&gone, false),
    ])
    .await;
    cell.settle(&[&agent]).await;
}
