//! Connections are cut at every step of a command: before, within and after each message.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;
use tokio::time::timeout;

use super::cell::{AgentHost, Cell, CommandKind, Workload};
use super::proxy::{CutPoint, Direction, Proxy, Step};
use super::rounds;

/// The messages of a command, with their direction and the text that identifies them.
const MESSAGES: [(&str, Direction, &str); 5] = [
    ("dial", Direction::ToService, "GET /ws/servers/backhaul/"),
    ("order", Direction::ToAgent, "\"query\":\"command\""),
    ("ack", Direction::ToService, "/ack/ HTTP"),
    ("chunk", Direction::ToService, "/chunk/ HTTP"),
    ("fin", Direction::ToService, "/fin/ HTTP"),
];
/// The number of commands after which the step of a command must have occurred.
const ATTEMPTS: u32 = 5;
/// The maximum time between the end of a command and the response that says so.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
const CUT_POINTS: [CutPoint; 4] =
    [CutPoint::Before, CutPoint::Half, CutPoint::After, CutPoint::Answered];

fn steps() -> impl Iterator<Item = Step> {
    let all = MESSAGES.iter().flat_map(|message| CUT_POINTS.map(|cut_point| (message, cut_point)));
    all.filter(|((_, direction, _), cut_point)| {
        *direction == Direction::ToService || *cut_point != CutPoint::Answered
    })
    .map(|((name, direction, pattern), cut_point)| Step {
        name,
        direction: *direction,
        pattern,
        cut_point,
    })
}

/// Requests a command until the armed step has occurred. A busy agent may skip it: it sends no chunk
/// soon after an ack that it could not send in time. Returns the command's id.
async fn request_until_cut(
    workload: &Workload,
    server: &Value,
    proxy: &Proxy,
    before: u32,
) -> String {
    for _ in 0..ATTEMPTS {
        let (_, id) = workload.request(server, CommandKind::Queued).await;
        let id = id.unwrap();
        tokio::select! {
            () = proxy.wait_for_more_than(before) => return id,
            _ = workload.wait_until_ended(&id) => {}
        }
        // The service stores the end before the proxy forwards the response.
        if timeout(RESPONSE_TIMEOUT, proxy.wait_for_more_than(before)).await.is_ok() {
            return id;
        }
    }
    panic!("the step did not occur in {ATTEMPTS} commands");
}

/// Cuts an agent's connection at a step, and waits until its command has ended.
async fn cut(workload: &Workload, server: &Value, proxy: &Proxy, step: Step) {
    let before = proxy.triggered();
    proxy.arm(step, || {});
    if step.name == "dial" {
        // The agent connects again when its open sockets are cut.
        proxy.cut();
    }
    let id = request_until_cut(workload, server, proxy, before).await;
    let done = workload.wait_until_ended(&id).await;
    // A delivery that did not arrive completely is never repeated, even if it was written to a
    // socket that had just been cut. Every other message is retried until it arrives.
    let is_lost = step.name == "order" && step.cut_point != CutPoint::After;
    let expected: &[&str] = match step.name {
        _ if is_lost => &["Stuck"],
        "order" | "dial" => &["Stuck", "Success"],
        _ => &["Success"],
    };
    assert!(expected.contains(&done["status"]["text"].as_str().unwrap()), "{step:?}: {done}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_may_be_cut_at_every_step() {
    let mut cell = Cell::start("connection cut at each step of a command", &[]).await;
    let mut agents = Vec::new();
    // A stuck command takes a minute, so each step has its own agent and all steps run
    // concurrently.
    for (number, step) in steps().enumerate() {
        let server = cell.workload.workspace.server(&format!("step-{number}")).await;
        let proxy = Proxy::start(cell.port()).await;
        let mut host = AgentHost::new(&cell.workload.workspace, &server, proxy.port);
        host.start();
        agents.push((server, proxy, host, step));
    }
    let connected: Vec<_> = agents.iter().map(|(server, ..)| (server, true)).collect();
    cell.wait_for_connections(&connected).await;
    for _ in rounds(1, 6) {
        let workload = cell.workload.clone();
        join_all(
            agents.iter().map(|(server, proxy, _, step)| cut(&workload, server, proxy, *step)),
        )
        .await;
        for _ in &agents {
            cell.count_fault();
        }
        cell.wait_for_connections(&connected).await;
        cell.check(&[]).await;
    }
    cell.settle_and_check(&[]).await;
}
