//! Connections are cut at every step of a command, before, amid and after what goes by.

use futures_util::future::join_all;
use serde_json::Value;

use super::cell::{Cell, Desk, Host, Kind};
use super::rounds;
use super::wire::{Moment, Step, Way, Wire};

/// What goes by, and which way.
const MESSAGES: [(&str, Way, &str); 5] = [
    ("dial", Way::ToService, "GET /ws/servers/backhaul/"),
    ("order", Way::ToAgent, "\"query\":\"command\""),
    ("ack", Way::ToService, "/ack/ HTTP"),
    ("chunk", Way::ToService, "/chunk/ HTTP"),
    ("fin", Way::ToService, "/fin/ HTTP"),
];
/// When it is cut.
const MOMENTS: [Moment; 4] = [Moment::Before, Moment::Half, Moment::After, Moment::Answered];

fn steps() -> impl Iterator<Item = Step> {
    let all = MESSAGES.iter().flat_map(|message| MOMENTS.map(|moment| (message, moment)));
    all.filter(|((_, way, _), moment)| *way == Way::ToService || *moment != Moment::Answered)
        .map(|((name, way, sign), moment)| Step { name, way: *way, sign, moment })
}

/// Cuts a connection of an agent's at a step, and waits for the end of what was under way.
async fn cut(desk: &Desk, server: &Value, wire: &Wire, step: Step) {
    let before = wire.times();
    wire.set(step, || {});
    if step.name == "dial" {
        // It dials again when its socket is cut.
        wire.cut();
    }
    let (_, id) = desk.ask(server, Kind::Queued).await;
    wire.until_more_than(before).await;
    let done = desk.ended(&id.unwrap()).await;
    // An order that did not come through whole is never sent again, also where it went out on a
    // socket that was just cut; all else is tried again until it comes through.
    let is_lost = step.name == "order" && step.moment != Moment::After;
    let expected: &[&str] = match step.name {
        _ if is_lost => &["Stuck"],
        "order" | "dial" => &["Stuck", "Success"],
        _ => &["Success"],
    };
    assert!(expected.contains(&done["status"]["text"].as_str().unwrap()), "{step:?}: {done}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_are_cut_at_every_step() {
    let mut cell = Cell::start("connection cut at each step of a command", &[]).await;
    let mut agents = Vec::new();
    // Those whose commands get stuck take a minute, so that each step has an agent of its own.
    for (number, step) in steps().enumerate() {
        let server = cell.desk.workspace.server(&format!("step-{number}")).await;
        let wire = Wire::to(cell.port()).await;
        let mut host = Host::new(&cell.desk.workspace, &server, wire.port);
        host.start();
        agents.push((server, wire, host, step));
    }
    let connected: Vec<_> = agents.iter().map(|(server, ..)| (server, true)).collect();
    cell.connections_are(&connected).await;
    for _ in rounds(1, 6) {
        let desk = cell.desk.clone();
        join_all(agents.iter().map(|(server, wire, _, step)| cut(&desk, server, wire, *step)))
            .await;
        for _ in &agents {
            cell.fault();
        }
        cell.connections_are(&connected).await;
        cell.look(&[]).await;
    }
    cell.settle(&[]).await;
}
