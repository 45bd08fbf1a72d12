//! `max_concurrency`, `ramp` and `max_errors`.

use serde_json::json;

use super::fleet::Fleet;

#[tokio::test]
async fn no_more_commands_run_than_max_concurrency() {
    let mut fleet = Fleet::new(6, 6).await;
    let batch = fleet.batch(json!({"max_concurrency": 2})).await;
    for first in [0, 2, 4] {
        let orders = [fleet.run(first).await, fleet.run(first + 1).await];
        let read = fleet.wait_for_count(&batch, "running", 2).await;
        assert_eq!(read["counts"]["success"], first);
        assert_eq!(read["counts"]["pending"], 4 - first);
        for (place, order) in orders.iter().enumerate() {
            fleet.agents[&(first + place)].fin(order["id"].as_str().unwrap(), 0, "").await;
        }
    }
    assert_eq!(fleet.wait_until_ended(&batch).await["counts"]["success"], 6);
}

#[tokio::test]
async fn a_ramp_doubles_after_successes() {
    let mut fleet = Fleet::new(5, 5).await;
    let batch = fleet.batch(json!({"max_concurrency": 3, "ramp": true})).await;
    let first = fleet.run(0).await;
    assert_eq!(fleet.wait_for_count(&batch, "running", 1).await["counts"]["pending"], 4);
    fleet.agents[&0].fin(first["id"].as_str().unwrap(), 0, "").await;
    let second = [fleet.run(1).await, fleet.run(2).await];
    assert_eq!(fleet.wait_for_count(&batch, "running", 2).await["counts"]["pending"], 2);
    for (place, order) in second.iter().enumerate() {
        fleet.agents[&(place + 1)].fin(order["id"].as_str().unwrap(), 0, "").await;
    }
    for place in [3, 4] {
        fleet.finish(place, 0).await;
    }
    assert_eq!(fleet.wait_until_ended(&batch).await["counts"]["success"], 5);
}

#[tokio::test]
async fn too_many_failures_skip_the_rest_and_running_commands_go_on() {
    let mut fleet = Fleet::new(6, 6).await;
    let batch = fleet.batch(json!({"max_concurrency": 3, "max_errors": 1})).await;
    let mut orders = Vec::new();
    for place in 0..3 {
        orders.push(fleet.run(place).await);
    }
    // One failure is allowed.
    fleet.agents[&0].fin(orders[0]["id"].as_str().unwrap(), 1, "").await;
    orders.push(fleet.run(3).await);
    fleet.agents[&1].fin(orders[1]["id"].as_str().unwrap(), 1, "").await;
    let stopping = fleet.wait_for_count(&batch, "skipped", 2).await;
    assert_eq!(
        (&stopping["state"], &stopping["stopped_by"]),
        (&json!("stopping"), &json!("errors"))
    );
    fleet.wait_for_count(&batch, "running", 2).await;
    for place in [2, 3] {
        fleet.agents[&place].fin(orders[place]["id"].as_str().unwrap(), 0, "").await;
    }
    let ended = fleet.wait_until_ended(&batch).await;
    assert_eq!((&ended["state"], &ended["stopped_by"]), (&json!("finished"), &json!("errors")));
    assert_eq!((&ended["counts"]["failed"], &ended["counts"]["success"]), (&json!(2), &json!(2)));
    let targets = fleet.targets(&batch).await;
    assert!(targets[5]["reason"].as_str().unwrap().contains("max_errors"), "{}", targets[5]);
    assert!(fleet.are_silent().await);
}
