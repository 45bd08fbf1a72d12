//! Guesses at passwords and operator tokens: each is counted by the objects of `objects::throttle`
//! before it is checked.

use farhand_domain::error::Error;
use farhand_domain::hashing_gate::Rank;
use farhand_domain::secret::Guessable;
use farhand_domain::throttle::Attempt;
use futures_util::future;
use serde_json::json;
use uuid::Uuid;
use worker::Env;

use super::audit::note_wrong_password;
use super::hashing;
use crate::http::request::Call;
use crate::objects::throttle::{Ask, Outcome, ask};
use crate::platform::{self, log};
use crate::store::workspaces;

/// What counters are kept apart by: the workspace's id, which no other one ever has. Without a
/// workspace nothing is counted.
async fn scope(call: &Call) -> Result<String, Error> {
    let id = workspaces::id_of(&call.env, call.workspace()?, call.now).await?;
    id.map(|id| id.to_string()).ok_or_else(Error::not_found)
}

/// Who guesses a password.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guesser {
    /// A request without a credential.
    Anonymous,
    /// A request with a credential of the user whose password it is. No counter that other users'
    /// guesses fill bounds it, but for the username's.
    User,
}

/// Has a guess checked, unless there were too many lately. `None` from the check: it was wrong, and
/// counts. The check gets the rank that the attempt hashes with.
///
/// # Errors
/// Too many, or those of the check.
pub async fn guess<T>(
    call: &Call,
    (guesser, username): (Guesser, &str),
    check: impl AsyncFnOnce(&Rank) -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    let known = Rank::known(call.workspace()?, username);
    let (scope, address, settings) = (scope(call).await?, call.remote_ip(), call.config.throttles);
    // Whoever types their password where the name belongs does not find it stored.
    let username =
        platform::secret_key(&call.env)?.hash(Guessable::Username, &username.to_lowercase());
    let id = platform::new_id(call.now)?;
    // After the response: whoever comes before that is told waits for it, if it matters.
    let end_later = |attempts: &[Attempt], outcome| {
        let (env, attempts) = (call.env.clone(), attempts.to_vec());
        call.context.wait_until(async move {
            if let Err(error) = end(&env, id, &attempts, outcome).await {
                log::trouble("throttle_not_told", json!({}), &error.detail);
            }
        });
    };
    let begin =
        async |attempt: &Attempt| ask(&call.env, Ask::Begin { id, attempt: attempt.clone() }).await;
    // One after the other: two attempts that each wait for what the other one has would wait for
    // long.
    let by_username = Attempt::login_by_username(&scope, &username, &address, settings);
    let (rank, attempts) = if begin(&by_username).await? {
        (known, vec![by_username.for_known_address()])
    } else if guesser == Guesser::User {
        (known, vec![by_username])
    } else {
        let by_address = Attempt::login_by_address(&scope, &address, settings);
        let begun = async {
            hashing::refuse_if_full(&Rank::Stranger)?;
            begin(&by_address).await
        };
        if let Err(error) = begun.await {
            end_later(&[by_username], Outcome::GivenUp);
            return Err(error);
        }
        (Rank::Stranger, vec![by_username, by_address])
    };
    let checked = check(&rank).await;
    match &checked {
        Ok(Some(_)) => end_later(&attempts, Outcome::Success),
        // A failure that is not counted must not be told either: it would be a free guess.
        Ok(None) => end(&call.env, id, &attempts, Outcome::Failure).await?,
        Err(_) => end_later(&attempts, Outcome::GivenUp),
    }
    checked
}

/// Tells the objects of an attempt how it ended. One that is not told takes it for failed in a
/// minute.
async fn end(env: &Env, id: Uuid, attempts: &[Attempt], outcome: Outcome) -> Result<(), Error> {
    let ends =
        attempts.iter().map(|attempt| ask(env, Ask::End { id, attempt: attempt.clone(), outcome }));
    future::try_join_all(ends).await.map(drop)
}

/// Tells whether a password is the current one of a caller, as a guess that counts.
///
/// # Errors
/// Too many guesses.
pub async fn is_current(
    call: &Call,
    username: &str,
    password: &str,
    stored: &str,
) -> Result<bool, Error> {
    let check = async |rank: &Rank| {
        Ok(hashing::check(call, rank, password, Some(stored)).await?.is_right.then_some(()))
    };
    let checked = guess(call, (Guesser::User, username), check).await?;
    if checked.is_none() {
        note_wrong_password(call);
    }
    Ok(checked.is_some())
}

/// The message for a current password that is not.
pub const WRONG_PASSWORD: &str = "This is not your current password.";

/// The same where nothing else can be wrong.
///
/// # Errors
/// Too many guesses, or a wrong one.
pub async fn prove_password(
    call: &Call,
    username: &str,
    password: &str,
    stored: &str,
) -> Result<(), Error> {
    if is_current(call, username, password, stored).await? {
        Ok(())
    } else {
        Err(Error::field("password", WRONG_PASSWORD))
    }
}

/// Counts a request for a password reset, if the client's address may make one.
///
/// # Errors
/// Too many.
pub async fn count_reset(call: &Call) -> Result<(), Error> {
    let attempt =
        Attempt::reset_by_address(&scope(call).await?, &call.remote_ip(), call.config.throttles);
    ask(&call.env, Ask::Count { id: platform::new_id(call.now)?, attempt }).await.map(drop)
}

/// Counts a wrong operator token.
///
/// # Errors
/// Too many in the cell.
pub async fn count_operator(call: &Call) -> Result<(), Error> {
    ask(&call.env, Ask::Count { id: platform::new_id(call.now)?, attempt: Attempt::operator() })
        .await
        .map(drop)
}
