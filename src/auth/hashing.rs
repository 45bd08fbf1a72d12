//! Password hashing (contract 4.6). An isolate hashes one password at a time, in slices, and serves
//! other requests between the slices. `farhand_domain::limits::hashing_gate` decides the order.

use std::cell::RefCell;
use std::time::Duration;

use farhand_domain::error::Error;
use farhand_domain::limits::hashing_gate::{CallerClass, Gate, Ticket, Turn};
use farhand_domain::people::password::{self, Derivation, DerivationProgress, PasswordCheck};
use serde_json::json;
use worker::Delay;

use crate::http::request::Call;
use crate::platform;
use crate::platform::log;

/// PBKDF2 rounds of one slice, which takes at most a few milliseconds
/// (`docs/contributing/performance.md`). The number is fixed, because the runtime's clock does not
/// advance during a computation.
const ROUNDS_PER_SLICE: u32 = 5_000;
/// How often a waiting request checks whether it may hash. It polls, because the runtime forbids
/// awaiting a future of another request.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The maximum time that a request waits in the queue.
const MAX_QUEUE_WAIT: Duration = Duration::from_secs(20);
/// The `Retry-After` of a refusal. Several hashings end within this time.
const RETRY_AFTER: Duration = Duration::from_secs(2);

thread_local! {
    /// The queue of the isolate, which all its requests share.
    static GATE: RefCell<Gate> = RefCell::default();
}

/// A place in the queue, or the permission to hash. Dropping it leaves the queue. If the runtime
/// terminates a request, nothing is dropped, but the request's lease in the gate expires.
struct GatePlace(Ticket);

impl Drop for GatePlace {
    fn drop(&mut self) {
        GATE.with_borrow_mut(|gate| gate.leave(&self.0));
    }
}

/// The 429 for a request that cannot hash now.
fn queue_full_error() -> Error {
    Error::throttled(RETRY_AFTER.as_secs())
}

/// Refuses a request that has no place in the queue, before other work is done for it.
///
/// # Errors
/// 429 if the queue is full.
pub fn refuse_if_full(rank: &CallerClass) -> Result<(), Error> {
    if GATE.with_borrow_mut(|gate| gate.is_full(rank, platform::now())) {
        Err(queue_full_error())
    } else {
        Ok(())
    }
}

/// Waits until the request may hash.
///
/// # Errors
/// 429 if the queue is full, or after [`MAX_QUEUE_WAIT`].
async fn enter(rank: &CallerClass) -> Result<GatePlace, Error> {
    let entered_at = platform::now();
    let place = GATE
        .with_borrow_mut(|gate| gate.enter(rank.clone(), entered_at))
        .map(GatePlace)
        .ok_or_else(queue_full_error)?;
    loop {
        let now = platform::now();
        if GATE.with_borrow_mut(|gate| gate.poll(&place.0, now)) == Turn::Go {
            return Ok(place);
        }
        if now >= entered_at.plus(MAX_QUEUE_WAIT) {
            return Err(queue_full_error());
        }
        Delay::from(POLL_INTERVAL).await;
    }
}

/// Runs a derivation to its end. After each slice, other requests can run.
async fn derive(place: &GatePlace, mut derivation: Derivation) -> [u8; 32] {
    loop {
        if let DerivationProgress::Done(key) = derivation.step(ROUNDS_PER_SLICE) {
            return key;
        }
        Delay::from(Duration::ZERO).await;
        GATE.with_borrow_mut(|gate| gate.renew(&place.0, platform::now()));
    }
}

/// Checks a password against a stored hash. `stored` is `None` if no user with this name may log
/// in. The check then takes as many rounds as for a wrong password, so the duration does not reveal
/// whether the account exists. The number of rounds is logged.
///
/// # Errors
/// 429 before any hashing if too many requests wait, or if the wait was too long.
pub async fn check(
    call: &Call,
    rank: &CallerClass,
    password: &str,
    stored: Option<&str>,
) -> Result<PasswordCheck, Error> {
    let place = enter(rank).await?;
    let derive = async |derivation| derive(&place, derivation).await;
    let checked = password::check(password, stored, call.config.pbkdf2_rounds, derive).await;
    log::event("password_checked", json!({"request_id": call.id, "hash_rounds": checked.rounds}));
    Ok(checked)
}

/// Hashes a new password. Returns the PHC string to store. `username` is the authenticated user who
/// sets the password; the request waits in the queue under this name.
///
/// # Errors
/// 429 if too many requests wait, or if the wait was too long. An internal error if the platform
/// has no random bytes for the salt.
pub async fn hash(call: &Call, username: &str, password: &str) -> Result<String, Error> {
    let rank = CallerClass::known(call.host.workspace().unwrap_or_default(), username);
    let (salt, place) = (platform::random()?, enter(&rank).await?);
    let derive = async |derivation| derive(&place, derivation).await;
    Ok(password::hash(password, salt, call.config.pbkdf2_rounds, derive).await)
}
