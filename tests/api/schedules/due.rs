//! What happens at due times: overlaps, missed due times, crashes and deleted workspaces (contract
//! 14.5).

use std::collections::BTreeMap;
use std::time::Duration;

use farhand_domain::time::Timestamp;
use farhand_tests::agents::{ScriptedAgent, wait_until_connected};
use farhand_tests::instance::{change_d1, delay_alarms};
use farhand_tests::people::item_path;
use farhand_tests::{Instance, Workspace, eventually, eventually_within, now};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{SCHEDULES, create, make_due, patch, read, runs, wait_for_batch, wait_for_runs};

/// Ends a command of an agent.
async fn end(agent: &ScriptedAgent, command: &Value) {
    let id = command["id"].as_str().unwrap();
    agent.ack(id).await;
    agent.fin(id, 0, "done").await;
}

/// Asserts the outcomes of the run history, the newest first.
#[track_caller]
fn assert_outcomes(runs: &[Value], expected: &[&str]) {
    let outcomes: Vec<_> = runs.iter().map(|run| run["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, expected, "{runs:?}");
}

#[tokio::test]
async fn overlap_decides_while_the_previous_run_goes_on() {
    let (instance, _folder) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let session = workspace.session();
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    // A batch skips a server that D1 has as offline.
    wait_until_connected(&workspace, server["id"].as_str().unwrap(), true).await;
    let schedule = create(&session, json!({"overlap": "skip"})).await;
    let due = async || make_due(&instance, &session, &schedule, 1).await;

    due().await;
    let first = agent.next_command().await;
    due().await;
    let history = wait_for_runs(&session, &schedule, 2).await;
    assert_outcomes(&history, &["skipped", "started"]);
    assert_eq!(history[0]["reason"], "The previous run had not ended.");

    patch(&session, &schedule, json!({"overlap": "allow"})).await;
    due().await;
    let second = agent.next_command().await;
    assert_outcomes(
        &wait_for_runs(&session, &schedule, 3).await,
        &["started", "skipped", "started"],
    );

    // One run waits for the previous runs. A further one is skipped.
    patch(&session, &schedule, json!({"overlap": "queue"})).await;
    let queued = due().await;
    eventually("the run to wait", || async {
        (instance.read_d1("SELECT queued FROM schedules WHERE queued IS NOT NULL").len() == 1)
            .then_some(())
    })
    .await;
    due().await;
    let history = wait_for_runs(&session, &schedule, 4).await;
    assert_outcomes(&history[..1], &["skipped"]);
    assert!(history[0]["reason"].as_str().unwrap().contains("already waited"), "{}", history[0]);
    assert!(agent.stays_silent().await);
    end(&agent, &first).await;
    end(&agent, &second).await;
    let third = agent.next_command().await;
    let history = wait_for_runs(&session, &schedule, 5).await;
    let run = history.iter().find(|run| run["due_at"] == queued).unwrap();
    assert_eq!(run["outcome"], "started");
    assert!(run["started_at"].as_str() > run["due_at"].as_str());
    end(&agent, &third).await;
    wait_for_batch(&session, &run["batch"]).await;

    // A run that waits is dropped if the schedule is disabled.
    due().await;
    let fourth = agent.next_command().await;
    due().await;
    eventually("the run to wait", || async {
        (instance.read_d1("SELECT queued FROM schedules WHERE queued IS NOT NULL").len() == 1)
            .then_some(())
    })
    .await;
    patch(&session, &schedule, json!({"enabled": false})).await;
    let history = wait_for_runs(&session, &schedule, 7).await;
    assert_outcomes(&history[..1], &["skipped"]);
    assert!(history[0]["reason"].as_str().unwrap().contains("disabled"), "{}", history[0]);
    end(&agent, &fourth).await;
    assert!(agent.stays_silent().await);
    instance.stop().await;
}

/// The whole minute that many minutes ago, and its number in the hour.
fn minutes_ago(minutes: i64) -> (Timestamp, u64) {
    let minute = now().as_millis() / 60_000 - minutes.unsigned_abs();
    (Timestamp::from_millis(minute * 60_000), minute % 60)
}

#[tokio::test]
async fn misfire_decides_once_about_all_that_was_missed() {
    let (instance, folder) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    workspace.server("web-1").await;
    // The next due time of this expression is later than the test.
    let ((first, one), (last, other)) = (minutes_ago(20), minutes_ago(15));
    let cron = format!("{one},{other} * * * *");
    let session = workspace.session();
    let once = create(&session, json!({"cron": cron, "misfire": "run_once"})).await;
    let skip = create(&session, json!({"cron": cron, "misfire": "skip"})).await;
    let ended = json!({"cron": cron, "misfire": "run_once", "ends_at": now().plus_seconds(-600)});
    let ended = create(&session, ended).await;
    let port = instance.port();
    instance.stop().await;
    // The service was down over both due times, and the scheduler's alarm is lost: the hourly pass,
    // which a start runs, finds the schedules.
    change_d1(folder.path(), &format!("UPDATE schedules SET next_due = '{first}'"));
    assert_eq!(delay_alarms(folder.path(), "Scheduler", 7_200), 1);
    let instance = Instance::restart_at(port, folder.path(), &[]).await;
    let run = wait_for_runs(&session, &once, 1).await.remove(0);
    assert_eq!((&run["outcome"], &run["due_at"]), (&json!("started"), &json!(last)));
    wait_for_batch(&session, &run["batch"]).await;
    let run = wait_for_runs(&session, &skip, 1).await.remove(0);
    assert_eq!(
        (&run["outcome"], &run["due_at"], &run["batch"]),
        (&json!("missed"), &json!(last), &Value::Null)
    );
    let reason = run["reason"].as_str().unwrap();
    assert!(reason.contains(&first.to_string()) && reason.contains(&last.to_string()), "{reason}");
    let run = wait_for_runs(&session, &ended, 1).await.remove(0);
    assert_eq!(run["outcome"], "missed", "{run}");
    assert!(run["reason"].as_str().unwrap().contains("ended"), "{run}");
    for schedule in [&once, &skip, &ended] {
        assert_eq!(runs(&session, schedule).await.len(), 1);
    }
    assert!(
        read(&session, &once).await["next_runs"][0].as_str() > Some(now().to_string().as_str())
    );
    instance.stop().await;
}

#[tokio::test]
async fn a_crash_neither_loses_nor_doubles_a_run() {
    const SCHEDULES_IN_TEST: usize = 8;
    const ROUNDS: usize = 3;
    let (mut instance, folder) = Instance::new().await;
    let port = instance.port();
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    workspace.server("web-1").await;
    let session = workspace.session();
    let mut schedules = Vec::new();
    for _ in 0..SCHEDULES_IN_TEST {
        schedules.push(create(&session, json!({"overlap": "allow"})).await);
    }
    for round in 1..=ROUNDS {
        let due_at = now().plus_seconds(-1);
        instance.tamper_with_d1(&format!(
            "UPDATE schedules SET next_due = '{due_at}', revision = revision + 1"
        ));
        patch(&session, &schedules[0], json!({"name": format!("round {round}")})).await;
        // The pass takes about this long: the crash hits it at another step in each round.
        sleep(Duration::from_millis(round as u64 * 60)).await;
        instance.kill().await;
        instance = Instance::restart_at(port, folder.path(), &[]).await;
        for schedule in &schedules {
            let history = wait_for_runs(&session, schedule, round).await;
            assert_eq!(history.len(), round, "{history:?}");
            assert_outcomes(&history[..1], &["started"]);
            assert_eq!(history[0]["due_at"], json!(due_at));
        }
    }
    let mut batches: BTreeMap<String, usize> = BTreeMap::new();
    for schedule in instance.read_d1("SELECT schedule_id FROM batches") {
        *batches.entry(schedule).or_default() += 1;
    }
    assert_eq!(batches.into_values().collect::<Vec<_>>(), [ROUNDS; SCHEDULES_IN_TEST]);
    for schedule in &schedules {
        for run in runs(&session, schedule).await {
            wait_for_batch(&session, &run["batch"]).await;
        }
    }
    instance.stop().await;
}

#[tokio::test]
async fn fifty_runs_that_are_due_together_start_within_two_seconds() {
    const COUNT: usize = 50;
    let (instance, _folder) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    workspace.server("web-1").await;
    let session = workspace.session();
    for _ in 0..COUNT {
        create(&session, json!({"cron": "* * * * *", "overlap": "allow"})).await;
    }
    // The next whole minute.
    let due_at = Timestamp::from_millis((now().as_millis() / 60_000 + 1) * 60_000);
    let started = eventually_within(Duration::from_secs(120), "all runs", || async {
        let started = instance.read_d1(&format!(
            "SELECT started_at FROM schedule_runs WHERE outcome = 'started' AND due_at = '{due_at}' ORDER BY 1"
        ));
        (started.len() == COUNT).then_some(started)
    })
    .await;
    let last = Timestamp::parse(started.last().unwrap()).unwrap();
    let lag = last.seconds_since(due_at);
    println!("{COUNT} runs started within {lag} s");
    assert!(lag < 2.0, "the last run started {lag} s late");
    instance.stop().await;
}

#[tokio::test]
async fn a_deleted_workspace_runs_nothing_until_it_is_undeleted() {
    let (instance, folder) = Instance::new().await;
    let port = instance.port();
    let operator = instance.operator();
    let workspace = Workspace::create_with(&operator, "acme").await;
    workspace.server("web-1").await;
    let session = workspace.session();
    let schedule = create(&session, json!({})).await;
    operator.delete("/operator/workspaces/acme/").await.expect(204);
    instance.stop().await;
    let due_at = now().plus_seconds(-300);
    change_d1(folder.path(), &format!("UPDATE schedules SET next_due = '{due_at}'"));
    let instance = Instance::restart_at(port, folder.path(), &[]).await;
    session.get(SCHEDULES).await.expect(404);
    let count = || instance.read_d1("SELECT CAST(count(*) AS TEXT) FROM schedule_runs");
    assert_eq!(count(), ["0"]);
    operator.call("POST", "/operator/workspaces/acme/undelete/").await.expect(200);
    let run = wait_for_runs(&session, &schedule, 1).await.remove(0);
    assert_eq!((&run["outcome"], &run["due_at"]), (&json!("started"), &json!(due_at)));
    // The purge deletes the schedules, and wipes the scheduler.
    session.get(&item_path(SCHEDULES, &schedule)).await.expect(200);
    operator.delete("/operator/workspaces/acme/").await.expect(204);
    instance
        .tamper_with_d1("UPDATE workspaces SET deleted_at = '2026-01-01T00:00:00.000000+00:00'");
    operator.delete("/operator/workspaces/acme/?now=true&confirm=acme").await.expect(204);
    eventually("the purge", || async {
        (instance
            .read_d1("SELECT id FROM schedules UNION ALL SELECT id FROM schedule_runs")
            .is_empty()
            && instance.read_objects("Scheduler", "SELECT key FROM _cf_KV").is_empty())
        .then_some(())
    })
    .await;
    instance.stop().await;
}
