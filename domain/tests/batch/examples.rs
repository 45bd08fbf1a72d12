//! Batches whose inputs are written down step by step.

use farhand_domain::batch::event::{BatchState, Event};
use farhand_domain::batch::limits::Limits;
use farhand_domain::batch::request::OfflineTargets;
use farhand_domain::batch::target::TargetState;

use super::ops::Op;
use super::world::{Setting, World};

fn setting(targets: usize, max_concurrency: u64) -> Setting {
    Setting {
        targets,
        limits: Limits { max_concurrency, max_errors: None, ramp: false },
        on_offline: OfflineTargets::Skip,
        delay: 0,
        connected: 8,
    }
}

/// Plays a batch whose commands run for one second, and counts its requests to D1.
fn requests(targets: usize, max_concurrency: u64) -> u64 {
    let mut world = World::new(setting(targets, max_concurrency));
    world.step(Event::Reload).unwrap();
    for _ in 0..2_000 {
        world.answer(0).unwrap();
        for _ in 0..50 {
            world.call(0, true).unwrap();
        }
        world.run(&Op::Pass { millis: 50 }).unwrap();
        for place in 0..targets {
            // About one in ten ends, in an order that looks random.
            if (place * 7 + world.now.as_millis() as usize / 50).is_multiple_of(10) {
                world.run(&Op::End { place, is_success: true }).unwrap();
                world.flush(place);
            }
        }
        for _ in 0..targets {
            world.run(&Op::Report { place: 0, is_repeated: false }).unwrap();
        }
        if world.machine.is_over() {
            assert_eq!(world.d1.count(|state| state == TargetState::Success), targets as u64);
            return world.requests_sent;
        }
    }
    panic!("the batch does not end");
}

#[test]
fn a_batch_of_1000_needs_at_most_60_requests_to_d1() {
    for max_concurrency in [50, 100, 250, 1_000] {
        let sent = requests(1_000, max_concurrency);
        assert!(sent <= 60, "{sent} requests with max_concurrency {max_concurrency}");
    }
}

#[test]
fn an_unused_batch_waits_for_its_time_and_a_cancelled_one_starts_nothing() {
    let mut world = World::new(Setting { delay: 20, ..setting(3, 3) });
    world.step(Event::Reload).unwrap();
    world.answer(0).unwrap();
    world.run(&Op::Pass { millis: 19_000 }).unwrap();
    assert_eq!((world.requests_sent, world.d1.batch.state), (1, BatchState::Scheduled));
    world.run(&Op::Cancel { is_lost: false }).unwrap();
    world.settle().unwrap();
    assert_eq!(world.d1.count(|state| state == TargetState::Cancelled), 3);
    assert_eq!(world.d1.batch.state, BatchState::Cancelled);
    assert!(world.objects.iter().all(|object| object.runs == 0));
}

#[test]
fn an_offline_target_is_skipped_or_waits_for_its_server() {
    let mut world = World::new(Setting { connected: 1, ..setting(4, 4) });
    world.step(Event::Reload).unwrap();
    world.settle().unwrap();
    assert_eq!(world.d1.count(|state| state == TargetState::Skipped), 3);

    let queue = Setting { connected: 1, on_offline: OfflineTargets::Queue, ..setting(4, 1) };
    let mut world = World::new(queue);
    world.step(Event::Reload).unwrap();
    for _ in 0..6 {
        world.answer(0).unwrap();
        world.call(0, true).unwrap();
    }
    assert_eq!(world.d1.count(|state| state == TargetState::Queued), 3);
    world.run(&Op::End { place: 0, is_success: true }).unwrap();
    world.run(&Op::Connect(2)).unwrap();
    for place in [0, 2] {
        world.flush(place);
        world.run(&Op::Report { place: 0, is_repeated: false }).unwrap();
    }
    world.run(&Op::Pass { millis: 1 }).unwrap();
    for _ in 0..3 {
        world.answer(0).unwrap();
        world.call(0, true).unwrap();
    }
    assert_eq!(world.objects[2].runs, 1);
    world.run(&Op::Pass { millis: 3_600_000 }).unwrap();
    world.settle().unwrap();
    assert_eq!(world.d1.count(|state| state == TargetState::Expired), 2);
}

#[test]
fn too_many_failures_skip_the_rest_and_a_ramp_begins_with_one() {
    let limits = Limits { max_concurrency: 8, max_errors: Some(1), ramp: true };
    let mut world = World::new(Setting { limits, ..setting(10, 8) });
    world.step(Event::Reload).unwrap();
    let mut most_open = 0;
    for _ in 0..200 {
        world.answer(0).unwrap();
        world.call(0, true).unwrap();
        most_open = most_open.max(world.d1.open());
        let place = (0..10).find(|place| {
            world.objects[*place].runs == 1 && {
                let state = world.d1.rows[*place].state();
                !state.is_end()
            }
        });
        if let Some(place) = place {
            let is_success = world.d1.count(|state| state == TargetState::Success) < 3;
            world.run(&Op::End { place, is_success }).unwrap();
            world.flush(place);
            world.run(&Op::Report { place: 0, is_repeated: false }).unwrap();
        }
        world.run(&Op::Pass { millis: 500 }).unwrap();
    }
    assert!(most_open > 1, "{most_open}");
    assert_eq!(world.d1.batch.state, BatchState::Finished);
    assert!(world.d1.failures() >= 2);
    assert!(world.d1.count(|state| state == TargetState::Skipped) > 0);
}

#[test]
fn a_revoked_credential_starts_nothing_more_although_a_check_is_still_valid() {
    let mut world = World::new(setting(3, 1));
    world.step(Event::Reload).unwrap();
    for _ in 0..3 {
        world.answer(0).unwrap();
        world.call(0, true).unwrap();
    }
    assert_eq!(world.d1.started(), 1);
    world.run(&Op::Revoke).unwrap();
    world.run(&Op::End { place: 0, is_success: true }).unwrap();
    world.flush(0);
    world.run(&Op::Report { place: 0, is_repeated: false }).unwrap();
    let before = world.requests_sent;
    world.run(&Op::Pass { millis: 1_500 }).unwrap();
    // An insertion without effect, a read, a check, the marks and the end.
    for _ in 0..30 {
        world.answer(0).unwrap();
        world.run(&Op::Pass { millis: 200 }).unwrap();
    }
    assert_eq!((world.d1.started(), world.d1.batch.state), (1, BatchState::Finished));
    assert!(world.requests_sent - before < 8, "{}", world.requests_sent - before);
}

#[test]
fn a_cancelled_batch_cancels_what_was_inserted_and_not_delivered() {
    let mut world = World::new(setting(3, 3));
    world.step(Event::Reload).unwrap();
    for _ in 0..3 {
        world.answer(0).unwrap();
    }
    assert_eq!(world.d1.open(), 3);
    // The first call arrives. The others fail.
    world.call(0, true).unwrap();
    for _ in 0..2 {
        world.call(0, false).unwrap();
    }
    world.run(&Op::Cancel { is_lost: false }).unwrap();
    for _ in 0..2 {
        world.answer(0).unwrap();
        world.run(&Op::Pass { millis: 6_000 }).unwrap();
        for _ in 0..3 {
            world.call(0, true).unwrap();
        }
    }
    let runs: Vec<u32> = world.objects.iter().map(|object| object.runs).collect();
    assert_eq!(runs, [1, 0, 0]);
    for place in 0..3 {
        world.flush(place);
    }
    assert_eq!(world.d1.count(|state| state == TargetState::Cancelled), 2);
}

#[test]
fn a_report_is_not_lost_while_d1_is_read() {
    let mut world = World::new(setting(1, 1));
    world.step(Event::Reload).unwrap();
    for _ in 0..3 {
        world.answer(0).unwrap();
    }
    world.call(0, true).unwrap();
    world.run(&Op::Reload).unwrap();
    world.run(&Op::Apply(0)).unwrap();
    world.run(&Op::End { place: 0, is_success: true }).unwrap();
    world.flush(0);
    world.run(&Op::Report { place: 0, is_repeated: false }).unwrap();
    // The answer is older than the report.
    world.answer(0).unwrap();
    world.answer(0).unwrap();
    assert!(world.machine.is_over());
}
