//! Servers with scripted agents, for tests that run batches.

use std::collections::BTreeMap;

use farhand_tests::agents::{ScriptedAgent, wait_until_connected};
use farhand_tests::client::{Api, Workspace};
use farhand_tests::people::{SERVERS, item_path};
use farhand_tests::{PATIENCE, eventually, eventually_within};
use serde_json::{Value, json};

/// The path of batches.
pub use farhand_tests::people::BATCHES as PATH;

/// A workspace with servers, whose agents a test controls.
pub struct Fleet {
    pub workspace: Workspace,
    pub servers: Vec<Value>,
    /// The connected agents, by the place of their server.
    pub agents: BTreeMap<usize, ScriptedAgent>,
}

impl Fleet {
    /// Creates servers, and connects the agents of the first `connected` ones.
    pub async fn new(servers: usize, connected: usize) -> Self {
        let workspace = Workspace::new().await;
        let mut fleet = Self { workspace, servers: vec![], agents: BTreeMap::new() };
        for place in 0..servers {
            fleet.servers.push(fleet.workspace.server(&format!("web-{place:02}")).await);
            if place < connected {
                fleet.connect(place).await;
            }
        }
        fleet
    }

    /// Connects the agent of a server, which can kill commands.
    pub async fn connect(&mut self, place: usize) {
        let server = &self.servers[place];
        let agent =
            ScriptedAgent::connect_with_features(&self.workspace, server, "kill, stdin").await;
        self.agents.insert(place, agent);
        wait_until_connected(&self.workspace, self.id(place), true).await;
    }

    pub fn id(&self, place: usize) -> &str {
        self.servers[place]["id"].as_str().unwrap()
    }

    /// Deletes a server.
    pub async fn delete(&self, place: usize) {
        self.workspace.admin.delete(&item_path(SERVERS, &self.servers[place])).await.expect(204);
    }

    /// Creates a batch on all servers, with more fields.
    pub async fn batch(&self, more: Value) -> Value {
        self.batch_of(&self.workspace.admin, more).await
    }

    /// Like [`Self::batch`], for another caller.
    pub async fn batch_of(&self, api: &Api, more: Value) -> Value {
        let mut body = json!({"targets": {"all": true}, "line": "uptime"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        api.post(PATH, &body).await.expect(201)
    }

    /// The next command of an agent.
    pub async fn next(&mut self, place: usize) -> Value {
        self.agents.get_mut(&place).unwrap().next_command().await
    }

    /// The next command of an agent, acknowledged.
    pub async fn run(&mut self, place: usize) -> Value {
        let order = self.next(place).await;
        self.agents[&place].ack(order["id"].as_str().unwrap()).await;
        order
    }

    /// Runs the next command of an agent to its end, with an exit code.
    pub async fn finish(&mut self, place: usize, code: i32) -> Value {
        let order = self.run(place).await;
        self.agents[&place].fin(order["id"].as_str().unwrap(), code, "output\n").await;
        order
    }

    /// Whether no agent gets a message for half a second.
    pub async fn are_silent(&mut self) -> bool {
        let silent = self.agents.values_mut().map(ScriptedAgent::stays_silent);
        futures_util::future::join_all(silent).await.into_iter().all(|is_silent| is_silent)
    }

    /// Reads a batch.
    pub async fn read(&self, batch: &Value) -> Value {
        self.workspace.admin.get(&item_path(PATH, batch)).await.expect(200)
    }

    /// Reads a batch until a count has a value.
    pub async fn wait_for_count(&self, batch: &Value, state: &str, count: u64) -> Value {
        eventually(&format!("{count} targets to be {state}"), || async {
            let batch = self.read(batch).await;
            check_counts(&batch);
            (batch["counts"][state] == count).then_some(batch)
        })
        .await
    }

    /// Reads a batch until it has ended.
    pub async fn wait_until_ended(&self, batch: &Value) -> Value {
        eventually_within(PATIENCE * 2, "the batch's end", || async {
            let batch = self.read(batch).await;
            check_counts(&batch);
            batch["finished_at"].is_string().then_some(batch)
        })
        .await
    }

    /// The targets of a batch, in the order of the servers.
    pub async fn targets(&self, batch: &Value) -> Vec<Value> {
        let path = format!("{}targets/?page_size=1000", item_path(PATH, batch));
        let list = self.workspace.admin.get(&path).await.expect(200);
        list["results"].as_array().unwrap().clone()
    }
}

/// The counts of a batch sum to its total (contract 13).
fn check_counts(batch: &Value) {
    let counts = batch["counts"].as_object().unwrap();
    let number = |name: &str| counts[name].as_u64().unwrap();
    let states = counts.keys().filter(|name| *name != "total");
    assert_eq!(states.map(|name| number(name)).sum::<u64>(), number("total"), "{batch}");
}
