//! workerd is killed while commands are requested.

use farhand_tests::Dice;

use super::cell::{AgentHost, Cell};
use super::rounds;

/// The number of commands that are requested around each kill.
const COMMANDS_PER_KILL: usize = 24;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_the_runtime_is_killed_under_load() {
    // After a restart, the service notices with the next ping that an agent has disconnected.
    let variables = [("AGENT_PING_SECONDS", "5")];
    let mut cell = Cell::start("workerd killed under load, and started again", &variables).await;
    let [stays, dies, scripted, late, gone] =
        cell.create_servers(["stays", "dies", "scripted", "late", "gone"]).await;
    let [mut one, mut other, mut latecomer] = [&stays, &dies, &late]
        .map(|server| AgentHost::new(&cell.workload.workspace, server, cell.port()));
    one.start();
    other.start();
    let agent = cell.connect_scripted(&scripted, false).await;
    let mut leaver = Some(cell.connect_scripted(&gone, false).await);
    cell.wait_for_connections(&[
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
        let (workload, servers) =
            (cell.workload.clone(), [&stays, &dies, &scripted, &late].map(Clone::clone));
        let requested = workload.requested();
        loads.push(tokio::spawn(async move {
            workload.run(&servers.each_ref(), COMMANDS_PER_KILL).await
        }));
        cell.workload.wait_until_requested(requested + 4 + dice.roll(COMMANDS_PER_KILL - 4)).await;
        if round == 0 {
            // This agent ends together with the service, so its connection never closes properly.
            drop(leaver.take());
        }
        cell.kill().await;
        cell.count_fault();
        // Simulates a whole machine that fails: one agent dies with the service and starts after
        // it.
        other.kill().await;
        cell.restart().await;
        other.start();
        // The agent of `stays` was cut off so often that it may take a minute to reconnect.
        cell.wait_for_connections(&[(&dies, true), (&scripted, true), (&late, false)]).await;
        cell.check(&[&agent]).await;
    }
    // If the first attempt of a request with a key was cut off, the service accepts a retry after
    // half a minute.
    for load in loads {
        load.await.unwrap();
    }
    latecomer.start();
    cell.wait_for_connections(&[
        (&stays, true),
        (&dies, true),
        (&scripted, true),
        (&late, true),
        (&gone, false),
    ])
    .await;
    cell.settle_and_check(&[&agent]).await;
}
