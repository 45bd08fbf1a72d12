//! Waiting for a command to change, and counters of commands.

use std::time::Duration;

use farhand_sql::quotas::{self, usage};
use serde_json::Value;

use crate::Instance;
use crate::client::Api;
use crate::people::COMMANDS;
use crate::{PATIENCE, eventually_within};

/// Reads a command until `is_so` returns true for it, and returns it.
///
/// # Panics
/// After [`PATIENCE`].
pub async fn wait_for_command(
    api: &Api,
    id: &str,
    what: &str,
    is_so: impl Fn(&Value) -> bool,
) -> Value {
    wait_for_command_within(PATIENCE, api, id, what, is_so).await
}

/// Like [`wait_for_command`], with another time limit.
///
/// # Panics
/// After `patience`.
pub async fn wait_for_command_within(
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

/// Waits until `status.text` of a command is `status`.
///
/// # Panics
/// After [`PATIENCE`].
pub async fn wait_for_status(api: &Api, id: &str, status: &str) -> Value {
    wait_for_command(api, id, &format!("the command to be {status}"), |command| {
        command["status"]["text"] == status
    })
    .await
}

/// Waits until a command has `handled_at`.
///
/// # Panics
/// After [`PATIENCE`].
pub async fn wait_until_ended(api: &Api, id: &str) -> Value {
    wait_until_ended_within(PATIENCE, api, id).await
}

/// Like [`wait_until_ended`], with another time limit.
///
/// # Panics
/// After `patience`.
pub async fn wait_until_ended_within(patience: Duration, api: &Api, id: &str) -> Value {
    wait_for_command_within(patience, api, id, "the command's end", |command| {
        command["handled_at"].is_string()
    })
    .await
}

/// The service's SQL with its parameter replaced by the workspace that has a slug.
fn in_workspace(sql: &str, slug: &str) -> String {
    sql.replace(":workspace_id", &format!("(SELECT id FROM workspaces WHERE slug = '{slug}')"))
}

/// How many bytes the workspace has stored and how many bytes of output it has kept in 24 hours, as
/// its quotas count them.
fn quota_bytes(instance: &Instance, slug: &str) -> (i64, i64) {
    let usage = usage(":workspace_id", "0", "strftime('%Y-%m-%dT%H:%M:%S', 'now')");
    let sql = format!("SELECT u.stored, u.output FROM {usage} u");
    let row = &instance.d1(&in_workspace(&sql, slug))[0];
    (row["stored"].as_i64().expect("a number"), row["output"].as_i64().expect("a number"))
}

/// How many bytes the workspace has stored in 24 hours, without output.
pub fn stored_bytes(instance: &Instance, slug: &str) -> i64 {
    quota_bytes(instance, slug).0
}

/// How many bytes of output the workspace has kept in 24 hours.
pub fn output_bytes(instance: &Instance, slug: &str) -> i64 {
    quota_bytes(instance, slug).1
}

/// Adds a workspace's commands to its counters. The sealer does this after some hundred commands.
pub fn count_commands(instance: &Instance, slug: &str) {
    for sql in quotas::count_commands() {
        instance.tamper_with_d1(&in_workspace(&sql, slug));
    }
}
