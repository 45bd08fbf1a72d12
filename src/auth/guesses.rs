//! Guesses at passwords and operator tokens (contract 4.5 and 2.1). The `Throttle` objects count
//! each guess before it is checked.

use farhand_domain::error::Error;
use farhand_domain::limits::hashing_gate::CallerClass;
use farhand_domain::limits::throttle::Attempt;
use farhand_domain::secret::Guessable;
use futures_util::future;
use serde_json::json;
use uuid::Uuid;
use worker::Env;

use super::audit::record_wrong_password;
use super::hashing;
use crate::http::request::Call;
use crate::objects::throttle::{AttemptOutcome, ThrottleRequest, call_throttle};
use crate::platform::{self, log};
use crate::store::workspaces;

/// Returns the id of the workspace, which separates the counters of workspaces. Ids are never
/// reused. For an unknown workspace, returns 404 and nothing is counted.
async fn counter_scope(call: &Call) -> Result<String, Error> {
    let id = workspaces::id_of(&call.database, call.workspace()?, call.now).await?;
    id.map(|id| id.to_string()).ok_or_else(Error::not_found)
}

/// The sender of a password. It decides which counters apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guesser {
    /// A request without a credential: all counters of contract 4.5.
    Anonymous,
    /// A request with a credential of the user whose password is checked: the counters of the
    /// username, and of the username together with the address. Guesses at other users' passwords
    /// do not block this request.
    User,
}

/// What is known about a guess before its password is checked.
#[derive(Clone, Debug)]
pub struct Guess {
    /// The rank for the hashing queue.
    pub rank: CallerClass,
    /// Whether the user did not log in from the client's network recently (contract 4.16).
    pub is_new_network: bool,
}

/// Runs a password check as a counted guess. `check` returns `None` for a wrong password.
///
/// # Errors
/// 429 if there were too many wrong guesses, or an error of `check`.
pub async fn check_throttled<T>(
    call: &Call,
    (guesser, username): (Guesser, &str),
    check: impl AsyncFnOnce(&Guess) -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    let known = CallerClass::known(call.workspace()?, username);
    let (scope, address) = (counter_scope(call).await?, call.remote_ip());
    let settings = call.config.throttles;
    // A user may type a password into the username field. So the counters store a keyed hash.
    let username =
        platform::secret_key(&call.env)?.hash(Guessable::Username, &username.to_lowercase());
    let id = platform::new_id(call.now)?;
    // Reports after the response. Until the report arrives, the attempt counts as a failure.
    // Another attempt that is blocked only for that reason waits for the report.
    let report_later = |attempts: &[Attempt], outcome| {
        let (env, attempts) = (call.env.clone(), attempts.to_vec());
        call.context.wait_until(async move {
            if let Err(error) = report_outcome(&env, id, &attempts, outcome).await {
                log::error("throttle_not_called", json!({}), &error.detail);
            }
        });
    };
    let begin = async |attempt: &Attempt| {
        call_throttle(&call.env, ThrottleRequest::Begin { id, attempt: attempt.clone() }).await
    };
    // Always begin the attempts in this order. Otherwise two requests could each hold the attempt
    // that the other request waits for.
    let by_username = Attempt::login_by_username(&scope, &username, &address, settings);
    let by_username = match guesser {
        Guesser::Anonymous => by_username,
        Guesser::User => by_username.without_network(),
    };
    let origin = begin(&by_username).await?;
    let (rank, attempts) = if origin.is_known {
        (known, vec![by_username.for_known_address()])
    } else if guesser == Guesser::User {
        (known, vec![by_username])
    } else {
        let by_address = Attempt::login_by_address(&scope, &address, settings);
        let begun = async {
            hashing::refuse_if_full(&CallerClass::Stranger)?;
            begin(&by_address).await
        };
        if let Err(error) = begun.await {
            report_later(&[by_username], AttemptOutcome::GivenUp);
            return Err(error);
        }
        (CallerClass::Stranger, vec![by_username, by_address])
    };
    let guess = Guess { rank, is_new_network: origin.is_new_network };
    let checked = check(&guess).await;
    match &checked {
        Ok(Some(_)) => report_later(&attempts, AttemptOutcome::Success),
        // Report the failure before the response says that the password is wrong. Otherwise the
        // guess might not be counted.
        Ok(None) => report_outcome(&call.env, id, &attempts, AttemptOutcome::Failure).await?,
        Err(_) => report_later(&attempts, AttemptOutcome::GivenUp),
    }
    checked
}

/// Reports the outcome of an attempt to its objects. If an object gets no report, it counts the
/// attempt as failed after [`LEASE_SECONDS`](farhand_domain::limits::throttle::LEASE_SECONDS).
async fn report_outcome(
    env: &Env,
    id: Uuid,
    attempts: &[Attempt],
    outcome: AttemptOutcome,
) -> Result<(), Error> {
    let ends = attempts.iter().map(|attempt| {
        call_throttle(env, ThrottleRequest::End { id, attempt: attempt.clone(), outcome })
    });
    future::try_join_all(ends).await.map(drop)
}

/// Checks the current password of the caller as a counted guess, and audits a wrong one.
///
/// # Errors
/// 429 after too many wrong guesses.
pub async fn is_current_password(
    call: &Call,
    username: &str,
    password: &str,
    stored: &str,
) -> Result<bool, Error> {
    let check = async |guess: &Guess| {
        Ok(hashing::check(call, &guess.rank, password, Some(stored))
            .await?
            .is_correct
            .then_some(()))
    };
    let checked = check_throttled(call, (Guesser::User, username), check).await?;
    if checked.is_none() {
        record_wrong_password(call);
    }
    Ok(checked.is_some())
}

/// The field error for a wrong current password.
pub const WRONG_PASSWORD: &str = "This is not your current password.";

/// Like [`is_current_password`], for callers that report no other field errors.
///
/// # Errors
/// 429 after too many wrong guesses. 400 on `password` for a wrong password.
pub async fn require_current_password(
    call: &Call,
    username: &str,
    password: &str,
    stored: &str,
) -> Result<(), Error> {
    if is_current_password(call, username, password, stored).await? {
        Ok(())
    } else {
        Err(Error::field("password", WRONG_PASSWORD))
    }
}

/// Counts a request for a password reset (contract 4.10).
///
/// # Errors
/// 429 if the client address, its network or the workspace sent too many requests.
pub async fn count_reset(call: &Call) -> Result<(), Error> {
    let scope = counter_scope(call).await?;
    let attempt = Attempt::reset_by_address(&scope, &call.remote_ip(), call.config.throttles);
    call_throttle(&call.env, ThrottleRequest::Count { id: platform::new_id(call.now)?, attempt })
        .await
        .map(drop)
}

/// Counts a wrong operator token (contract 2.1).
///
/// # Errors
/// 429 after too many wrong tokens in the cell.
pub async fn count_operator_guess(call: &Call) -> Result<(), Error> {
    call_throttle(
        &call.env,
        ThrottleRequest::Count { id: platform::new_id(call.now)?, attempt: Attempt::operator() },
    )
    .await
    .map(drop)
}
