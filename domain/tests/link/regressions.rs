//! Minimal sequences that once showed a bug.

use super::ops::Op;
use super::play;

const ANSWER: Op = Op::Answer { place: 0, refused: 0 };
const CONNECT: Op = Op::Connect { is_control: false, can_kill: true, age: 0 };

fn create(how: u16) -> Op {
    Op::Create { how, key: None, wait: 0 }
}

#[test]
fn the_alarm_stays_set_during_a_flush() {
    play(&[Op::Ack { command: 2, age: 0 }]).unwrap();
}

#[test]
fn the_alarm_goes_off_during_a_permission_check() {
    play(&[
        CONNECT,
        create(0),
        Op::Answer { place: 1, refused: 0 },
        ANSWER,
        create(0),
        ANSWER,
        Op::Alarm(5),
    ])
    .unwrap();
}

#[test]
fn a_command_becomes_due_while_it_is_recorded() {
    // The command is scheduled for the next second.
    play(&[
        CONNECT,
        ANSWER,
        create(5),
        Op::Pass(2_000),
        Op::Answer { place: 1, refused: 0 },
        ANSWER,
    ])
    .unwrap();
}

#[test]
fn a_resync_is_cut_off_before_a_flush() {
    let ops = [
        Op::Snapshot,
        create(0),
        Op::RestoreD1,
        Op::Create { how: 0, key: Some(0), wait: 20 },
        Op::Alarm(70_000),
    ];
    play(&ops).unwrap();
}

#[test]
fn a_restored_command_is_flushed_later() {
    let ops = [
        CONNECT,
        ANSWER,
        Op::Alarm(0),
        Op::Snapshot,
        create(0),
        ANSWER,
        ANSWER,
        Op::Fin { command: 0, chunks: None, age: 0 },
    ];
    play(&[&ops[..], &[Op::RestoreD1, ANSWER, Op::Alarm(0), Op::Alarm(0)]].concat()).unwrap();
}

#[test]
fn the_object_is_wiped_during_a_request_to_d1() {
    play(&[Op::InitIdentity, Op::DisconnectAndWipe, Op::InitIdentity]).unwrap();
}

#[test]
fn a_late_key_change_meets_a_verification() {
    let ops = [
        Op::Ack { command: 0, age: 0 },
        Op::Rotate { now: true },
        create(0),
        ANSWER,
        Op::TimeOut(0),
    ];
    play(&[&ops[..], &[Op::Ack { command: 1, age: 0 }, Op::Alarm(70_000), Op::Apply(3)]].concat())
        .unwrap();
}

#[test]
fn a_send_fails_while_another_agent_waits() {
    let ops = [
        CONNECT,
        ANSWER,
        Op::Alarm(0),
        create(0),
        ANSWER,
        create(0),
        ANSWER,
        create(0),
        ANSWER,
        create(0),
        ANSWER,
    ];
    let others = [CONNECT, Op::Alarm(70_000), CONNECT, CONNECT, CONNECT, CONNECT, Op::Break(0)];
    play(&[&ops[..], &others].concat()).unwrap();
}

#[test]
fn an_agent_connects_with_a_new_key_whose_rotation_was_cut_off() {
    let connect = Op::Connect { is_control: true, can_kill: false, age: 0 };
    let crash = Op::Crash { after: Some(1), loss: 66 };
    let run = Op::RunOfBatch { how: 16526, is_repeated: false };
    play(&[CONNECT, ANSWER, Op::Alarm(0), Op::Rotate { now: true }, crash, run, connect, ANSWER])
        .unwrap();
}

#[test]
fn a_crash_hides_which_events_d1_had_before_an_undeletion() {
    let create = Op::Create { how: 25963, key: Some(0), wait: 0 };
    let remove = Op::Remove { only_pending: false };
    let lost = [create, Op::Die(177), remove, Op::TimeOut(0), Op::Pass(5_000), Op::Undelete];
    play(&[&[CONNECT, ANSWER, Op::Alarm(0)], &lost[..]].concat()).unwrap();
}

#[test]
fn d1_is_restored_while_a_server_is_undeleted() {
    let run = Op::RunOfBatch { how: 16728, is_repeated: false };
    let ops = [ANSWER, Op::Remove { only_pending: true }, Op::Undelete, Op::Snapshot, run];
    let restore = [Op::Pass(1), Op::TimeUp(0), ANSWER, Op::RestoreD1];
    play(&[&[CONNECT, ANSWER, Op::Alarm(0)], &ops[..], &restore].concat()).unwrap();
}

#[test]
fn d1_is_restored_after_a_connection_with_a_new_key_whose_rotation_was_cut_off() {
    let commands: Vec<Op> = (0..4).flat_map(|_| [create(0), ANSWER]).collect();
    let connect = Op::Connect { is_control: false, can_kill: false, age: 0 };
    let ops = [Op::Alarm(0), Op::Rotate { now: true }, Op::Snapshot, Op::Die(253), connect, ANSWER];
    let restore = [Op::RestoreD1, Op::Rotate { now: false }];
    play(&[&[CONNECT, ANSWER, Op::Alarm(0)], &commands[..], &ops, &restore].concat()).unwrap();
}

#[test]
fn d1_is_restored_to_an_open_connection_of_a_deleted_server() {
    let run = Op::RunOfBatch { how: 16820, is_repeated: false };
    let connect = Op::Connect { is_control: true, can_kill: true, age: 0 };
    let remove = Op::Remove { only_pending: false };
    let ops = [ANSWER, Op::Replay { key: 2 }, Op::Snapshot, remove, ANSWER, Op::RestoreD1];
    play(&[&[CONNECT, ANSWER, Op::Alarm(0)], &ops[..], &[run, connect]].concat()).unwrap();
}

#[test]
fn an_idempotency_key_ends_after_d1_lost_its_command() {
    let create = |how, wait| Op::Create { how, key: Some(2), wait };
    let ops = [Op::Snapshot, create(57614, 20), ANSWER, Op::RestoreD1, Op::Pass(86_350_000)];
    play(&[&ops[..], &[Op::Pass(61_000), create(43851, 0), Op::Forbid(false)]].concat()).unwrap();
}

#[test]
fn the_object_is_wiped_while_the_time_of_an_old_key_ends() {
    let ops = [Op::Ack { command: 3, age: 2 }, Op::Rotate { now: false }, Op::Pass(200_000)];
    let wipe = [Op::Pass(86_350_000), Op::DisconnectAndWipe, Op::Deny(0), Op::InitIdentity];
    play(&[&ops[..], &[Op::Answer { place: 1, refused: 0 }], &wipe].concat()).unwrap();
}
