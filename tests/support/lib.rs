//! What the end-to-end tests share: a client, workspaces of their own, agents, and waiting with a bound.

pub mod agents;
pub mod client;
pub mod processes;

pub use agents::{RealAgent, ScriptedAgent};
pub use client::{Api, Reply, Workspace};

use std::future::Future;
use std::time::{Duration, Instant};

/// How long anything may take that is waited for.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again until there is an answer.
///
/// # Panics
/// When there is none within [`PATIENCE`].
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < until, "waited {PATIENCE:?} for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Reads a variable that `npm test` sets.
///
/// # Panics
/// Without it.
pub fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the tests with npm test"))
}

/// Looks into the service's D1 from outside, for what the API cannot show.
///
/// # Panics
/// Where wrangler fails, or the service is not a local one.
pub async fn d1(sql: &str) -> serde_json::Value {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let state = setting("FARHAND_STATE_DIR");
    let output = tokio::process::Command::new("node_modules/.bin/wrangler")
        .args(["d1", "execute", "DB", "--local", "--json", "--persist-to", &state, "--command", sql])
        .env("WRANGLER_SEND_METRICS", "false")
        .env("CI", "true")
        .current_dir(root)
        .output()
        .await
        .expect("wrangler is in node_modules");
    let text = String::from_utf8_lossy(&output.stdout);
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    answer[0]["results"].clone()
}
