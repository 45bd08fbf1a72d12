//! workerd is killed while batches run or are killed, with the objects that coordinate them.

use std::time::Duration;

use farhand_tests::agents::{ScriptedAgent, wait_until_connected};
use farhand_tests::alpamon::Alpamon;
use farhand_tests::people::{BATCHES, item_path};
use farhand_tests::{Dice, eventually_within};
use serde_json::{Value, json};

use super::cell::Cell;
use super::rounds;

/// The number of servers of each batch.
const SERVERS: usize = 8;
/// Time limit for a batch to end: agents reconnect within a minute, and a command that was lost
/// with its connection is stuck after another minute.
const END_TIMEOUT: Duration = Duration::from_secs(240);
/// The kill comes at most this many milliseconds after the creation.
const MAX_DELAY: usize = 1_500;

/// Reads a batch.
async fn read(cell: &Cell, batch: &Value) -> Value {
    cell.workload.workspace.admin.get(&item_path(BATCHES, batch)).await.expect(200)
}

/// Asserts that the counts sum to the total, and that no target has two ends.
fn check_counts(batch: &Value) {
    let counts = batch["counts"].as_object().unwrap();
    let number = |name: &str| counts[name].as_u64().unwrap();
    let states = counts.keys().filter(|name| *name != "total");
    assert_eq!(states.map(|name| number(name)).sum::<u64>(), number("total"), "{batch}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_batch_ends_and_runs_once_when_its_coordinator_is_killed() {
    let variables = [("AGENT_PING_SECONDS", "5")];
    let mut cell =
        Cell::start("coordinator of a batch killed, and started again", &variables).await;
    let mut agents: Vec<(Value, Alpamon)> = Vec::new();
    for number in 0..SERVERS {
        let server = cell.workload.workspace.server(&format!("target-{number}")).await;
        let agent = cell.connect_scripted(&server, false).await;
        agents.push((server, agent));
    }
    let mut dice = Dice(11);
    for round in rounds(3, 40) {
        let fields = json!({
            "targets": {"all": true}, "line": format!("batch {round}"), "on_offline": "queue",
            "max_concurrency": 1 + dice.roll(SERVERS), "timeout": 10,
        });
        let batch = cell.workload.workspace.admin.post(BATCHES, &fields).await.expect(201);
        tokio::time::sleep(Duration::from_millis(dice.roll(MAX_DELAY) as u64)).await;
        cell.kill().await;
        cell.count_fault();
        cell.restart().await;
        let ended = eventually_within(END_TIMEOUT, "the batch's end", || async {
            let batch = read(&cell, &batch).await;
            check_counts(&batch);
            cell.assert_counters_match_rows();
            batch["finished_at"].is_string().then_some(batch)
        })
        .await;
        let path = format!("{}targets/?page_size=100", item_path(BATCHES, &batch));
        let targets = cell.workload.workspace.admin.get(&path).await.expect(200);
        let targets = targets["results"].as_array().unwrap();
        assert_eq!(targets.len(), SERVERS);
        for target in targets {
            let (_, agent) =
                agents.iter().find(|(server, _)| server["id"] == target["server"]).unwrap();
            let log = agent.log();
            assert!(log.repeated.is_empty(), "{:?}", log.repeated);
            let id = target["command"].as_str().unwrap_or_else(|| panic!("{target} {ended}"));
            let runs = log.ids().iter().filter(|delivered| *delivered == id).count();
            let has_run = target["state"] == "success";
            assert!(runs == 1 || runs == 0 && !has_run, "{runs} runs: {target}");
            let of_batch = |order: &&Value| order["line"] == fields["line"];
            assert!(log.delivered.iter().filter(of_batch).count() <= 1, "{target}");
            cell.count_target(target["state"].as_str().unwrap(), runs);
        }
    }
    cell.finish();
}

/// The next message of a kind that the service sends to an agent. Responds to pings.
async fn next(agent: &mut ScriptedAgent, query: &str) -> Value {
    loop {
        let message = agent.next().await.unwrap();
        if message["query"] == "ping" {
            agent.send(&json!({"query": "pong", "timestamp": 1.5})).await;
        }
        if message["query"] == query {
            return message;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_reaches_every_running_command_when_the_coordinator_is_killed() {
    let mut cell = Cell::start("coordinator of a batch killed while it kills", &[]).await;
    let servers = cell.create_servers(["one", "two", "three"]).await;
    let (workspace, mut dice) = (cell.workload.clone(), Dice(7));
    let workspace = &workspace.workspace;
    let connect = async |server| {
        let agent = ScriptedAgent::connect_with_features(workspace, server, "kill").await;
        wait_until_connected(workspace, server["id"].as_str().unwrap(), true).await;
        agent
    };
    for _ in rounds(2, 20) {
        let mut agents = Vec::new();
        for server in &servers {
            agents.push(connect(server).await);
        }
        let fields = json!({"targets": {"all": true}, "line": "sleep 1000"});
        let batch = workspace.admin.post(BATCHES, &fields).await.expect(201);
        let mut orders = Vec::new();
        for agent in &mut agents {
            let id = next(agent, "command").await["command"]["id"].clone();
            agent.ack(id.as_str().unwrap()).await;
            orders.push(id);
        }
        // The kill reaches two agents before or after the crash, and one that was not connected.
        agents.pop().unwrap().close().await;
        let path = format!("{}kill/", item_path(BATCHES, &batch));
        workspace.admin.post(&path, &json!({})).await.expect(202);
        tokio::time::sleep(Duration::from_millis(dice.roll(100) as u64)).await;
        cell.kill().await;
        cell.count_fault();
        cell.restart().await;
        for (server, id) in servers.iter().zip(&orders) {
            let mut agent = connect(server).await;
            while next(&mut agent, "kill").await["id"] != *id {}
            agent.fin(id.as_str().unwrap(), 137, "").await;
        }
        let ended = eventually_within(END_TIMEOUT, "the batch's end", || async {
            let batch = read(&cell, &batch).await;
            check_counts(&batch);
            batch["finished_at"].is_string().then_some(batch)
        })
        .await;
        assert_eq!(ended["state"], "cancelled");
        assert_eq!(ended["counts"]["failed"], servers.len(), "{ended}");
        servers.iter().for_each(|_| cell.count_target("failed", 1));
    }
    cell.finish();
}
