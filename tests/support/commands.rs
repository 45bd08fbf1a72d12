//! Waiting for what becomes of a command.

use std::time::Duration;

use farhand_sql::command_counts::{self, bytes_of_day};
use serde_json::Value;

use crate::Instance;
use crate::client::Api;
use crate::people::COMMANDS;
use crate::{PATIENCE, eventually_within};

/// Reads a command until `is_so` of it, and returns it then.
///
/// # Panics
/// When that takes longer than [`PATIENCE`].
pub async fn command_when(
    api: &Api,
    id: &str,
    what: &str,
    is_so: impl Fn(&Value) -> bool,
) -> Value {
    command_when_within(PATIENCE, api, id, what, is_so).await
}

/// The same of what takes its time.
///
/// # Panics
/// When that takes longer than `patience`.
pub async fn command_when_within(
    patience: Duration,
    api: &Api,
    id: &str,
    what: &str,
    is_so: impl Fn(&Value) -> bool,
) -> Value {
    let path = format!("{COMMANDS}{id}/");
    eventually_within(patience, what, || async {
        Some(api.get(&path).await.expect(200)).filter(&is_so)
    })
    .await
}

/// Waits until a command has a status, by its text.
///
/// # Panics
/// When that takes longer than [`PATIENCE`].
pub async fn has_become(api: &Api, id: &str, status: &str) -> Value {
    command_when(api, id, &format!("the command to be {status}"), |command| {
        command["status"]["text"] == status
    })
    .await
}

/// Waits for a command's end.
///
/// # Panics
/// When that takes longer than [`PATIENCE`].
pub async fn ended(api: &Api, id: &str) -> Value {
    ended_within(PATIENCE, api, id).await
}

/// The same of an end that takes its time.
///
/// # Panics
/// When that takes longer than `patience`.
pub async fn ended_within(patience: Duration, api: &Api, id: &str) -> Value {
    command_when_within(patience, api, id, "the command's end", |command| {
        command["handled_at"].is_string()
    })
    .await
}

/// SQL of the service for the workspace that has a slug.
fn of_workspace(sql: &str, slug: &str) -> String {
    sql.replace(":workspace_id", &format!("(SELECT id FROM workspaces WHERE slug = '{slug}')"))
}

/// The bytes that a workspace stored today.
pub fn stored_bytes(instance: &Instance, slug: &str) -> i64 {
    let sql =
        format!("SELECT {} AS n", bytes_of_day(":workspace_id", "strftime('%Y-%m-%d', 'now')"));
    instance.d1(&of_workspace(&sql, slug))[0]["n"].as_i64().expect("a number")
}

/// Adds a workspace's commands to its counters, as its sealer does when there are some hundred.
pub fn count_commands(instance: &Instance, slug: &str) {
    for sql in command_counts::add() {
        instance.tamper_with_d1(&of_workspace(&sql, slug));
    }
}
