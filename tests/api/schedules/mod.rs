//! `/api/events/schedules/` (contract 14).

mod change;
mod credentials;
mod due;
mod fields;
mod quotas;
mod runs;
mod targets;
mod times;

use std::time::Duration;

use farhand_tests::people::item_path;
use farhand_tests::{Api, Instance, eventually, eventually_within, now};
use serde_json::{Value, json};

pub const SCHEDULES: &str = "/api/events/schedules/";
const BATCHES: &str = "/api/events/batches/";

/// A schedule that is due once a year, on all servers, with some other fields.
fn yearly(more: Value) -> Value {
    let mut body = json!({
        "name": "yearly", "cron": "0 0 1 1 *", "targets": {"all": true}, "line": "id",
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn create(api: &Api, more: Value) -> Value {
    api.post(SCHEDULES, &yearly(more)).await.expect(201)
}

async fn read(api: &Api, schedule: &Value) -> Value {
    api.get(&item_path(SCHEDULES, schedule)).await.expect(200)
}

async fn patch(api: &Api, schedule: &Value, change: Value) -> Value {
    api.patch(&item_path(SCHEDULES, schedule), &change).await.expect(200)
}

fn runs_path(schedule: &Value) -> String {
    format!("{}runs/", item_path(SCHEDULES, schedule))
}

async fn runs(api: &Api, schedule: &Value) -> Vec<Value> {
    let page = api.get(&runs_path(schedule)).await.expect(200);
    page["results"].as_array().unwrap().clone()
}

/// Waits until the run history has a number of entries. The newest is the first.
async fn wait_for_runs(api: &Api, schedule: &Value, count: usize) -> Vec<Value> {
    eventually("the runs", || async {
        Some(runs(api, schedule).await).filter(|runs| runs.len() >= count)
    })
    .await
}

/// Waits until a batch has ended.
async fn wait_for_batch(api: &Api, id: &Value) -> Value {
    let path = format!("{BATCHES}{}/", id.as_str().unwrap());
    eventually_within(Duration::from_secs(60), "the batch to end", || async {
        let batch = api.get(&path).await.expect(200);
        (batch["finished_at"] != Value::Null).then_some(batch)
    })
    .await
}

/// Makes a schedule due since some seconds ago, and lets the scheduler handle it. The change keeps
/// a due time that was not handled yet.
async fn make_due(instance: &Instance, owner: &Api, schedule: &Value, seconds: i64) -> Value {
    let (id, due_at) = (schedule["id"].as_str().unwrap(), now().plus_seconds(-seconds));
    instance.tamper_with_d1(&format!(
        "UPDATE schedules SET next_due = '{due_at}', revision = revision + 1 WHERE id = '{id}'"
    ));
    patch(owner, schedule, json!({"name": "due"})).await;
    json!(due_at)
}
