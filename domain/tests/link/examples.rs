//! Examples: cases that depend on the order of events.

use farhand_domain::agent::wire::{Chunk, Fin, HostFacts, HostPolicy, PolicyMode};
use farhand_domain::command::lifecycle::State;
use farhand_domain::link::call::{
    Created, FollowOutput, FollowedOutput, LinkRequest, LinkResponse, ReadLiveFields, Refusal,
    Report,
};
use farhand_domain::link::event::{ConnectionKind, Event, Request, Ticket};
use serde_json::json;
use uuid::Uuid;

use super::ops::Op;
use super::world::{CallKind, World};

/// A world in which the agent is connected.
fn connected() -> World {
    let mut world = World::default();
    world.connect("key-0", ConnectionKind::Backhaul, true).unwrap();
    world.answer(0, 0).unwrap();
    world
}

impl World {
    /// Creates a command. D1 answers immediately.
    fn created(&mut self) -> Uuid {
        let (what, message) = self.create(0, None, 0);
        self.call(what, message).unwrap();
        self.answer_all();
        *self.commands.last().unwrap()
    }

    fn answer_all(&mut self) {
        while !self.d1_calls.is_empty() {
            self.answer(0, 0).unwrap();
        }
    }

    fn position_of(&self, is_wanted: impl Fn(&Request) -> bool) -> usize {
        self.d1_calls.iter().position(|d1_call| is_wanted(&d1_call.request)).unwrap()
    }

    fn replied(&self, ticket: Ticket) -> Option<&LinkResponse> {
        self.calls[&ticket].answer.as_ref()
    }

    fn command_of(&self, ticket: Ticket) -> (Uuid, bool) {
        let Some(LinkResponse::Done(result)) = self.replied(ticket) else {
            panic!("{:?}", self.replied(ticket))
        };
        let created: Created = serde_json::from_value(result.clone()).unwrap();
        (created.id().unwrap(), created.replayed)
    }

    fn follow(&mut self, id: Uuid, from: u64, skips_gap: bool) -> Ticket {
        let follow = FollowOutput { id, from, wait_millis: 5_000, skips_gap };
        self.call(CallKind::Other, LinkRequest::FollowOutput(follow)).unwrap()
    }

    fn followed(&self, ticket: Ticket) -> FollowedOutput {
        let Some(LinkResponse::Done(result)) = self.replied(ticket) else {
            panic!("{:?}", self.replied(ticket))
        };
        serde_json::from_value(result.clone()).unwrap()
    }

    fn chunk(&mut self, command: Uuid, seq: u32) {
        let chunk = Chunk { seq, content: format!("{seq};") };
        self.report("key-0", Report::Chunk { command, chunk }).unwrap();
    }
}

/// A world in which agents with the same identity replaced each other three times, and another
/// agent connects.
fn contested() -> (World, Ticket) {
    let mut world = connected();
    for _ in 0..4 {
        world.run(&Op::Pass(1_000)).unwrap();
        world.connect("key-0", ConnectionKind::Backhaul, true).unwrap();
    }
    let ticket = world.last_ticket;
    assert_eq!(world.sockets.len(), 4, "the last one has no answer yet");
    assert!(world.replied(ticket).is_none());
    (world, ticket)
}

#[test]
fn the_older_of_two_agents_stays_if_it_is_alive() {
    let (mut world, ticket) = contested();
    world.step(Event::Pong(4)).unwrap();
    assert!(matches!(world.replied(ticket), Some(LinkResponse::Refused(Refusal::IdentityInUse))));
    assert!(world.store().state.as_ref().unwrap().facts.identity_conflict_at.is_some());
    world.settle().unwrap();
}

#[test]
fn the_newer_of_two_agents_wins_if_the_older_one_is_silent() {
    let (mut world, ticket) = contested();
    let at = world.call_timers[&ticket];
    assert_eq!(at.seconds_since(world.now), 5.0);
    world.time_is_up(0).unwrap();
    assert!(world.replied(ticket).is_some());
    assert!(world.sockets[4].is_open && !world.sockets[3].is_open);
    world.settle().unwrap();
}

#[test]
fn the_newer_of_two_agents_wins_if_the_older_one_closes() {
    let (mut world, ticket) = contested();
    world.sockets[3].is_open = false;
    world.step(Event::Closed(4)).unwrap();
    assert!(world.replied(ticket).is_some() && world.sockets[4].is_open);
    world.settle().unwrap();
}

#[test]
fn a_change_of_the_policy_of_the_host_is_an_audit_event() {
    let mut world = connected();
    let mut report = |version: Option<&str>, mode: Option<PolicyMode>, is_commit: bool| {
        let facts = HostFacts {
            version: version.map(str::to_owned),
            policy: mode.map(|mode| HostPolicy { mode, sha256: None }),
            ..HostFacts::default()
        };
        world.report("key-0", Report::Facts { facts: Box::new(facts), is_commit }).unwrap();
        let facts = &world.store().state.as_ref().unwrap().facts;
        let events = facts.events.iter().map(|pending| &pending.event);
        let changes: Vec<_> = events
            .filter(|event| event.action == "server.policy")
            .map(|event| event.details.clone())
            .collect();
        (changes, facts.policy.as_ref().map(|policy| policy.mode))
    };
    let (open, accounts) = (Some(PolicyMode::Open), Some(PolicyMode::Accounts));
    let shown = |mode: &str| json!({"mode": mode, "sha256": null});
    // The first report is no change, and neither is a report that is the same or is partial.
    assert_eq!(report(Some("1"), accounts, true), (vec![], accounts));
    assert_eq!(report(Some("1"), accounts, false), (vec![], accounts));
    assert_eq!(report(None, None, false), (vec![], accounts));
    let first = json!({"policy": shown("open"), "previous_policy": shown("accounts")});
    assert_eq!(report(Some("1"), open, false), (vec![first.clone()], open));
    // A complete report without a policy comes from an agent that does not report it.
    let second = json!({"policy": null, "previous_policy": shown("open")});
    assert_eq!(report(Some("2"), None, false), (vec![first.clone(), second.clone()], None));
    let third = json!({"policy": shown("accounts"), "previous_policy": null});
    assert_eq!(report(Some("3"), accounts, false), (vec![first, second, third], accounts));
}

/// Creates a command with an Idempotency-Key. The object crashes before it replies.
fn crashed(after: Option<u8>) -> (World, Uuid) {
    let mut world = connected();
    let (what, message) = world.create(0, Some(0), 0);
    world.call(what, message).unwrap();
    world.run(&Op::Crash { after, loss: 1 }).unwrap();
    let place = world.position_of(|request| matches!(request, Request::InsertCommand { .. }));
    world.answer(place, 0).unwrap();
    let id = *world.commands.last().unwrap();
    (world, id)
}

#[test]
fn a_key_replays_the_command_of_a_lost_request() {
    let (mut world, id) = crashed(Some(0));
    let (what, message) = world.create(0, Some(0), 0);
    let ticket = world.call(what, message).unwrap();
    assert_eq!(world.command_of(ticket), (id, true));
    world.settle().unwrap();
    assert!(world.store().rows.contains_key(&id));
}

#[test]
fn a_key_of_a_request_lost_early_is_free_again() {
    let (mut world, id) = crashed(None);
    let (what, message) = world.create(0, Some(0), 0);
    let ticket = world.call(what, message).unwrap();
    world.answer_all();
    assert!(matches!(world.replied(ticket), Some(LinkResponse::Refused(Refusal::KeyInUse))));
    world.run(&Op::Pass(61_000)).unwrap();
    world.settle().unwrap();
    assert!(!world.store().rows.contains_key(&id) && !world.d1.commands.contains_key(&id));
    let (what, message) = world.create(0, Some(0), 0);
    let ticket = world.call(what, message).unwrap();
    world.answer_all();
    assert!(!world.command_of(ticket).1, "it is another command");
}

#[test]
fn callers_with_the_same_key_get_one_command() {
    let mut world = connected();
    let mut tickets = vec![];
    for _ in 0..3 {
        let (what, message) = world.create(0, Some(0), 0);
        tickets.push(world.call(what, message).unwrap());
    }
    world.answer_all();
    let commands: Vec<_> = tickets.iter().map(|ticket| world.command_of(*ticket)).collect();
    let id = world.commands[0];
    assert_eq!(commands, [(id, false), (id, true), (id, true)]);
    world.settle().unwrap();
}

#[test]
fn a_command_that_d1_inserts_late_is_withdrawn() {
    let mut world = connected();
    let (what, message) = world.create(0, None, 0);
    let ticket = world.call(what, message).unwrap();
    let place = world.position_of(|request| matches!(request, Request::InsertCommand { .. }));
    world.time_out(place).unwrap();
    assert!(matches!(world.replied(ticket), Some(LinkResponse::Failed(_))));
    let place = world.position_of(|request| matches!(request, Request::Flush { .. }));
    world.answer(place, 0).unwrap();
    let id = world.commands[0];
    assert!(!world.store().rows.contains_key(&id));
    let place = world.position_of(|request| matches!(request, Request::InsertCommand { .. }));
    world.apply(place, 0);
    assert!(world.d1.commands.contains_key(&id));
    world.settle().unwrap();
    assert!(!world.d1.commands.contains_key(&id) && !world.sent.contains_key(&id));
}

#[test]
fn a_follower_waits_until_a_gap_is_filled() {
    let mut world = connected();
    let id = world.created();
    world.chunk(id, 0);
    let ticket = world.follow(id, 0, false);
    assert_eq!(world.followed(ticket).chunks.len(), 1);
    let ticket = world.follow(id, 1, false);
    world.chunk(id, 2);
    assert!(world.replied(ticket).is_none(), "1 is missing");
    world.chunk(id, 1);
    let seqs: Vec<_> = world.followed(ticket).chunks.iter().map(|chunk| chunk.seq).collect();
    assert_eq!(seqs, [1, 2]);
    world.chunk(id, 4);
    let ticket = world.follow(id, 3, true);
    assert_eq!(world.followed(ticket).chunks[0].seq, 4);
    let ticket = world.follow(id, 3, false);
    let fin = Fin { success: true, chunks: Some(5), ..Fin::default() };
    world.report("key-0", Report::Fin { command: id, fin }).unwrap();
    assert!(world.replied(ticket).is_none());
    world.run(&Op::TimeUp(0)).unwrap();
    let followed = world.followed(ticket);
    assert!(
        followed.chunks.is_empty() && followed.has_more && followed.end.is_none(),
        "3 may still come"
    );
    world.run(&Op::Pass(10_000)).unwrap();
    let ticket = world.follow(id, 3, false);
    world.settle().unwrap();
    let followed = world.followed(ticket);
    assert_eq!(followed.chunks[0].seq, 4);
    assert_eq!(followed.end.unwrap()["output_truncated"], true);
}

#[test]
fn a_restart_of_the_agent_marks_its_commands() {
    let mut world = connected();
    let id = world.created();
    world.run(&Op::Pass(61_000)).unwrap();
    world.step(Event::Pong(1)).unwrap();
    world.report("key-0", Report::Ack { command: id }).unwrap();
    world.run(&Op::Pass(1)).unwrap();
    world.report("key-0", Report::Started).unwrap();
    world.connect("key-0", ConnectionKind::Backhaul, true).unwrap();
    let newer = world.created();
    let life = |world: &World, id| world.store().rows[&id].command.life.clone();
    assert!(life(&world, id).restarted_at.is_some());
    assert!(life(&world, newer).restarted_at.is_none(), "it went to the new process");
    world.run(&Op::Pass(60_000)).unwrap();
    world.run(&Op::Alarm(0)).unwrap();
    assert_eq!(life(&world, id).state(), State::Stuck);
    let live = ReadLiveFields { id, wait: Some(10) };
    let ticket = world.call(CallKind::Other, LinkRequest::ReadLiveFields(live)).unwrap();
    world.answer_all();
    assert!(
        matches!(world.replied(ticket), Some(LinkResponse::Done(live)) if live["state"] == "stuck")
    );
}

#[test]
fn an_immediate_command_is_refused_if_the_send_fails() {
    let mut world = connected();
    world.sockets[0].is_broken = true;
    let (what, message) = world.create(1 << 12, None, 0);
    let ticket = world.call(what, message).unwrap();
    world.answer_all();
    world.settle().unwrap();
    assert!(matches!(world.replied(ticket), Some(LinkResponse::Refused(Refusal::NotConnected))));
    assert!(world.store().rows.is_empty());
}

#[test]
fn a_command_waits_again_if_the_send_fails() {
    let mut world = connected();
    world.sockets[0].is_broken = true;
    let id = world.created();
    assert_eq!(world.store().rows[&id].command.life.state(), State::Waiting);
    assert!(!world.sent.contains_key(&id));
    world.connect("key-0", ConnectionKind::Backhaul, true).unwrap();
    world.run(&Op::Alarm(0)).unwrap();
    world.answer_all();
    assert_eq!(world.sent[&id], 1);
    world.settle().unwrap();
}

#[test]
fn a_call_fails_if_the_storage_fails() {
    let mut world = connected();
    world.store().is_broken.set(true);
    let suspend = world.call(CallKind::Other, LinkRequest::Suspend(true)).unwrap();
    assert!(matches!(world.replied(suspend), Some(LinkResponse::Failed(_))));
    assert!(world.sockets.iter().all(|socket| socket.is_open), "no effect is carried out");
    world.store().is_broken.set(false);
    let again = world.call(CallKind::Other, LinkRequest::Suspend(true)).unwrap();
    assert!(matches!(world.replied(again), Some(LinkResponse::Done(_))));
    assert!(world.sockets.iter().all(|socket| !socket.is_open));
}

#[test]
fn an_agent_causes_at_most_60_events_an_hour() {
    let mut world = connected();
    for number in 0..200 {
        let facts = HostFacts { version: Some(number.to_string()), ..HostFacts::default() };
        world.report("key-0", Report::Facts { facts: Box::new(facts), is_commit: false }).unwrap();
        world.answer_all();
    }
    world.settle().unwrap();
    assert_eq!(world.d1.events.len(), 60);
    // The others are one event, at the first report after the hour.
    world.run(&Op::Pass(3_600_000)).unwrap();
    world.connect("key-0", ConnectionKind::Backhaul, true).unwrap();
    world.answer_all();
    world.report("key-0", Report::Alive).unwrap();
    world.settle().unwrap();
    assert_eq!(world.d1.events.len(), 61);
}

/// The live fields of a command that ended with this result.
fn ended_with(world: &mut World, id: Uuid, result: &str) -> serde_json::Value {
    let fin = Fin { success: true, result: Some(result.to_owned()), ..Fin::default() };
    world.report("key-0", Report::Fin { command: id, fin }).unwrap();
    let live = ReadLiveFields { id, wait: None };
    let ticket = world.call(CallKind::Other, LinkRequest::ReadLiveFields(live)).unwrap();
    world.answer_all();
    let Some(LinkResponse::Done(live)) = world.replied(ticket) else { panic!("no answer") };
    live.clone()
}

#[test]
fn the_quota_of_output_is_read_when_a_command_is_delivered() {
    // An immediate command.
    let mut world = connected();
    world.d1.output_limit = Some(4);
    let id = world.created();
    let live = ended_with(&mut world, id, "123456");
    assert_eq!((&live["result"], &live["output_bytes"]), (&"1234".into(), &6.into()));
    assert_eq!((&live["output_truncated"], &live["output_skipped"]), (&true.into(), &2.into()));
    let message = live["status"]["message"].as_str().unwrap();
    assert!(
        message.ends_with("2 bytes of its output were left out: the quota of output is used up."),
        "{message}"
    );
    // A command that waits has the quota of its delivery.
    world.sockets[0].is_broken = true;
    let id = world.created();
    world.d1.output_limit = Some(5);
    world.connect("key-0", ConnectionKind::Backhaul, true).unwrap();
    world.run(&Op::Alarm(0)).unwrap();
    world.answer_all();
    assert_eq!(world.sent[&id], 1);
    assert_eq!(ended_with(&mut world, id, "123456")["result"], "12345");
    // Without a limit, the output is complete.
    world.d1.output_limit = None;
    let id = world.created();
    let live = ended_with(&mut world, id, "123456");
    assert_eq!((&live["result"], &live["output_skipped"]), (&"123456".into(), &0.into()));
    assert_eq!(live["output_truncated"], false);
    world.settle().unwrap();
}

impl World {
    /// Whether a report with this key is accepted.
    fn is_accepted(&mut self, key: &str) -> bool {
        self.report(key, Report::Alive).unwrap();
        let ticket = self.last_ticket;
        self.answer_all();
        matches!(self.replied(ticket), Some(LinkResponse::Done(_)))
    }

    fn run_all(&mut self, op: &Op) {
        self.run(op).unwrap();
        self.answer_all();
    }

    /// The agent's keys in D1: the key in use, and the next key.
    fn keys_in_d1(&self) -> (&str, Option<&str>) {
        let server = self.d1.server.as_ref().unwrap();
        let next = server.next_key.as_ref().map(|next| next.key_hash.as_str());
        (&server.key_hash, next)
    }
}

#[test]
fn a_rotated_key_is_valid_until_an_agent_connects_with_the_new_one() {
    let mut world = connected();
    let control = ConnectionKind::Control;
    world.connect("key-0", control, false).unwrap();
    world.run_all(&Op::Rotate { now: false });
    let rotated = world.replied(world.last_ticket).cloned();
    let valid_until = world.now.plus_seconds(24 * 60 * 60);
    assert!(
        matches!(&rotated, Some(LinkResponse::Done(replaced))
            if replaced["old_key_valid_until"] == valid_until.to_string()),
        "{rotated:?}"
    );
    assert!(world.sockets.iter().all(|socket| socket.is_open));
    // A report alone does not end the old key.
    assert!(world.is_accepted("key-1") && world.is_accepted("key-0"));
    // Later rotations replace the new key, never the one in use.
    world.run_all(&Op::Rotate { now: false });
    assert!(!world.is_accepted("key-1") && world.is_accepted("key-0"));
    assert_eq!(world.keys_in_d1(), ("key-0", Some("key-2")));
    world.connect("key-2", ConnectionKind::Backhaul, true).unwrap();
    world.answer_all();
    let open: Vec<_> = world.sockets.iter().filter(|socket| socket.is_open).collect();
    assert!(open.len() == 1 && open[0].key == "key-2", "{open:?}");
    assert!(!world.is_accepted("key-0") && world.is_accepted("key-2"));
    assert_eq!(world.keys_in_d1(), ("key-2", None));
    world.settle().unwrap();
}

#[test]
fn a_rotated_key_ends_after_a_day() {
    let mut world = connected();
    world.run_all(&Op::Rotate { now: false });
    world.run_all(&Op::Pass(24 * 60 * 60 * 1_000 - 10));
    assert!(world.is_accepted("key-0") && world.sockets[0].is_open);
    world.run_all(&Op::Pass(20));
    // D1 fails at first: the old key is refused all the same.
    world.report("key-0", Report::Alive).unwrap();
    assert!(matches!(world.replied(world.last_ticket), None | Some(LinkResponse::Refused(_))));
    assert!(!world.sockets[0].is_open);
    let place = world.position_of(|request| matches!(request, Request::ChangeServer(..)));
    world.fail(place).unwrap();
    assert!(!world.is_accepted("key-0") && world.is_accepted("key-1"));
    world.settle().unwrap();
    assert_eq!(world.keys_in_d1(), ("key-1", None));
}

#[test]
fn a_key_that_is_replaced_now_is_refused_now() {
    let mut world = connected();
    world.run_all(&Op::Rotate { now: true });
    assert!(!world.sockets[0].is_open);
    assert!(!world.is_accepted("key-0") && world.is_accepted("key-1"));
    assert_eq!(world.keys_in_d1(), ("key-1", None));
    // It also ends a key that was valid for a while.
    world.run_all(&Op::Rotate { now: false });
    world.run_all(&Op::Rotate { now: true });
    assert!(!world.is_accepted("key-1") && !world.is_accepted("key-2"));
    assert_eq!(world.keys_in_d1(), ("key-3", None));
    world.settle().unwrap();
}

#[test]
fn an_undeleted_server_accepts_its_agent_again() {
    for has_commands in [true, false] {
        let mut world = connected();
        if has_commands {
            world.run_all(&Op::Create { how: 6, key: None, wait: 0 });
        }
        world.run_all(&Op::Remove { only_pending: false });
        assert!(!world.is_accepted("key-0") && !world.sockets[0].is_open);
        assert_eq!(world.store().state.is_some(), has_commands, "it keeps the commands");
        world.run_all(&Op::Undelete);
        assert!(matches!(world.replied(world.last_ticket), Some(LinkResponse::Done(_))));
        assert!(world.is_accepted("key-0"));
        world.connect("key-0", ConnectionKind::Backhaul, true).unwrap();
        world.answer_all();
        let states = |world: &World| -> Vec<State> {
            world.store().rows.values().map(|row| row.command.life.state()).collect()
        };
        assert_eq!(states(&world), if has_commands { vec![State::Cancelled] } else { vec![] });
        assert_eq!(world.created(), *world.commands.last().unwrap(), "it takes commands");
        world.settle().unwrap();
    }
}

#[test]
fn an_undeletion_that_d1_refuses_changes_nothing() {
    let mut world = connected();
    world.created();
    world.run_all(&Op::Remove { only_pending: false });
    world.run_all(&Op::Forbid(true));
    world.run_all(&Op::Undelete);
    let refused = world.replied(world.last_ticket);
    assert!(matches!(refused, Some(LinkResponse::Refused(Refusal::NotPermitted))), "{refused:?}");
    assert!(!world.is_accepted("key-0"));
    world.settle().unwrap();
}

#[test]
fn an_undeletion_that_is_cut_off_ends_as_in_d1() {
    for is_late in [false, true] {
        let mut world = connected();
        world.created();
        world.run_all(&Op::Remove { only_pending: false });
        world.run(&Op::Undelete).unwrap();
        if is_late {
            // D1 carries it out after the object has read that it did not.
            world.time_out(0).unwrap();
            let place = world.d1_calls.len() - 1;
            world.run(&Op::Alarm(0)).unwrap();
            while world.d1_calls.len() > place + 1 {
                world.answer(place + 1, 0).unwrap();
            }
            world.answer_all();
        } else {
            world.apply(0, 0);
            world.die(0).unwrap();
        }
        world.settle().unwrap();
        assert!(world.is_accepted("key-0"), "late: {is_late}");
    }
}
