//! The stored commands of a server. Random operations on the tables and on the naive model of the
//! storage, which the tests of the machine use, give the same commands.

use std::cell::RefCell;

use farhand_domain::agent::wire::Fin;
use farhand_domain::audit::event::{AuditEvent, Source};
use farhand_domain::command::end::Cancellation;
use farhand_domain::command::lifecycle::{Lifecycle, State};
use farhand_domain::command::request::{Command, Origin, Shell};
use farhand_domain::link::state::ServerState;
use farhand_domain::link::store::{NextFlush, Store};
use farhand_domain::link::stored_command::{Phase, Stage, StoredCommand};
use farhand_domain::time::Timestamp;
use farhand_sql::object::server_link::{chunks, commands, schema};
use farhand_sql::statement::Statement;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::model::MemoryStore;
use super::object::{Object, at, id};

/// The number of commands.
const COMMANDS: u8 = 5;

/// What happens to a command. An operation that its state does not allow does nothing.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// It is inserted, and is due some seconds later.
    Insert(i64),
    /// D1 has it.
    Accept,
    /// D1 refused it.
    Withdraw,
    Deliver,
    Ack,
    Finish,
    Cancel,
    /// It is stuck if it is overdue.
    GiveUp,
    /// Its document is stored, without or with an update of D1.
    SetDocument {
        is_change: bool,
    },
    SetTimer(Option<i64>),
    /// D1 has the revision that was the latest some revisions ago.
    MarkFlushed {
        behind: i64,
        has_events: bool,
    },
    MarkUnflushed,
    Delete,
}

fn ops() -> impl Strategy<Value = Vec<(u8, i64, Op)>> {
    let op = prop_oneof![
        3 => (0..90_i64).prop_map(Op::Insert),
        4 => Just(Op::Accept),
        1 => Just(Op::Withdraw),
        4 => Just(Op::Deliver),
        2 => Just(Op::Ack),
        2 => Just(Op::Finish),
        1 => Just(Op::Cancel),
        1 => Just(Op::GiveUp),
        1 => any::<bool>().prop_map(|is_change| Op::SetDocument { is_change }),
        1 => prop::option::of(-60..60_i64).prop_map(Op::SetTimer),
        4 => (0..3_i64, any::<bool>()).prop_map(|(behind, has_events)| Op::MarkFlushed { behind, has_events }),
        1 => Just(Op::MarkUnflushed),
        1 => Just(Op::Delete),
    ];
    prop::collection::vec((0..COMMANDS, 0..40_i64, op), 0..60)
}

fn new(number: u8, now: Timestamp, delay: i64) -> StoredCommand {
    let command = Command {
        id: id(number),
        shell: Shell::System,
        line: format!("echo {number} :id"),
        argv: None,
        script: None,
        username: "root".to_owned(),
        groupname: String::new(),
        server: Uuid::nil(),
        server_name: "web-1".to_owned(),
        requested_by: None,
        batch: None,
    };
    let origin =
        Origin { api_token: None, session: None, remote_ip: String::new(), has_inputs: true };
    let life = Lifecycle::new(now, Some(now.plus_seconds(delay)), None, 60);
    StoredCommand::new(1, command, origin, Some("sealed".to_owned()), life)
}

/// Applies an operation that changes the command. Returns whether it did.
fn change(stored: &mut StoredCommand, op: Op, now: Timestamp) -> bool {
    let is_accepted = stored.phase == Phase::Accepted;
    let is_changed = match op {
        Op::Withdraw if !is_accepted => {
            stored.phase = Phase::Withdrawing;
            true
        }
        Op::Deliver if is_accepted => stored.life.deliver(now),
        Op::Ack => stored.life.ack(now),
        Op::Finish => stored.finish(
            Fin {
                success: true,
                result: Some("done".to_owned()),
                elapsed_time: None,
                exit_code: Some(0),
                chunks: None,
                output_bytes: None,
                reason: None,
            },
            now,
        ),
        Op::Cancel => stored.life.cancel(now, Cancellation::By("boss".to_owned())),
        Op::GiveUp => stored.life.give_up_if_overdue(now),
        _ => false,
    };
    if is_changed {
        let event = AuditEvent::new(Uuid::nil(), now, Source::default(), "command.change");
        stored.add_event(event);
        stored.lacks_hash = stored.life.handled_at.is_some();
    }
    is_changed
}

/// A row of a query for commands, as the object reads it.
#[derive(Deserialize)]
struct CommandRow {
    document: String,
    result: Option<String>,
    phase: Phase,
    revision: i64,
    is_flushed: i64,
}

/// The tables and the model.
struct Both {
    object: Object,
    model: RefCell<MemoryStore>,
}

impl Both {
    fn new() -> Self {
        let model = MemoryStore { state: Some(ServerState::default()), ..Default::default() };
        Self { object: Object::new(schema()), model: RefCell::new(model) }
    }

    fn select(&self, query: Statement) -> Vec<StoredCommand> {
        let command = |row| {
            let row: CommandRow = serde_json::from_value(row).unwrap();
            StoredCommand {
                result: row.result,
                phase: row.phase,
                revision: row.revision,
                is_flushed: row.is_flushed != 0,
                ..serde_json::from_str(&row.document).unwrap()
            }
        };
        self.object.rows(query).into_iter().map(command).collect()
    }

    fn number(&self, query: Statement) -> u64 {
        self.object.column("number", query)[0].as_u64().unwrap()
    }

    fn apply(&self, number: u8, op: Op, now: Timestamp) {
        let (object, mut model) = (&self.object, self.model.borrow_mut());
        let Some(mut stored) = model.command(id(number)).unwrap() else {
            if let Op::Insert(delay) = op {
                let new = new(number, now, delay);
                let timer_at = now.plus_seconds(30);
                model.insert(&new, timer_at).unwrap();
                object.run(commands::insert(&new, new.document().unwrap(), timer_at));
            }
            return;
        };
        let is_waiting = stored.life.state() == State::Waiting;
        match op {
            Op::Accept if stored.phase == Phase::Recording && is_waiting && stored.is_flushed => {
                stored.phase = Phase::Accepted;
                model.accept(&stored, now).unwrap();
                object.run(commands::accept(&stored, now));
            }
            Op::SetDocument { is_change } => {
                stored.output_at = Some(now);
                let row = model.rows.get_mut(&id(number)).unwrap();
                row.command.output_at = Some(now);
                row.command.inputs = stored.inputs.clone().filter(|_| is_waiting);
                if is_change {
                    row.command.revision += 1;
                    object.run(commands::activate(id(number)));
                }
                let document = stored.document().unwrap();
                object.run(commands::set_document(id(number), document, is_change));
            }
            Op::SetTimer(seconds) => {
                // The machine sets the timer only of commands that wait or are active.
                let is_active = stored.phase != Phase::Accepted
                    || stored.stage().is_some()
                    || !stored.is_flushed;
                let timer_at = seconds.filter(|_| is_active).map(|after| now.plus_seconds(after));
                model.set_timer(id(number), timer_at).unwrap();
                object.run(commands::set_timer(id(number), timer_at));
            }
            Op::MarkFlushed { behind, has_events } => {
                let revision = stored.revision - behind;
                model.mark_flushed(id(number), revision, has_events).unwrap();
                object.run(commands::mark_flushed(id(number), revision, has_events));
            }
            Op::MarkUnflushed => {
                model.mark_unflushed(id(number)).unwrap();
                object.run(commands::mark_unflushed(id(number)));
            }
            Op::Delete => {
                model.delete(id(number)).unwrap();
                object.run(commands::delete(id(number)));
            }
            op => {
                if change(&mut stored, op, now) {
                    model.save(&stored, now).unwrap();
                    object.run(commands::activate(id(number)));
                    object.run(commands::save(&stored, stored.document().unwrap(), now));
                }
            }
        }
    }

    /// All queries find the same.
    fn check(&self, now: Timestamp) {
        let model = self.model.borrow();
        let sorted = |mut found: Vec<StoredCommand>| {
            found.sort_by_key(|stored| stored.command.id);
            found
        };
        for number in 0..COMMANDS {
            let found = self.select(commands::find(id(number)));
            assert_eq!(found.into_iter().next(), model.command(id(number)).unwrap());
        }
        for limit in [1, 3, 100] {
            let due = self.select(commands::due_waiting(now, limit));
            assert_eq!(due, model.due_waiting(now, limit).unwrap());
        }
        for limit in [1, 3, 100] {
            let due = self.select(commands::with_due_timer(now, limit));
            assert_eq!(due, model.with_due_timer(now, limit).unwrap());
            let after = id(1).to_string();
            let accepted = self.select(commands::accepted_after(&after, limit));
            assert_eq!(accepted, model.accepted_after(&after, limit).unwrap());
            let unflushed = self.select(commands::unflushed(now.plus_seconds(-20), limit));
            let expected = model.unflushed(now.plus_seconds(-20), 100).unwrap();
            assert_eq!(unflushed.len(), expected.len().min(limit as usize));
            assert!(unflushed.iter().all(|stored| expected.contains(stored)));
        }
        assert_eq!(sorted(self.select(commands::waiting())), model.waiting().unwrap());
        assert_eq!(sorted(self.select(commands::open())), model.open_commands().unwrap());
        assert_eq!(self.number(commands::count_open()), model.count_open().unwrap());
        let has_any = self.number(commands::count_any()) > 0;
        assert_eq!(has_any, model.has_commands().unwrap());
        let next_timer = self.object.column("due_at", commands::next_timer());
        assert_eq!(next_timer, [json!(model.next_timer().unwrap())]);
        let next = &self.object.rows(commands::next_unflushed())[0];
        let next = next["are_all_open"].as_u64().map(|are_all_open| match are_all_open {
            0 => NextFlush::Now,
            _ => NextFlush::After(serde_json::from_value(next["earliest_report"].clone()).unwrap()),
        });
        assert_eq!(next, model.next_unflushed().unwrap());
        let ids: Vec<Uuid> = (0..COMMANDS).map(id).collect();
        let until = now.plus_seconds(-30);
        let mut deletable = self.object.rows(commands::deletable(&ids, until));
        deletable.retain(|row| row["is_deletable"] == 1);
        let mut deletable: Vec<_> = deletable.into_iter().map(|mut row| row["id"].take()).collect();
        deletable.sort_by_key(ToString::to_string);
        let mut deleted = model.clone().delete_old(&ids, until, 1_000).unwrap().ids;
        deleted.retain(|id| model.rows.contains_key(id));
        assert_eq!(deletable, deleted.iter().map(|id| json!(id)).collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn the_tables_and_the_model_have_the_same_commands(ops in ops()) {
        let both = Both::new();
        let mut now = at(0);
        for (number, seconds, op) in ops {
            now = now.plus_seconds(seconds);
            both.apply(number, op, now);
            both.check(now);
        }
    }
}

/// An object with a command in each stage.
fn object() -> Object {
    let both = Both::new();
    for number in 0..3 {
        both.apply(number, Op::Insert(0), at(0));
        both.apply(number, Op::Accept, at(0));
    }
    both.apply(1, Op::Deliver, at(1));
    both.apply(2, Op::Deliver, at(1));
    both.apply(2, Op::Finish, at(2));
    both.object
}

#[test]
fn a_command_with_work_left_must_be_active() {
    let object = object();
    let stored = new(1, at(0), 0);
    assert!(object.try_run(commands::accept(&stored, at(3))).is_err(), "it is not accepted");
    let accepted = StoredCommand { phase: Phase::Accepted, ..stored };
    assert_eq!(accepted.stage(), Some(Stage::Waiting));
    assert!(object.try_run(commands::accept(&accepted, at(3))).is_err(), "D1 lacks a revision");
    assert!(object.try_run(commands::set_document(id(0), "{}".to_owned(), true)).is_err());
    assert_eq!(object.run(commands::set_document(id(0), "{}".to_owned(), false)), 1);
    assert_eq!(object.run(commands::activate(id(0))), 1);
    assert_eq!(object.run(commands::activate(id(0))), 0, "no row is written for an active command");
    assert_eq!(object.run(commands::set_document(id(0), "{}".to_owned(), true)), 1);
}

#[test]
fn the_bytes_of_kept_output_are_reported_with_a_deletable_command() {
    let object = object();
    for first in 0..2 {
        let piece = chunks::Piece {
            first,
            piece: 0,
            next: first + 1,
            bytes: 9,
            kept: 4,
            lengths: "[9]".to_owned(),
            content: "abcd".to_owned(),
        };
        object.run(chunks::store(id(2), piece));
    }
    let rows = object.rows(commands::deletable(&[id(2), id(1), id(9)], at(100)));
    let row =
        |number, kept_bytes| json!({"id": id(number), "kept_bytes": kept_bytes, "is_deletable": 0});
    assert_eq!(rows, [row(1, 0), row(2, 8)]);
    object.run(commands::mark_flushed(id(2), 3, true));
    let is_deletable =
        |until| object.column("is_deletable", commands::deletable(&[id(2)], at(until)));
    assert_eq!((is_deletable(1), is_deletable(2)), (vec![json!(0)], vec![json!(1)]));
}

#[test]
fn indexes_find_the_commands_that_need_work() {
    let object = object();
    for (statement, expected) in [
        (
            commands::due_waiting(at(0), 9),
            "SEARCH commands USING INDEX commands_waiting (scheduled_at<?)",
        ),
        (commands::waiting(), "SCAN commands USING INDEX commands_waiting"),
        (commands::open(), "SCAN commands USING INDEX commands_active"),
        (commands::count_open(), "SCAN commands USING INDEX commands_active"),
        (commands::unflushed(at(0), 9), "SCAN commands USING INDEX commands_active"),
        (commands::next_unflushed(), "SCAN commands USING INDEX commands_active"),
        (commands::find(id(1)), "SEARCH commands USING PRIMARY KEY (id=?)"),
        (commands::activate(id(1)), "SEARCH commands USING PRIMARY KEY (id=?)"),
        (commands::mark_flushed(id(1), 1, false), "SEARCH commands USING PRIMARY KEY (id=?)"),
        (commands::delete(id(1)), "SEARCH commands USING PRIMARY KEY (id=?)"),
        (commands::accepted_after("", 9), "SEARCH commands USING PRIMARY KEY (id>?)"),
    ] {
        let plan = object.plan(statement);
        assert!(plan.starts_with(expected) && !plan.contains("TEMP B-TREE"), "{plan}");
    }
    for statement in [commands::with_due_timer(at(0), 9), commands::next_timer()] {
        let plan = object.plan(statement);
        assert!(plan.contains("commands_waiting_due"), "{plan}");
        assert!(plan.contains("INDEX commands_active"), "{plan}");
        assert!(!plan.split("; ").any(|step| step == "SCAN commands"), "{plan}");
    }
    let plan = object.plan(commands::deletable(&[id(1)], at(0)));
    assert!(plan.contains("SEARCH commands USING PRIMARY KEY (id=?)"), "{plan}");
    assert!(plan.contains("SEARCH c USING PRIMARY KEY (command=?)"), "{plan}");
}
