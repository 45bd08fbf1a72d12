//! `/api/events/commands/<id>/chunks/` and `.../stream/` (contract 7.9, 4.12 and 8).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use farhand_domain::time::Timestamp;
use farhand_tests::agents::{ScriptedAgent, credential, own_account};
use farhand_tests::client::PASSWORD;
use farhand_tests::events::Block;
use farhand_tests::instance::change_objects;
use farhand_tests::{Api, Events, Instance, RealAgent, Workspace, far_ahead};
use futures_util::{StreamExt, future, stream};
use serde_json::{Value, json};

const PATH: &str = "/api/events/commands/";
/// The maximum output that is stored of a command, in bytes.
const MAX_KEPT: usize = 16 << 20;
/// Time limit for ending a stream after its credential became invalid.
const REVOKED_WITHIN: Duration = Duration::from_secs(45);

async fn workspace_with_agent() -> (Workspace, Value, ScriptedAgent) {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let agent = ScriptedAgent::connect(&workspace, &server).await;
    (workspace, server, agent)
}

/// Creates a command that the agent receives and acknowledges. Returns its id.
async fn deliver(workspace: &Workspace, agent: &mut ScriptedAgent) -> String {
    let id = deliver_unacknowledged(workspace, agent).await;
    agent.ack(&id).await;
    id
}

/// Creates a command that the agent receives. Without an ack, it is stuck after a minute. Returns
/// its id.
async fn deliver_unacknowledged(workspace: &Workspace, agent: &mut ScriptedAgent) -> String {
    let made =
        workspace.admin.post(PATH, &json!({"server": "web-1", "line": "id"})).await.expect(201);
    assert_eq!(agent.next_command().await["id"], made["id"]);
    made["id"].as_str().unwrap().to_owned()
}

fn path_of(id: &str) -> String {
    format!("{PATH}{id}/")
}

fn chunks_path(id: &str) -> String {
    format!("{PATH}{id}/chunks/")
}

fn stream_path(id: &str) -> String {
    format!("{PATH}{id}/stream/")
}

async fn follow(api: &Api, id: &str) -> Events {
    open(api, id, None).await
}

async fn open(api: &Api, id: &str, last_event_id: Option<&str>) -> Events {
    let opened = Events::resume(api, &stream_path(id), last_event_id).await;
    opened.unwrap_or_else(|reply| panic!("the stream was refused: {} {}", reply.status, reply.text))
}

/// Reports the end of a command, with an optional result and an optional number of chunks.
async fn finish(agent: &ScriptedAgent, id: &str, result: Option<&str>, chunks: Option<u32>) {
    let mut fin = json!({"success": true, "elapsed_time": 0.25, "exit_code": 0});
    if let Some(result) = result {
        fin["result"] = json!(result);
    }
    if let Some(chunks) = chunks {
        fin["chunks"] = json!(chunks);
    }
    agent.report(id, "fin", Some(&fin)).await.expect(204);
}

/// The chunks of a command, page by page.
async fn all_chunks(api: &Api, id: &str) -> Vec<(u32, String)> {
    let (mut chunks, mut page) = (Vec::new(), 1);
    loop {
        let reply =
            api.get(&format!("{}?page_size=100&page={page}", chunks_path(id))).await.expect(200);
        chunks.extend(reply["results"].as_array().unwrap().iter().map(|chunk| {
            assert_eq!(chunk.as_object().unwrap().len(), 2, "{chunk}");
            let seq = u32::try_from(chunk["seq"].as_u64().unwrap()).unwrap();
            (seq, chunk["content"].as_str().unwrap().to_owned())
        }));
        if reply["next"].is_null() {
            assert_eq!(reply["count"], json!(chunks.len()));
            return chunks;
        }
        page += 1;
    }
}

fn seqs(chunks: &[(u32, String)]) -> Vec<u32> {
    chunks.iter().map(|(seq, _)| *seq).collect()
}

fn text(chunks: &[(u32, String)]) -> String {
    chunks.iter().map(|(_, content)| content.as_str()).collect()
}

fn numbered(seqs: impl IntoIterator<Item = u32>) -> Vec<(u32, String)> {
    seqs.into_iter().map(|seq| (seq, format!("chunk {seq}\n"))).collect()
}

/// Asserts that the end event has the current command, and `output_truncated` as expected.
async fn assert_end_event(api: &Api, end: &Value, is_truncated: bool) {
    let mut expected = api.get(&path_of(end["id"].as_str().unwrap())).await.expect(200);
    assert!(expected["handled_at"].is_string(), "{expected}");
    expected["output_truncated"] = json!(is_truncated);
    assert_eq!(end, &expected);
}

// The order of chunks.

/// Sends chunks in the given order, some before the fin and some after it. Asserts that a stream
/// from the beginning has all of them in order.
async fn assert_order(
    workspace: &Workspace,
    agent: &ScriptedAgent,
    id: &str,
    (before, after): (&[u32], &[u32]),
    (result, total): (Option<&str>, Option<u32>),
) {
    let case = format!("{before:?}, fin with {result:?} and {total:?}, {after:?}");
    let mut events = follow(&workspace.admin, id).await;
    for seq in before {
        agent.chunk(id, *seq, &format!("chunk {seq}\n")).await;
    }
    let (mut slowest, mut last) = (Duration::ZERO, Instant::now());
    finish(agent, id, result, total).await;
    for seq in after {
        agent.chunk(id, *seq, &format!("chunk {seq}\n")).await;
        slowest = slowest.max(last.elapsed());
        last = Instant::now();
    }
    let (chunks, end) = events.rest().await;
    if result.is_none() && total.is_none() && slowest > Duration::from_millis(1_500) {
        // Without a number of chunks or a result, the stream waits at most two seconds for more
        // output.
        assert!(numbered(0..6).starts_with(&chunks), "{case}");
        assert_eq!(all_chunks(&workspace.admin, id).await, numbered(0..6), "{case}");
        return;
    }
    assert_eq!(chunks, numbered(0..6), "{case}");
    assert_eq!(all_chunks(&workspace.admin, id).await, numbered(0..6), "{case}");
    assert_eq!(
        (&end["output_truncated"], &end["output_bytes"]),
        (&json!(false), &json!(48)),
        "{case}"
    );
    // A second stream from the beginning gets the same chunks.
    let (chunks, again) = follow(&workspace.admin, id).await.rest().await;
    assert_eq!((chunks, again), (numbered(0..6), end), "{case}");
}

#[tokio::test]
async fn output_is_in_the_order_of_its_chunk_numbers() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let result: String = text(&numbered(0..6));
    let result = result.as_str();
    let mut cases = Vec::new();
    // The end of the output is known by the number of chunks, by the length of the result, by both,
    // or not at all.
    for fin in [(None, Some(6)), (Some(result), None), (Some(result), Some(6)), (None, None)] {
        for order in [&[0, 1, 2, 3, 4, 5][..], &[5, 4, 3, 2, 1, 0], &[2, 2, 0, 5, 0, 1, 4, 3, 3]] {
            // All, half or none of the chunks are sent before the fin.
            for before in [order.len(), order.len() / 2, 0] {
                cases.push((deliver(&workspace, &mut agent).await, order.split_at(before), fin));
            }
        }
    }
    let runs = stream::iter(&cases);
    runs.for_each_concurrent(9, |(id, order, fin)| {
        assert_order(&workspace, &agent, id, *order, *fin)
    })
    .await;
}

#[tokio::test]
async fn a_chunk_waits_for_those_before_it() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let id = deliver(&workspace, &mut agent).await;
    let mut events = follow(&workspace.admin, &id).await;
    agent.chunk(&id, 0, "a").await;
    assert_eq!(events.next_chunk().await, (0, "a".to_owned()));
    agent.chunk(&id, 3, "d").await;
    agent.chunk(&id, 2, "c").await;
    // The pages show the stored chunks, despite the gap.
    assert_eq!(seqs(&all_chunks(&workspace.admin, &id).await), [0, 2, 3]);
    agent.chunk(&id, 1, "b").await;
    for expected in [(1, "b"), (2, "c"), (3, "d")] {
        let (seq, content) = events.next_chunk().await;
        assert_eq!((seq, content.as_str()), expected);
    }
    // The first content for a number is kept.
    agent.chunk(&id, 1, "other").await;
    agent.chunk(&id, 4, "e").await;
    finish(&agent, &id, Some("abcde"), Some(5)).await;
    let (chunks, end) = events.rest().await;
    assert_eq!(chunks, [(4, "e".to_owned())]);
    assert_end_event(&workspace.admin, &end, false).await;
    assert_eq!(text(&all_chunks(&workspace.admin, &id).await), "abcde");
}

#[tokio::test]
async fn missing_chunks_are_reported_in_the_end_event() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let (two, three, four) = (text(&numbered(0..2)), text(&numbered(0..3)), text(&numbered(0..4)));
    let mut cases = Vec::new();
    for (seqs, result, total, is_truncated) in [
        // Missing chunks: in the middle, at the end by number of chunks, at the end by length of
        // the result, and at the beginning.
        (&[0, 2, 3][..], four.as_str(), Some(4), true),
        (&[0, 1], &three, Some(3), true),
        (&[0, 1], &three, None, true),
        (&[1], "", None, true),
        // An agent without chunks: everything is in the result, and nothing in the stream.
        (&[], "only here", None, true),
        // Text that an agent adds to the result is not output.
        (&[0, 1], &three, Some(2), false),
        // Nothing is missing.
        (&[0, 1], &two, None, false),
        (&[], "", None, false),
        (&[], "", Some(0), false),
    ] {
        cases.push((deliver(&workspace, &mut agent).await, seqs, result, total, is_truncated));
    }
    let run = async |(id, seqs, result, total, is_truncated): &(
        String,
        &[u32],
        &str,
        Option<u32>,
        bool,
    )| {
        let mut events = follow(&workspace.admin, id).await;
        for seq in *seqs {
            agent.chunk(id, *seq, &format!("chunk {seq}\n")).await;
        }
        finish(&agent, id, Some(result), *total).await;
        let (chunks, end) = events.rest().await;
        assert_eq!(chunks, numbered(seqs.iter().copied()), "{result}, {total:?}");
        assert_eq!(
            end["result"].as_str().unwrap().is_empty(),
            result.is_empty() && seqs.is_empty()
        );
        assert_end_event(&workspace.admin, &end, *is_truncated).await;
    };
    future::join_all(cases.iter().map(run)).await;
}

#[tokio::test]
async fn stuck_commands_and_gaps_end_streams_after_a_minute() {
    future::join(test_a_gap_of_a_running_command(), test_a_stuck_command()).await;
}

async fn test_a_stuck_command() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let running = deliver(&workspace, &mut agent).await;
    let id = deliver_unacknowledged(&workspace, &mut agent).await;
    let mut events = follow(&workspace.admin, &id).await;
    agent.chunk(&id, 0, "chunk 0\n").await;
    // The command is never acknowledged.
    let (chunks, end) = events.rest().await;
    assert_eq!((chunks, &end["status"]["text"]), (numbered(0..1), &json!("Stuck")));
    assert_end_event(&workspace.admin, &end, false).await;
    // After the end, chunks far beyond the other chunks are dropped.
    agent.chunk(&id, 257, "far\n").await;
    agent.chunk(&id, u32::MAX, "far\n").await;
    assert_eq!(seqs(&all_chunks(&workspace.admin, &id).await), [0]);
    agent.chunk(&running, 400, "running\n").await;
    assert_eq!(
        seqs(&all_chunks(&workspace.admin, &running).await),
        [400],
        "a running command accepts any chunk"
    );
    // A late fin replaces the stuck state.
    agent.chunk(&id, 1, "chunk 1\n").await;
    finish(&agent, &id, None, Some(2)).await;
    let (chunks, end) = open(&workspace.admin, &id, Some("0")).await.rest().await;
    assert_eq!((chunks, &end["status"]["text"]), (numbered(1..2), &json!("Success")));
    assert_end_event(&workspace.admin, &end, false).await;
}

async fn test_a_gap_of_a_running_command() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let id = deliver(&workspace, &mut agent).await;
    agent.ack(&id).await;
    let mut events = follow(&workspace.admin, &id).await;
    for seq in [0, 2, 3] {
        agent.chunk(&id, seq, &format!("chunk {seq}\n")).await;
    }
    assert_eq!(events.next_chunk().await.0, 0);
    // An agent retries a report for half a minute. The stream waits that long, and sends
    // keep-alives.
    assert_eq!(events.next_chunk().await.0, 2);
    assert_eq!(events.next_chunk().await.0, 3);
    agent.chunk(&id, 4, "chunk 4\n").await;
    assert_eq!(events.next_chunk().await.0, 4);
    // A chunk that fills the gap later is not sent on this stream. The end event says that output
    // is missing. A later stream has the chunk.
    agent.chunk(&id, 1, "chunk 1\n").await;
    finish(&agent, &id, Some(&text(&numbered(0..5))), Some(5)).await;
    let (chunks, end) = events.rest().await;
    assert_eq!((chunks.len(), &end["output_truncated"]), (0, &json!(true)));
    let (chunks, end) = follow(&workspace.admin, &id).await.rest().await;
    assert_eq!(chunks, numbered(0..5));
    assert_end_event(&workspace.admin, &end, false).await;
}

// The pages of chunks.

#[tokio::test]
async fn chunks_are_paginated() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let id = deliver(&workspace, &mut agent).await;
    let path = chunks_path(&id);
    let empty = json!({"count": 0, "next": null, "previous": null, "results": []});
    assert_eq!(workspace.admin.get(&path).await.expect(200), empty, "no chunk has arrived");
    for seq in 0..40 {
        agent.chunk(&id, seq, &format!("chunk {seq}\n")).await;
    }
    let results = |seqs: std::ops::Range<u32>| -> Value {
        numbered(seqs)
            .into_iter()
            .map(|(seq, content)| json!({"seq": seq, "content": content}))
            .collect()
    };
    let url = |query: &str| format!("http://{}{path}?{query}", workspace.admin.host);
    let first = workspace.admin.get(&path).await.expect(200);
    assert_eq!(
        first,
        json!({"count": 40, "next": url("page=2"), "previous": null, "results": results(0..15)})
    );
    let last = workspace.admin.get(&format!("{path}?page=3")).await.expect(200);
    assert_eq!(
        last,
        json!({"count": 40, "next": null, "previous": url("page=2"), "results": results(30..40)})
    );
    let middle = workspace
        .admin
        .get(&format!("{path}?seq__gte=10&page_size=10&page=2&x=y"))
        .await
        .expect(200);
    let (next, previous) =
        (url("seq__gte=10&page_size=10&x=y&page=3"), url("seq__gte=10&page_size=10&x=y&page=1"));
    assert_eq!(
        middle,
        json!({"count": 30, "next": next, "previous": previous, "results": results(20..30)})
    );
    let all = workspace.admin.get(&format!("{path}?page_size=1000&seq__gte=0")).await.expect(200);
    assert_eq!((&all["count"], &all["results"]), (&json!(40), &results(0..40)));
    for past in ["40", "4294967295", "4294967296", "99999999999999999999999"] {
        assert_eq!(
            workspace.admin.get(&format!("{path}?seq__gte={past}")).await.expect(200),
            empty,
            "{past}"
        );
        workspace
            .admin
            .get(&format!("{path}?seq__gte={past}&page=2"))
            .await
            .expect_detail(404, None);
    }
    workspace.admin.get(&format!("{path}?page=4")).await.expect_detail(404, None);
    workspace
        .admin
        .get(&format!("{path}?page=99999999999999999999"))
        .await
        .expect_detail(404, None);
    for bad in ["", "-1", "+1", "1.5", "x", "0x1", "%201"] {
        workspace
            .admin
            .get(&format!("{path}?seq__gte={bad}"))
            .await
            .expect_fields(400, &["seq__gte"]);
    }
    let all_bad = workspace.admin.get(&format!("{path}?seq__gte=x&page=0&page_size=x")).await;
    all_bad.expect_fields(400, &["page", "page_size", "seq__gte"]);
    // With a gap, pages count the stored chunks.
    agent.chunk(&id, 50, "chunk 50\n").await;
    let last =
        workspace.admin.get(&format!("{path}?seq__gte=36&page_size=4&page=2")).await.expect(200);
    assert_eq!((&last["count"], &last["results"]), (&json!(5), &results(50..51)));
    agent.chunk(&id, 4_294_967_295, "chunk 4294967295\n").await;
    let highest = workspace.admin.get(&format!("{path}?seq__gte=51")).await.expect(200);
    assert_eq!(
        (&highest["count"], &highest["results"][0]["seq"]),
        (&json!(1), &json!(4_294_967_295_u32))
    );
}

// Access.

#[tokio::test]
async fn output_needs_access_to_the_command() {
    let (workspace, server, mut agent) = workspace_with_agent().await;
    let other_workspace = Workspace::new().await;
    let id = deliver(&workspace, &mut agent).await;
    agent.chunk(&id, 0, "x").await;
    finish(&agent, &id, Some("x"), None).await;
    let not_found = Some("COMMAND_NOT_FOUND");
    let outsider = workspace.user("outsider").await;
    let other_server = workspace.server("web-2").await["id"].clone();
    let limited_elsewhere = workspace.limited(&json!({"servers": [other_server]})).await;
    for path in [chunks_path(&id), stream_path(&id)] {
        other_workspace.admin.get(&path).await.expect_detail(404, not_found);
        outsider.get(&path).await.expect_detail(404, not_found);
        limited_elsewhere.get(&path).await.expect_detail(404, not_found);
        workspace.anonymous.get(&path).await.expect_detail(401, None);
        workspace
            .anonymous
            .with_token("unknown")
            .get(&path)
            .await
            .expect_detail(403, Some("INVALID_TOKEN"));
        workspace
            .anonymous
            .with_authorization(&credential(&server))
            .get(&path)
            .await
            .expect_detail(403, Some("INVALID_AUTHORIZATION"));
        let elsewhere = workspace.limited(&json!({"networks": ["10.0.0.0/8"]})).await;
        elsewhere.get(&path).await.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
        assert_eq!(elsewhere.from_address("10.1.2.3").get(&path).await.status, 200);
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            assert_eq!(workspace.admin.call(method, &path).await.status, 405, "{method} {path}");
        }
        // A token can read only commands that it could run, unless its list has `read_all`.
        let mut acl = json!({"servers": [server["id"]], "read_only": true, "commands": ["ls"]});
        workspace.limited(&acl).await.get(&path).await.expect_detail(404, not_found);
        acl["read_all"] = json!(true);
        assert_eq!(workspace.limited(&acl).await.get(&path).await.status, 200);
    }
    for missing in ["01936d3e-7a00-7000-8000-000000000000", "nonsense", "-", "1"] {
        for path in [chunks_path(missing), stream_path(missing)] {
            workspace.admin.get(&path).await.expect_detail(404, not_found);
        }
    }
    // The credential is checked first, then the command, then the input.
    let bad_page = format!("{}?page=0", chunks_path(&id));
    workspace
        .anonymous
        .with_token("unknown")
        .get(&bad_page)
        .await
        .expect_detail(403, Some("INVALID_TOKEN"));
}

#[tokio::test]
async fn a_stream_resumes_only_after_its_own_events() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let id = deliver(&workspace, &mut agent).await;
    for seq in 0..5 {
        agent.chunk(&id, seq, &format!("chunk {seq}\n")).await;
    }
    let mut running = open(&workspace.admin, &id, Some("2")).await;
    assert_eq!([running.next_chunk().await.0, running.next_chunk().await.0], [3, 4]);
    finish(&agent, &id, None, Some(5)).await;
    assert_eq!(running.rest().await.0.len(), 0);
    for (last, expected) in [
        (None, 0..5),
        (Some(""), 0..5),
        (Some("0"), 1..5),
        (Some("3"), 4..5),
        (Some("4"), 0..0),
        (Some("4294967295"), 0..0),
    ] {
        let (chunks, end) = open(&workspace.admin, &id, last).await.rest().await;
        assert_eq!(chunks, numbered(expected), "{last:?}");
        assert_end_event(&workspace.admin, &end, false).await;
    }
    let dead = workspace.anonymous.with_token("unknown");
    for bad in ["x", "-1", "+1", "1.0", "0x1", "4294967296", "1 2"] {
        let refusal =
            Events::resume(&workspace.admin, &stream_path(&id), Some(bad)).await.err().unwrap();
        refusal.expect_fields(400, &["non_field_errors"]);
        let refusal = Events::resume(&dead, &stream_path(&id), Some(bad)).await.err().unwrap();
        refusal.expect_detail(403, Some("INVALID_TOKEN"));
        let refusal = Events::resume(&workspace.admin, &stream_path("nonsense"), Some(bad))
            .await
            .err()
            .unwrap();
        refusal.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    }
}

// Streams of running commands.

#[tokio::test]
async fn a_stream_shows_a_command_from_the_queue_to_its_end() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let body = json!({"server": "web-1", "line": "id", "on_offline": "queue"});
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    let id = made["id"].as_str().unwrap();
    assert_eq!(made["status"]["text"], "Queued");
    let mut events = follow(&workspace.admin, id).await;
    assert_eq!(events.next().await, Some(Block::Retry(1000)));
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert_eq!(agent.next_command().await["id"], made["id"]);
    agent.ack(id).await;
    agent.chunk(id, 0, "begun\n").await;
    assert_eq!(
        events.next_chunk().await,
        (0, "begun\n".to_owned()),
        "the chunk arrives while the command runs"
    );
    agent.chunk(id, 1, "done\n").await;
    agent.fin(id, 3, "begun\ndone\n").await;
    let (chunks, end) = events.rest().await;
    assert_eq!(chunks, [(1, "done\n".to_owned())]);
    assert_eq!((&end["status"]["text"], &end["exit_code"]), (&json!("Failed"), &json!(3)));
    assert_end_event(&workspace.admin, &end, false).await;
}

#[tokio::test]
async fn a_stream_ends_when_its_command_is_cancelled() {
    let workspace = Workspace::new().await;
    workspace.server("web-1").await;
    let far = far_ahead();
    for body in [
        json!({"server": "web-1", "line": "id", "on_offline": "queue"}),
        json!({"server": "web-1", "line": "id", "scheduled_at": far}),
    ] {
        let made = workspace.admin.post(PATH, &body).await.expect(201);
        let id = made["id"].as_str().unwrap();
        let mut events = follow(&workspace.admin, id).await;
        assert_eq!(events.next().await, Some(Block::Retry(1000)));
        workspace.admin.call("POST", &format!("{}cancel/", path_of(id))).await.expect(200);
        let (chunks, end) = events.rest().await;
        assert_eq!((chunks.len(), &end["status"]["text"]), (0, &json!("Cancelled")));
        assert_end_event(&workspace.admin, &end, false).await;
        // A stream that is opened afterwards has the same end event.
        let (chunks, again) = follow(&workspace.admin, id).await.rest().await;
        assert_eq!((chunks.len(), again), (0, end));
    }
}

#[tokio::test]
async fn a_stream_ends_when_its_command_expires() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let now = Timestamp::parse(server["added_at"].as_str().unwrap()).unwrap();
    let body = json!({"server": "web-1", "line": "id", "on_offline": "queue", "expires_at": now.plus_seconds(5)});
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    let mut events = follow(&workspace.admin, made["id"].as_str().unwrap()).await;
    assert_eq!(events.next().await, Some(Block::Retry(1000)));
    let (chunks, end) = events.rest().await;
    assert_eq!((chunks.len(), &end["status"]["text"]), (0, &json!("Expired")));
    assert_end_event(&workspace.admin, &end, false).await;
}

#[tokio::test]
async fn output_and_streams_survive_a_crash() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let (running, ended) =
        (deliver(&workspace, &mut agent).await, deliver(&workspace, &mut agent).await);
    for id in [&running, &ended] {
        agent.chunk(id, 0, "chunk 0\n").await;
        agent.chunk(id, 1, "chunk 1\n").await;
    }
    finish(&agent, &ended, None, Some(2)).await;
    let mut events = follow(&workspace.admin, &running).await;
    assert_eq!(events.next_chunk().await.0, 0);
    instance.kill().await;

    let instance = Instance::restart(state.path()).await;
    let api = workspace.admin.with_url(&instance.url);
    let agent =
        ScriptedAgent::connect_to(&agent.api.with_url(&instance.url), "/ws/servers/backhaul/")
            .await;
    let mut events = open(&api, &running, Some("0")).await;
    assert_eq!(events.next_chunk().await, (1, "chunk 1\n".to_owned()));
    agent.chunk(&running, 2, "chunk 2\n").await;
    finish(&agent, &running, None, Some(3)).await;
    let (chunks, end) = events.rest().await;
    assert_eq!(chunks, numbered(2..3));
    assert_end_event(&api, &end, false).await;
    let (chunks, end) = follow(&api, &ended).await.rest().await;
    assert_eq!(chunks, numbered(0..2));
    assert_end_event(&api, &end, false).await;
    assert_eq!(all_chunks(&api, &ended).await, numbered(0..2));
}

#[tokio::test]
async fn followers_do_not_disturb_each_other() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let id = deliver(&workspace, &mut agent).await;
    agent.chunk(&id, 0, "chunk 0\n").await;
    let mut followers = Vec::new();
    for _ in 0..5 {
        followers.push(follow(&workspace.admin, &id).await);
    }
    for follower in &mut followers {
        assert_eq!(follower.next_chunk().await.0, 0);
    }
    // More followers connect and leave: without reading, after reading, while waiting, and while
    // output arrives.
    for round in 1..=10 {
        let mut leaving = Vec::new();
        for _ in 0..6 {
            leaving.push(follow(&workspace.admin, &id).await);
        }
        for follower in leaving.iter_mut().take(4) {
            assert_eq!(follower.next_chunk().await.0, 0);
        }
        if round % 2 == 0 {
            leaving.clear();
        }
        agent.chunk(&id, round, &format!("chunk {round}\n")).await;
        drop(leaving);
        for follower in &mut followers {
            assert_eq!(follower.next_chunk().await, numbered(round..=round)[0]);
        }
    }
    // The object still accepts commands and reports.
    let other = deliver(&workspace, &mut agent).await;
    agent.fin(&other, 0, "other").await;
    assert_eq!(workspace.admin.get(&path_of(&other)).await.expect(200)["result"], "other");
    finish(&agent, &id, None, Some(11)).await;
    for end in future::join_all(followers.iter_mut().map(Events::rest)).await {
        assert_eq!(end.0.len(), 0);
        assert_end_event(&workspace.admin, &end.1, false).await;
    }
    assert_eq!(all_chunks(&workspace.admin, &id).await, numbered(0..11));
}

#[tokio::test]
async fn a_slow_follower_does_not_block_others() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let id = deliver(&workspace, &mut agent).await;
    let mut lazy = follow(&workspace.admin, &id).await;
    let mut eager = follow(&workspace.admin, &id).await;
    // More than all buffers on the way can hold.
    let piece = "x".repeat(1 << 20);
    for seq in 0..14 {
        agent.chunk(&id, seq, &piece).await;
        assert_eq!(eager.next_chunk().await.0, seq);
    }
    finish(&agent, &id, None, Some(14)).await;
    assert_eq!(eager.rest().await.0.len(), 0);
    let (chunks, end) = lazy.rest().await;
    assert_eq!(seqs(&chunks), (0..14).collect::<Vec<_>>());
    assert!(chunks.iter().all(|(_, content)| *content == piece));
    assert_end_event(&workspace.admin, &end, false).await;
}

#[tokio::test]
async fn streams_and_pages_have_their_headers() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let id = deliver(&workspace, &mut agent).await;
    agent.chunk(&id, 0, "x").await;
    // While the command runs, HEAD responds immediately.
    for (path, media_type) in
        [(chunks_path(&id), "application/json"), (stream_path(&id), "text/event-stream")]
    {
        let head = workspace.admin.call("HEAD", &path).await;
        assert_eq!(
            (head.status, head.text.as_str(), head.header("Content-Type")),
            (200, "", media_type)
        );
        assert_eq!(
            (head.header("Cache-Control"), head.header("X-Content-Type-Options")),
            ("no-store", "nosniff")
        );
        assert!(!head.header("X-Request-Id").is_empty());
    }
    let request = workspace.admin.request("GET", &stream_path(&id)).header("X-Request-Id", "mine");
    let response = request.send().await.unwrap();
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(
        (header("Content-Type").as_str(), header("Cache-Control").as_str()),
        ("text/event-stream", "no-store")
    );
    assert_eq!(
        (header("X-Content-Type-Options").as_str(), header("X-Request-Id").as_str()),
        ("nosniff", "mine")
    );
    // A missing slash is redirected.
    let moved = workspace.admin.get(stream_path(&id).trim_end_matches('/')).await;
    assert_eq!((moved.status, moved.header("Location").ends_with("/stream/")), (308, true));
}

// The content of chunks.

#[tokio::test]
async fn text_arrives_unchanged() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let id = deliver(&workspace, &mut agent).await;
    let pieces = [
        "ärger € 🦀 日本\n",
        "nul\u{0}nul\u{0}\u{0}",
        "dos\r\nline\r\rmac\n\n\n",
        "data: x\ndata:y\n\nid: 7\nevent: end\ndata: {}\n\nretry: 1\n: comment\n",
        "",
        "\u{feff}bom \u{2028}\u{2029}\u{85}\u{7f}\u{1b}[31m\u{fffd}\u{10ffff}",
        "\"quoted\" \\back\\slash\\u0000 </script> %s {}",
        "\n",
        " leading and trailing \t",
        "e\u{301}",
    ];
    let mut events = follow(&workspace.admin, &id).await;
    for (seq, piece) in (0..).zip(pieces) {
        agent.chunk(&id, seq, piece).await;
        assert_eq!(events.next_chunk().await, (seq, piece.to_owned()));
    }
    finish(&agent, &id, Some(&pieces.concat()), None).await;
    let (_, end) = events.rest().await;
    assert_eq!(
        (&end["result"], &end["output_bytes"]),
        (&json!(pieces.concat()), &json!(pieces.concat().len()))
    );
    assert_end_event(&workspace.admin, &end, false).await;
    let chunks = all_chunks(&workspace.admin, &id).await;
    assert_eq!(chunks.iter().map(|(_, content)| content.as_str()).collect::<Vec<_>>(), pieces);
}

#[tokio::test]
async fn large_chunks_arrive_complete() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let id = deliver(&workspace, &mut agent).await;
    // Each chunk needs several rows. Its characters lie across every possible end of a row.
    let pieces =
        ["é".repeat(1_000_000), format!("x{}", "é".repeat(1_000_000)), "🦀\u{0}\n".repeat(350_000)];
    let mut events = follow(&workspace.admin, &id).await;
    for (seq, piece) in (0..).zip(&pieces) {
        agent.chunk(&id, seq, piece).await;
        let (received, content) = events.next_chunk().await;
        assert!(received == seq && content == *piece, "{seq}");
    }
    finish(&agent, &id, None, Some(3)).await;
    let (_, end) = events.rest().await;
    assert_end_event(&workspace.admin, &end, false).await;
    assert_eq!(
        (&end["output_bytes"], &end["result_truncated"]),
        (&json!(pieces.concat().len()), &json!(true))
    );
    let chunks = all_chunks(&workspace.admin, &id).await;
    assert!(seqs(&chunks) == [0, 1, 2] && text(&chunks) == pieces.concat());
    let (chunks, _) = follow(&workspace.admin, &id).await.rest().await;
    assert!(text(&chunks) == pieces.concat());
}

/// Reads a stream to its end, and reconnects each time after `every` bytes of output.
async fn read_with_reconnects(api: &Api, id: &str, every: usize) -> (String, Value, u32) {
    let (mut output, mut next, mut reconnects) = (String::new(), 0, 0);
    loop {
        let last = u32::checked_sub(next, 1).map(|last| last.to_string());
        let mut events = open(api, id, last.as_deref()).await;
        let until = output.len() + every;
        while output.len() < until {
            match events.next_event().await {
                Some(Block::Chunk { seq, content }) => {
                    assert_eq!(seq, next, "each chunk arrives once, in order");
                    output.push_str(&content);
                    next = seq + 1;
                }
                Some(Block::End(command)) => return (output, command, reconnects),
                other => panic!("the stream has no end event: {other:?}"),
            }
        }
        // Disconnects at an arbitrary point of the stream.
        drop(events);
        reconnects += 1;
    }
}

#[tokio::test]
async fn ten_mebibytes_survive_twenty_reconnects() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let id = deliver(&workspace, &mut agent).await;
    // All chunks differ, and end in characters of several bytes.
    let piece = |seq: u32| {
        let line = format!("{seq} é€🦀 ");
        let mut piece = line.repeat(4096 / line.len());
        piece.push_str(&"x".repeat(4096 - piece.len()));
        piece
    };
    let number = (10 << 20) / 4096;
    let write = async {
        // Like Alpamon: four concurrent reports, which overtake each other.
        stream::iter(0..number)
            .for_each_concurrent(4, async |seq| agent.chunk(&id, seq, &piece(seq)).await)
            .await;
        finish(&agent, &id, None, Some(number)).await;
    };
    let read = read_with_reconnects(&workspace.admin, &id, (10 << 20) / 21);
    let ((output, end, reconnects), ()) = future::join(read, write).await;
    assert!(reconnects >= 20, "{reconnects}");
    let expected: String = (0..number).map(piece).collect();
    assert!(output == expected, "the output differs: {} of {} bytes", output.len(), expected.len());
    assert_eq!(end["output_bytes"], json!(10 << 20));
    assert_end_event(&workspace.admin, &end, false).await;
    assert!(text(&all_chunks(&workspace.admin, &id).await) == expected);
}

/// Runs a command on the real agent that also writes its output to a file. Returns the workspace,
/// the output of the stream, the command in its end event, the number of reconnects, and the file's
/// content.
async fn run_on_real_agent(source: &str, every: usize) -> (Workspace, String, Value, u32, Vec<u8>) {
    let workspace = Workspace::new().await;
    let server = workspace.server("here").await;
    let _agent = RealAgent::start(&workspace, &server).await;
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    let body = json!({"server": "here", "line": format!("{source} | tee {}", copy.display()), "username": own_account()});
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    let (output, end, reconnects) =
        read_with_reconnects(&workspace.admin, made["id"].as_str().unwrap(), every).await;
    assert_eq!(end["status"]["text"], "Success", "{}", end["status"]);
    let written = std::fs::read(copy).unwrap();
    (workspace, output, end, reconnects, written)
}

#[tokio::test]
async fn real_output_survives_twenty_reconnects() {
    let source = "head -c 10485760 /dev/urandom | base64 -w 76 | head -c 10485760";
    let (workspace, output, end, reconnects, written) =
        run_on_real_agent(source, (10 << 20) / 25).await;
    assert!(reconnects >= 20, "{reconnects}");
    assert!(
        output.as_bytes() == written,
        "the output differs: {} of {} bytes",
        output.len(),
        written.len()
    );
    assert_eq!(end["output_bytes"], json!(10 << 20));
    assert_end_event(&workspace.admin, &end, false).await;
}

#[tokio::test]
async fn real_output_beyond_the_limit_is_cut_and_marked() {
    let source = "head -c 20971520 /dev/urandom | base64 -w 76 | head -c 20971520";
    let (workspace, output, end, _, written) = run_on_real_agent(source, usize::MAX / 2).await;
    assert_eq!(written.len(), 20 << 20);
    // Cut at the end of a chunk, which has at most 64 KiB.
    assert!(output.len() <= MAX_KEPT && output.len() > MAX_KEPT - 64 * 1024, "{}", output.len());
    assert!(output.as_bytes() == &written[..output.len()]);
    assert_eq!((&end["output_bytes"], &end["result_truncated"]), (&json!(20 << 20), &json!(true)));
    assert_end_event(&workspace.admin, &end, true).await;
}

#[tokio::test]
async fn the_stored_output_is_always_a_beginning() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    // Sends 20 MiB in 10 chunks. Only 8 of them can be stored. The second order begins with the
    // end.
    let piece =
        |seq: u32| char::from(b'a' + u8::try_from(seq).unwrap()).to_string().repeat(2 << 20);
    for order in [[0, 1, 2, 3, 4, 5, 6, 8, 7, 9], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]] {
        let id = deliver(&workspace, &mut agent).await;
        for seq in order {
            agent.chunk(&id, seq, &piece(seq)).await;
            // A repeated chunk counts once, whether it is stored or not.
            agent.chunk(&id, seq, &piece(seq)).await;
        }
        finish(&agent, &id, None, Some(10)).await;
        let (chunks, end) = follow(&workspace.admin, &id).await.rest().await;
        assert_eq!(seqs(&chunks), [0, 1, 2, 3, 4, 5, 6, 7], "{order:?}");
        assert!(chunks.iter().all(|(seq, content)| *content == piece(*seq)), "{order:?}");
        assert_eq!(end["output_bytes"], json!(20 << 20));
        assert_end_event(&workspace.admin, &end, true).await;
        let listed = all_chunks(&workspace.admin, &id).await;
        assert!(listed == chunks, "{order:?}");
    }
    // Output of exactly the maximum size is complete. One more byte is not.
    let id = deliver(&workspace, &mut agent).await;
    for seq in 0..8 {
        agent.chunk(&id, seq, &piece(seq)).await;
    }
    let mut events = open(&workspace.admin, &id, Some("7")).await;
    assert_eq!(events.next().await, Some(Block::Retry(1000)));
    agent.chunk(&id, 8, "").await;
    assert_eq!(events.next_chunk().await.0, 8);
    agent.chunk(&id, 9, "x").await;
    agent.chunk(&id, 10, "").await;
    finish(&agent, &id, None, Some(11)).await;
    let (chunks, end) = events.rest().await;
    assert_eq!((chunks.len(), &end["output_bytes"]), (0, &json!((16 << 20) + 1)));
    assert_end_event(&workspace.admin, &end, true).await;
    assert_eq!(
        workspace.admin.get(&format!("{}?page_size=1", chunks_path(&id))).await.expect(200)["count"],
        9
    );
}

// Streams and their credentials.

/// The lifetime of the token that expires while its stream is open. It must be long enough to open
/// the stream.
const EXPIRES_IN: Duration = Duration::from_secs(20);

/// Waits for the end of a stream whose credential became invalid at `since`.
async fn wait_until_ended(name: &str, mut events: Events, since: Instant) {
    loop {
        let left = REVOKED_WITHIN.saturating_sub(since.elapsed());
        match tokio::time::timeout(left, events.next()).await {
            Ok(Some(Block::Comment(_) | Block::Retry(_))) => {}
            Ok(None) => return,
            Ok(other) => panic!("{name}: {other:?}"),
            Err(_) => panic!("{name}: the stream did not end"),
        }
    }
}

// Reports after the end.

#[tokio::test]
async fn output_does_not_grow_after_the_end() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let api = &workspace.admin;
    // The agent reported the number of chunks, so later chunks with higher numbers are dropped.
    let counted = deliver(&workspace, &mut agent).await;
    agent.chunk(&counted, 0, "zero").await;
    finish(&agent, &counted, None, Some(3)).await;
    for (seq, content) in
        [(2, "two"), (3, "three"), (4_000_000_000, ""), (1, "one"), (5, &"A".repeat(1 << 20))]
    {
        agent.chunk(&counted, seq, content).await;
    }
    let chunks = all_chunks(api, &counted).await;
    assert_eq!((seqs(&chunks), text(&chunks)), (vec![0, 1, 2], "zeroonetwo".to_owned()));
    assert_eq!(api.get(&path_of(&counted)).await.expect(200)["output_bytes"], 10);
    // The agent did not report the number. Chunks far beyond the other chunks are dropped.
    let uncounted = deliver(&workspace, &mut agent).await;
    agent.chunk(&uncounted, 0, "zero").await;
    finish(&agent, &uncounted, Some("zeroone"), None).await;
    for (seq, content) in [(257, "far"), (3_999_999_701, ""), (1, "one"), (258, "far")] {
        agent.chunk(&uncounted, seq, content).await;
    }
    let chunks = all_chunks(api, &uncounted).await;
    assert_eq!((seqs(&chunks), text(&chunks)), (vec![0, 1], "zeroone".to_owned()));
    // A chunk within that distance is accepted as a late one. It does not move the limit.
    for seq in [256, 257, 512] {
        agent.chunk(&uncounted, seq, "x").await;
    }
    assert_eq!(seqs(&all_chunks(api, &uncounted).await), [0, 1, 256]);
}

#[tokio::test]
async fn output_is_complete_a_day_after_the_end() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let id = deliver(&workspace, &mut agent).await;
    finish(&agent, &id, Some("zero"), None).await;
    assert_ended(&workspace.admin, &id).await;
    instance.stop_when_d1_is_current().await;
    let yesterday = Timestamp::parse("2026-01-01T00:00:00Z").unwrap();
    let sql = format!(
        "UPDATE commands SET document = json_set(document, '$.life.handled_at', '{yesterday}')"
    );
    assert_eq!(change_objects(state.path(), "ServerLink", &sql), 1);
    let instance = Instance::restart(state.path()).await;
    let late = json!({"seq": 0, "content": "zero"});
    agent
        .api
        .with_url(&instance.url)
        .post(&format!("{}chunk/", path_of(&id)), &late)
        .await
        .expect(204);
    assert!(all_chunks(&workspace.admin.with_url(&instance.url), &id).await.is_empty());
}

async fn assert_ended(api: &Api, id: &str) {
    let ended = api.get(&format!("{}?wait=30", path_of(id))).await.expect(200);
    assert!(ended["handled_at"].is_string(), "{ended}");
}

#[tokio::test]
async fn small_chunks_share_rows_and_keep_their_bounds() {
    const MANY: u32 = 657;
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let id = deliver(&workspace, &mut agent).await;
    // Every third chunk is empty, and neighbours arrive in reverse order.
    let content = |seq: u32| {
        if seq.is_multiple_of(3) { String::new() } else { format!("{seq}: {}\n", "x".repeat(200)) }
    };
    for pair in (0..MANY).collect::<Vec<_>>().chunks(2) {
        for seq in pair.iter().rev() {
            agent.chunk(&id, *seq, &content(*seq)).await;
        }
    }
    agent.chunk(&id, 7, "once more").await;
    finish(&agent, &id, None, Some(MANY)).await;
    let expected: Vec<_> = (0..MANY).map(|seq| (seq, content(seq))).collect();
    assert_eq!(all_chunks(&workspace.admin, &id).await, expected);
    let (streamed, end) = follow(&workspace.admin, &id).await.rest().await;
    assert_eq!(streamed, expected);
    assert_eq!(
        (&end["output_truncated"], &end["output_bytes"]),
        (&json!(false), &json!(text(&expected).len()))
    );
    let from = workspace
        .admin
        .get(&format!("{}?seq__gte=400&page_size=2", chunks_path(&id)))
        .await
        .expect(200);
    assert_eq!((&from["count"], &from["results"][1]["seq"]), (&json!(257), &json!(401)));
    let rows = instance.read_objects("ServerLink", "SELECT command FROM chunks").len();
    assert!(rows <= 4, "{rows} rows for about 93 kB");
}

#[tokio::test]
async fn a_response_waits_for_output_behind_the_end() {
    let (workspace, server, mut agent) = workspace_with_agent().await;
    let long = "x".repeat(3 << 19);
    // Agents cut their result to 1 MiB, so it does not show how much output there is.
    let mut cases = vec![(None, Some(2)), (Some(&long[..1 << 20]), None)];
    let mut tries = 0;
    while let Some((result, chunks)) = cases.pop() {
        let body = json!({"server": server["id"], "line": "id"});
        let request = workspace.admin.request("POST", PATH).header("Prefer", "wait=30").json(&body);
        let reports = async {
            let id = agent.next_command().await["id"].as_str().unwrap().to_owned();
            agent.chunk(&id, 0, &long).await;
            let ended = Instant::now();
            finish(&agent, &id, result, chunks).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            agent.chunk(&id, 1, "the rest").await;
            ended.elapsed()
        };
        let (done, took) = tokio::join!(workspace.admin.send(request), reports);
        let done = done.expect(201);
        // The response waits for a second. If the machine took longer, try again.
        tries += 1;
        if took > Duration::from_millis(900) && tries < 20 {
            cases.push((result, chunks));
            continue;
        }
        assert_eq!(
            (&done["status"]["text"], &done["output_bytes"]),
            (&json!("Success"), &json!(long.len() + 8))
        );
    }
}

#[tokio::test]
async fn an_invalid_credential_ends_only_its_own_stream() {
    let (workspace, server, mut agent) = workspace_with_agent().await;
    let other_server = workspace.server("web-2").await["id"].clone();
    let id = deliver(&workspace, &mut agent).await;
    let admin = workspace.session();
    let token = async |name: &str, api: &Api, more: Value| {
        let mut body = json!({"name": name, "expires_at": null});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let made = api.post("/api/auth/tokens/", &body).await.expect(201);
        let path = format!("/api/auth/tokens/{}/", made["id"].as_str().unwrap());
        (workspace.anonymous.with_token(made["key"].as_str().unwrap()), path)
    };
    let (deleted, deleted_path) = token("deleted", &admin, json!({})).await;
    let (disabled, disabled_path) = token("disabled", &admin, json!({})).await;
    let (narrowed, narrowed_path) = token("narrowed", &admin, json!({})).await;
    let (moved, moved_path) =
        token("moved", &admin, json!({"acl": {"servers": [server["id"]]}})).await;
    let (elsewhere, elsewhere_path) = token("elsewhere", &admin, json!({})).await;
    let (kept, kept_path) = token("kept", &admin, json!({})).await;
    let logged_out = workspace.anonymous.logged_in("boss", PASSWORD).await;
    let staff = workspace.user_with("staff", &json!({"is_staff": true})).await;
    let deactivated = workspace.anonymous.logged_in("staff", PASSWORD).await;
    let (of_deactivated, _) = token("of deactivated", &deactivated, json!({})).await;
    let demoted_user = workspace.user_with("demoted", &json!({"is_staff": true})).await;
    let demoted = workspace.anonymous.logged_in("demoted", PASSWORD).await;
    let changed_user = workspace.user_with("changed", &json!({"is_staff": true})).await;
    let changed = workspace.anonymous.logged_in("changed", PASSWORD).await;
    let expires = Instant::now() + EXPIRES_IN;
    let soon = farhand_tests::now().plus_seconds(EXPIRES_IN.as_secs() as i64);
    let (expired, _) = token("expired", &admin, json!({"expires_at": soon})).await;

    let mut dead = Vec::new();
    for (name, api) in [
        ("expired", &expired),
        ("deleted", &deleted),
        ("disabled", &disabled),
        ("narrowed", &narrowed),
        ("moved", &moved),
        ("elsewhere", &elsewhere),
        ("logged out", &logged_out),
        ("deactivated", &deactivated),
        ("of deactivated", &of_deactivated),
        ("demoted", &demoted),
        ("changed", &changed),
    ] {
        dead.push((name, follow(api, &id).await));
    }
    let mut alive = follow(&workspace.admin, &id).await;
    let mut alive_with_list = follow(&kept, &id).await;

    admin.delete(&deleted_path).await.expect(204);
    admin.patch(&disabled_path, &json!({"enabled": false})).await.expect(200);
    let to_other = json!({"acl": {"servers": [other_server]}});
    admin.patch(&narrowed_path, &to_other).await.expect(200);
    admin.patch(&moved_path, &to_other).await.expect(200);
    admin.patch(&elsewhere_path, &json!({"acl": {"networks": ["10.0.0.0/8"]}})).await.expect(200);
    admin
        .patch(
            &kept_path,
            &json!({"acl": {"servers": [server["id"]], "commands": ["ls"], "read_all": true, "read_only": true}}),
        )
        .await
        .expect(200);
    logged_out.call("POST", "/api/auth/logout/").await.expect(200);
    let user = |user: &Value| format!("/api/iam/users/{}/", user["id"]);
    admin.patch(&user(&staff), &json!({"is_active": false})).await.expect(200);
    admin.patch(&user(&demoted_user), &json!({"is_staff": false})).await.expect(200);
    let new_password = json!({"password": "another correct horse"});
    admin.patch("/api/users/users/changed/", &new_password).await.expect(200);
    assert_eq!(changed_user["username"], "changed");
    let since = Instant::now();
    future::join_all(dead.into_iter().map(|(name, events)| {
        let since = if name == "expired" { since.max(expires) } else { since };
        wait_until_ended(name, events, since)
    }))
    .await;

    // The remaining streams get keep-alives, and continue.
    for events in [&mut alive, &mut alive_with_list] {
        assert_eq!(events.next().await, Some(Block::Retry(1000)));
        let Some(Block::Comment(_)) = events.next().await else { panic!("no keep-alive arrived") };
    }
    agent.chunk(&id, 0, "chunk 0\n").await;
    for events in [&mut alive, &mut alive_with_list] {
        assert_eq!(events.next_chunk().await.0, 0);
    }
    // The disconnected clients cannot reconnect.
    for api in [
        &deleted,
        &disabled,
        &logged_out,
        &deactivated,
        &of_deactivated,
        &changed,
        &expired,
        &demoted,
    ] {
        let refusal = Events::resume(api, &stream_path(&id), Some("0")).await.err().unwrap();
        refusal.expect_detail(403, Some("INVALID_TOKEN"));
    }
    for api in [&narrowed, &moved] {
        let refusal = Events::resume(api, &stream_path(&id), Some("0")).await.err().unwrap();
        refusal.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    }
    finish(&agent, &id, None, Some(1)).await;
    for events in [alive, alive_with_list].iter_mut() {
        let (_, end) = events.rest().await;
        assert_end_event(&workspace.admin, &end, false).await;
    }
}

#[tokio::test]
async fn an_invalid_credential_ends_a_busy_stream() {
    let (workspace, _, mut agent) = workspace_with_agent().await;
    let id = deliver(&workspace, &mut agent).await;
    let body = json!({"name": "x", "expires_at": null});
    let token = workspace.admin.post("/api/auth/tokens/", &body).await.expect(201);
    let api = workspace.anonymous.with_token(token["key"].as_str().unwrap());
    let mut events = follow(&api, &id).await;
    let mut alive = follow(&workspace.admin, &id).await;
    agent.chunk(&id, 0, "chunk 0\n").await;
    assert_eq!(events.next_chunk().await.0, 0);
    workspace
        .admin
        .delete(&format!("/api/auth/tokens/{}/", token["id"].as_str().unwrap()))
        .await
        .expect(204);
    let since = Instant::now();
    let write = async {
        for seq in 1.. {
            agent.chunk(&id, seq, &format!("chunk {seq}\n")).await;
        }
    };
    let read = async {
        while events.next().await.is_some() {
            assert!(since.elapsed() < REVOKED_WITHIN, "the stream did not end");
        }
    };
    tokio::select! { () = write => {}, () = read => {} }
    let mut received = HashSet::new();
    while received.len() < 10 {
        assert!(received.insert(alive.next_chunk().await.0));
    }
}

#[tokio::test]
async fn chunks_with_gaps_create_a_bounded_number_of_rows() {
    let (instance, state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let id = deliver(&workspace, &mut agent).await;
    agent.ack(&id).await;
    agent.chunk(&id, 0, "x").await;
    instance.stop().await;
    // Inserts every other chunk, up to one less than the maximum number of rows. 16,384 requests
    // would take minutes.
    let change = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 16382)
        INSERT INTO chunks (command, first, piece, next, bytes, kept, lengths, content)
        SELECT c.command, 2 * i, 0, 2 * i + 1, c.bytes, c.kept, c.lengths, c.content FROM chunks c CROSS JOIN n";
    assert_eq!(change_objects(state.path(), "ServerLink", change), 16_382);

    let instance = Instance::restart(state.path()).await;
    let api = workspace.admin.with_url(&instance.url);
    let agent =
        ScriptedAgent::connect_to(&agent.api.with_url(&instance.url), "/ws/servers/backhaul/")
            .await;
    let last = async |from: u32| {
        let page = api.get(&format!("{}?seq__gte={from}", chunks_path(&id))).await.expect(200);
        page["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|chunk| chunk["seq"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    agent.chunk(&id, 40_000, "x").await;
    agent.chunk(&id, 50_000, "x").await;
    assert_eq!(last(32_764).await, [32_764, 40_000], "only one more row is stored");
    // A chunk that fits into an existing row is still stored. Rows that merge make room for more.
    agent.chunk(&id, 40_001, "x").await;
    agent.chunk(&id, 1, "x").await;
    agent.chunk(&id, 50_000, "x").await;
    assert_eq!(last(32_764).await, [32_764, 40_000, 40_001, 50_000]);
}

#[tokio::test]
async fn the_whole_output_is_plain_text() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let body = json!({"server": "web-1", "line": "id"});
    let run = async || {
        workspace.admin.post(PATH, &body).await.expect(201)["id"].as_str().unwrap().to_owned()
    };
    let output = async |id: &str| {
        let reply = workspace.admin.get(&format!("{}output/", path_of(id))).await;
        assert_eq!(
            (reply.status, reply.header("Content-Type")),
            (200, "text/plain; charset=utf-8")
        );
        reply.text
    };
    let id = run().await;
    agent.next_command().await;
    assert_eq!(output(&id).await, "");
    let mut whole = String::new();
    // More chunks than one call to the object returns, in changed order.
    for seq in 0..150 {
        let piece = format!("{seq} ä\n");
        agent.chunk(&id, (seq ^ 1) as u32, &format!("{} ä\n", seq ^ 1)).await;
        whole += &piece;
    }
    assert_eq!(output(&id).await, whole);
    agent.fin(&id, 0, "cut").await;
    assert_eq!(output(&id).await, whole);
    // Without chunks, the output is the result.
    let quiet = run().await;
    agent.next_command().await;
    agent.fin(&quiet, 0, "all of it\n").await;
    assert_eq!(output(&quiet).await, "all of it\n");
    let path = format!("{}output/", path_of(&id));
    workspace.user("carl").await.get(&path).await.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    workspace.anonymous.get(&path).await.expect_detail(401, None);
}
