//! What the end-to-end tests share: a client, workspaces of their own, agents, and waiting with a
//! bound.

pub mod agents;
pub mod alpamon;
pub mod browser;
pub mod client;
pub mod commands;
pub mod dice;
pub mod events;
pub mod instance;
pub mod mail;
pub mod openapi;
pub mod people;
pub mod processes;
pub mod secrets;
pub mod smtp;

pub use agents::{RealAgent, ScriptedAgent};
pub use alpamon::Alpamon;
pub use browser::Browser;
pub use client::{Api, Reply, Workspace};
pub use dice::Dice;
pub use events::Events;
pub use instance::Instance;
pub use people::{Cast, Person};
pub use smtp::SmtpServer;

use std::future::Future;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farhand_domain::time::Timestamp;

/// How long anything may take that is waited for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The time of this machine, which is the service's too.
pub fn now() -> Timestamp {
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    Timestamp::from_millis(millis.try_into().unwrap())
}

/// A time far ahead that a command can still be scheduled for.
pub fn far_ahead() -> Timestamp {
    now().plus_seconds(300 * 24 * 3_600)
}

/// A time until which this machine, slow as it may be, can do as much as it did since `began`, with
/// ten seconds to spare.
pub fn time_for_as_much_as_since(began: Timestamp) -> Timestamp {
    let now = now();
    now.plus_seconds(now.seconds_since(began).ceil() as i64 + 10)
}

/// Asks again until there is an answer.
///
/// # Panics
/// When there is none within [`PATIENCE`].
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, ask: impl FnMut() -> F) -> T {
    eventually_within(PATIENCE, what, ask).await
}

/// Asks again until there is an answer, of what takes its time: less and less often, as each
/// question costs the service some.
///
/// # Panics
/// When there is none within `patience`.
pub async fn eventually_within<T, F: Future<Output = Option<T>>>(
    patience: Duration,
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        let waited = began.elapsed();
        assert!(waited < patience, "waited {patience:?} for {what}");
        tokio::time::sleep(
            (waited / 10).clamp(Duration::from_millis(50), Duration::from_millis(500)),
        )
        .await;
    }
}

/// Reads a variable that has a value for each of the instances that `npm test` starts, separated by
/// commas: the one for the test at hand, by its name. The runtime of an instance uses one core
/// only.
///
/// # Panics
/// Without it.
pub fn setting_of_instance(name: &str) -> String {
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
/// Without it.
pub fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the tests with npm test"))
}
