//! What the end-to-end tests share: a client, workspaces of their own, agents, and waiting with a bound.

pub mod agents;
pub mod client;
pub mod instance;
pub mod processes;

pub use agents::{RealAgent, ScriptedAgent};
pub use client::{Api, Reply, Workspace};
pub use instance::Instance;

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
