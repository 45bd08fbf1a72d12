//! Support for the end-to-end tests: an API client, one workspace per test, agents, and waiting
//! with a time limit.

pub mod agents;
pub mod alpacon;
pub mod alpamon;
pub mod browser;
pub mod clean_host;
pub mod client;
pub mod commands;
pub mod dice;
pub mod events;
pub mod instance;
pub mod listeners;
pub mod mail;
pub mod openapi;
pub mod people;
pub mod processes;
pub mod releases;
pub mod secrets;
pub mod smtp;

pub use agents::{RealAgent, ScriptedAgent};
pub use alpamon::Alpamon;
pub use browser::Browser;
pub use clean_host::CleanHost;
pub use client::{Api, Reply, Workspace};
pub use dice::Dice;
pub use events::Events;
pub use instance::Instance;
pub use people::{Cast, Person};
pub use releases::Releases;
pub use smtp::SmtpServer;

use std::future::Future;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farhand_domain::time::Timestamp;

/// Default time limit of everything that tests wait for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The current time. The service runs on this machine, so it has the same clock.
pub fn now() -> Timestamp {
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    Timestamp::from_millis(millis.try_into().unwrap())
}

/// A time 300 days ahead: commands can still be scheduled for it.
pub fn far_ahead() -> Timestamp {
    now().plus_seconds(300 * 24 * 3_600)
}

/// A deadline for a test to repeat its steps since `began`: they may take ten seconds longer than
/// before. Slow machines get more time this way.
pub fn deadline_at_pace_since(began: Timestamp) -> Timestamp {
    let now = now();
    now.plus_seconds(now.seconds_since(began).ceil() as i64 + 10)
}

/// Calls `check` until it returns `Some`.
///
/// # Panics
/// After [`PATIENCE`].
pub async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    check: impl FnMut() -> F,
) -> T {
    eventually_within(PATIENCE, what, check).await
}

/// Calls `check` until it returns `Some`. The pause between calls grows with the time waited,
/// because each call puts load on the service.
///
/// # Panics
/// After `patience`.
pub async fn eventually_within<T, F: Future<Output = Option<T>>>(
    patience: Duration,
    what: &str,
    mut check: impl FnMut() -> F,
) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = check().await {
            return answer;
        }
        let waited = began.elapsed();
        assert!(waited < patience, "waited {patience:?} without success for {what}");
        tokio::time::sleep(
            (waited / 10).clamp(Duration::from_millis(50), Duration::from_millis(500)),
        )
        .await;
    }
}

/// Reads a variable that holds one comma-separated value for each instance that `npm test` starts.
/// The name of the running test decides which instance it uses. There are several instances because
/// each runtime uses only one core.
///
/// # Panics
/// If the variable is not set.
pub fn instance_setting(name: &str) -> String {
    let values = setting(name);
    let values: Vec<&str> = values.split(',').collect();
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let sum =
        test.bytes().fold(0, |sum: usize, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    values[sum % values.len()].to_owned()
}

/// Reads a variable that `npm test` sets.
///
/// # Panics
/// If the variable is not set.
pub fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the tests with npm test"))
}
