//! Password hashing, in slices between which the isolate serves other requests, and one at a time.
//! `farhand_domain::hashing_gate` has the order.

use std::cell::RefCell;
use std::time::Duration;

use farhand_domain::error::Error;
use farhand_domain::hashing_gate::{Gate, Rank, Ticket, Turn};
use farhand_domain::password::{self, Checked, Derivation, Progress};
use serde_json::json;
use worker::Delay;

use crate::http::request::Call;
use crate::platform;
use crate::platform::log;

/// The rounds of one slice: at most a few milliseconds of the isolate's time. It is a fixed number,
/// as the platform's clock stands still during a computation. docs/performance.md has what it
/// takes.
const ROUNDS_PER_SLICE: u32 = 5_000;
/// How often a waiting request looks whether it is its turn. It must not await another request's
/// future, which the runtime forbids, so it polls.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// How long a request waits at most, in seconds.
const MAX_WAIT: i64 = 20;
/// The Retry-After of a refusal, in seconds: several hashings end in this time.
const RETRY_AFTER: u64 = 2;

thread_local! {
    /// The isolate's gate: plain data, as requests share it.
    static GATE: RefCell<Gate> = RefCell::default();
}

/// Leaves the gate when dropped. A request that is cut off drops nothing: its lease ends.
struct Place(Ticket);

impl Drop for Place {
    fn drop(&mut self) {
        GATE.with_borrow_mut(|gate| gate.leave(&self.0));
    }
}

fn refusal() -> Error {
    Error::throttled(RETRY_AFTER)
}

/// Refuses a request that could not hash, before it costs more.
///
/// # Errors
/// Too many requests wait: 429.
pub fn refuse_if_full(rank: &Rank) -> Result<(), Error> {
    if GATE.with_borrow_mut(|gate| gate.is_full(rank, platform::now())) {
        Err(refusal())
    } else {
        Ok(())
    }
}

/// Waits until the request may hash.
async fn enter(rank: &Rank) -> Result<Place, Error> {
    let entered_at = platform::now();
    let place = GATE
        .with_borrow_mut(|gate| gate.enter(rank.clone(), entered_at))
        .map(Place)
        .ok_or_else(refusal)?;
    loop {
        let now = platform::now();
        if GATE.with_borrow_mut(|gate| gate.poll(&place.0, now)) == Turn::Go {
            return Ok(place);
        }
        if now >= entered_at.plus_seconds(MAX_WAIT) {
            return Err(refusal());
        }
        Delay::from(POLL_EVERY).await;
    }
}

/// Runs a derivation to its end. Other requests are served after each slice.
async fn derive(place: &Place, mut derivation: Derivation) -> [u8; 32] {
    loop {
        if let Progress::Done(key) = derivation.step(ROUNDS_PER_SLICE) {
            return key;
        }
        Delay::from(Duration::ZERO).await;
        GATE.with_borrow_mut(|gate| gate.renew(&place.0, platform::now()));
    }
}

/// Checks a password, and logs the work that it took: it must be the same for users who may not log
/// in.
///
/// # Errors
/// Too many requests wait: 429, before any hashing.
pub async fn check(
    call: &Call,
    rank: &Rank,
    password: &str,
    stored: Option<&str>,
) -> Result<Checked, Error> {
    let place = enter(rank).await?;
    let derive = async |derivation| derive(&place, derivation).await;
    let checked = password::check(password, stored, call.config.pbkdf2_rounds, derive).await;
    log::event("password_checked", json!({"request_id": call.id, "hash_rounds": checked.rounds}));
    Ok(checked)
}

/// The string to store for a new password. `username` is the user who asks for it and has proven
/// who they are.
///
/// # Errors
/// Too many requests wait: 429. There are no random bytes for the salt.
pub async fn hash(call: &Call, username: &str, password: &str) -> Result<String, Error> {
    let rank = Rank::known(call.host.workspace().unwrap_or_default(), username);
    let (salt, place) = (platform::random()?, enter(&rank).await?);
    let derive = async |derivation| derive(&place, derivation).await;
    Ok(password::hash(password, salt, call.config.pbkdf2_rounds, derive).await)
}
