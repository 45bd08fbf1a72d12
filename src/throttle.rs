//! The Durable Objects that count guesses (contract 4), and the calls into them. `farhand_domain::throttle` has the rules.
//!
//! There is a fixed number of objects; each attempt belongs to one by the hash of what it is counted by. An object stores
//! counters, which expire, so that guessing cannot fill it; the attempts under way are in its memory, where losing them
//! costs nothing.

use std::cell::RefCell;
use std::time::Duration;

use farhand_domain::error::Error;
use farhand_domain::hashing_gate::Rank;
use farhand_domain::secret::Guessable;
use farhand_domain::throttle::{
    Attempt, Counter, KNOWN_DAYS, KNOWN_STORED_EVERY, LEASE_SECONDS, MAX_KNOWN_ADDRESSES, UnderWay, Verdict, shard,
};
use farhand_domain::time::Timestamp;
use futures_channel::oneshot;
use futures_util::future;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;
use worker::{Delay, DurableObject, Env, Request, Response, SqlStorage, State, durable_object};

use crate::audit::note_wrong_password;
use crate::hashing;
use crate::log;
use crate::objects;
use crate::platform::{self, internal};
use crate::request::Call;
use crate::store::workspaces;

/// How many objects share the work. Another number forgets what was counted, and nothing else.
const SHARDS: u32 = 64;
/// How long an attempt that waits sleeps at most before it looks again: one under way may never end.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long an attempt waits at most, in seconds: not so long that the lease it has from the other object ends.
const LONGEST_WAIT: i64 = LEASE_SECONDS / 3;
/// When expired counters are cleared away, if nobody comes by before.
const CLEARED_AFTER: Duration = Duration::from_secs(3_700);

/// When known addresses that lapsed are deleted.
const KNOWN_CLEARED_AFTER: Duration = Duration::from_secs(24 * 3_600);

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Outcome {
    /// It was wrong, and counts.
    Failure,
    /// It was right.
    Success,
    /// Whether it was right was not found out.
    GivenUp,
}

/// What an object can be asked.
#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// May an attempt begin? The answer comes when that is known.
    Begin { id: Uuid, attempt: Attempt },
    /// It has ended.
    End { id: Uuid, attempt: Attempt, outcome: Outcome },
    /// Count something that happens at once, if it may happen.
    Count { id: Uuid, attempt: Attempt },
}

impl Ask {
    fn home(&self) -> &str {
        let (Self::Begin { attempt, .. } | Self::End { attempt, .. } | Self::Count { attempt, .. }) = self;
        &attempt.home
    }
}

/// What an object answers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Answer {
    verdict: Verdict,
    /// Whether the user logged in from the attempt's address lately.
    is_known: bool,
}

impl From<Verdict> for Answer {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, is_known: false }
    }
}

/// Asks the attempt's object. If the attempt may go on: whether its address is known.
async fn ask(env: &Env, question: Ask) -> Result<bool, Error> {
    let name = format!("throttle-{}", shard(question.home(), SHARDS));
    let answer: Answer = objects::ask(env, platform::THROTTLE, &name, &question).await?;
    match answer.verdict {
        Verdict::Go => Ok(answer.is_known),
        Verdict::Refused { retry_after } => Err(Error::throttled(retry_after)),
        Verdict::Wait => Err(Error::throttled(1)),
    }
}

/// What counters are kept apart by: the workspace's id, which no other one ever has. Without a workspace nothing is counted.
async fn scope(call: &Call) -> Result<String, Error> {
    let id = workspaces::id_of(&call.env, call.workspace()?, call.now).await?;
    id.map(|id| id.to_string()).ok_or_else(Error::not_found)
}

/// Who guesses a password.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guesser {
    /// A request without a credential.
    Anonymous,
    /// A request with a credential of the user whose password it is. No counter that other users' guesses fill bounds it, but for
    /// the username's.
    User,
}

/// Has a guess checked, unless there were too many lately. `None` from the check: it was wrong, and counts. The check gets the
/// rank that the attempt hashes with.
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
    let username = platform::secret_key(&call.env)?.hash(Guessable::Username, &username.to_lowercase());
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
    let begin = async |attempt: &Attempt| ask(&call.env, Ask::Begin { id, attempt: attempt.clone() }).await;
    // One after the other: two attempts that each wait for what the other one has would wait for long.
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

/// Tells the objects of an attempt how it ended. One that is not told takes it for failed in a minute.
async fn end(env: &Env, id: Uuid, attempts: &[Attempt], outcome: Outcome) -> Result<(), Error> {
    let ends = attempts.iter().map(|attempt| ask(env, Ask::End { id, attempt: attempt.clone(), outcome }));
    future::try_join_all(ends).await.map(drop)
}

/// Tells whether a password is the current one of a caller, as a guess that counts.
///
/// # Errors
/// Too many guesses.
pub async fn is_current(call: &Call, username: &str, password: &str, stored: &str) -> Result<bool, Error> {
    let check =
        async |rank: &Rank| Ok(hashing::check(call, rank, password, Some(stored)).await?.is_right.then_some(()));
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
pub async fn prove_password(call: &Call, username: &str, password: &str, stored: &str) -> Result<(), Error> {
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
    let attempt = Attempt::reset_by_address(&scope(call).await?, &call.remote_ip(), call.config.throttles);
    ask(&call.env, Ask::Count { id: platform::new_id(call.now)?, attempt }).await.map(drop)
}

/// Counts a wrong operator token.
///
/// # Errors
/// Too many in the cell.
pub async fn count_operator(call: &Call) -> Result<(), Error> {
    ask(&call.env, Ask::Count { id: platform::new_id(call.now)?, attempt: Attempt::operator() }).await.map(drop)
}

const SCHEMA: [&str; 4] = [
    "CREATE TABLE IF NOT EXISTS counters (key TEXT PRIMARY KEY, count INTEGER NOT NULL, ends_at TEXT NOT NULL) WITHOUT ROWID",
    // Serves: clearing away what expired.
    "CREATE INDEX IF NOT EXISTS counters_by_end ON counters (ends_at)",
    // The addresses that users logged in from lately, as hashes: `farhand_domain::throttle::Origin`.
    "CREATE TABLE IF NOT EXISTS known_addresses (
        user TEXT, address TEXT, logged_in_at TEXT NOT NULL, PRIMARY KEY (user, address)) WITHOUT ROWID",
    // Serves: deleting those that lapsed.
    "CREATE INDEX IF NOT EXISTS known_addresses_by_time ON known_addresses (logged_in_at)",
];

/// The time after which a login makes its address known.
fn known_since(now: Timestamp) -> String {
    now.plus_seconds(-KNOWN_DAYS * 24 * 3_600).to_string()
}

/// The object.
#[durable_object]
pub struct Throttle {
    state: State,
    under_way: RefCell<UnderWay>,
    /// Those who wait for an attempt to end.
    waiting: RefCell<Vec<oneshot::Sender<()>>>,
}

impl DurableObject for Throttle {
    fn new(state: State, _: Env) -> Self {
        Self { state, under_way: RefCell::default(), waiting: RefCell::default() }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        objects::answer(&mut request, async |question: Ask| self.answer(question).await.map_err(internal)).await
    }

    async fn alarm(&self) -> worker::Result<Response> {
        let now = platform::now();
        self.clear(now)?;
        self.sql().exec("DELETE FROM known_addresses WHERE logged_in_at <= ?", vec![known_since(now).into()])?;
        for (table, after) in [("counters", CLEARED_AFTER), ("known_addresses", KNOWN_CLEARED_AFTER)] {
            let one = format!("SELECT 1 AS one FROM {table} LIMIT 1");
            if !self.sql().exec(&one, None)?.to_array::<serde_json::Value>()?.is_empty() {
                self.state.storage().set_alarm(after).await?;
                break;
            }
        }
        Response::empty()
    }
}

impl Throttle {
    fn sql(&self) -> SqlStorage {
        self.state.storage().sql()
    }

    async fn answer(&self, question: Ask) -> worker::Result<Answer> {
        for statement in SCHEMA {
            self.sql().exec(statement, None)?;
        }
        match question {
            Ask::Begin { id, attempt } => {
                let is_known = self.known_at(&attempt, platform::now())?.is_some();
                let attempt = if is_known { attempt.for_known_address() } else { attempt };
                Ok(Answer { verdict: self.begin(id, &attempt).await?, is_known })
            }
            Ask::End { id, attempt, outcome } => {
                self.end(id, &attempt, outcome).await?;
                Ok(Verdict::Go.into())
            }
            Ask::Count { id, attempt } => {
                let verdict = self.try_begin(id, &attempt)?;
                if verdict == Verdict::Go {
                    self.end(id, &attempt, Outcome::Failure).await?;
                }
                Ok(verdict.into())
            }
        }
    }

    /// When the user last logged in from an attempt's address, if the address is known.
    fn known_at(&self, attempt: &Attempt, now: Timestamp) -> worker::Result<Option<Timestamp>> {
        #[derive(Deserialize)]
        struct Known {
            logged_in_at: Timestamp,
        }
        let Some(origin) = &attempt.origin else { return Ok(None) };
        let sql = "SELECT logged_in_at FROM known_addresses WHERE user = ? AND address = ? AND logged_in_at > ?";
        let bound = vec![origin.user.as_str().into(), origin.address.as_str().into(), known_since(now).into()];
        Ok(self.sql().exec(sql, bound)?.to_array::<Known>()?.pop().map(|known| known.logged_in_at))
    }

    /// Stores that a user logged in from an address, at most once a day. The user's newest addresses are kept.
    fn note_known(&self, attempt: &Attempt, now: Timestamp) -> worker::Result<()> {
        let Some(origin) = &attempt.origin else { return Ok(()) };
        let is_fresh = |at: Timestamp| at.plus_seconds(KNOWN_STORED_EVERY) > now;
        if self.known_at(attempt, now)?.is_some_and(is_fresh) {
            return Ok(());
        }
        self.sql().exec(
            "INSERT OR REPLACE INTO known_addresses (user, address, logged_in_at) VALUES (?, ?, ?)",
            vec![origin.user.as_str().into(), origin.address.as_str().into(), now.to_string().into()],
        )?;
        self.sql().exec(
            "DELETE FROM known_addresses WHERE user = ?1 AND address NOT IN (
                SELECT address FROM known_addresses WHERE user = ?1 ORDER BY logged_in_at DESC LIMIT ?2 + 0)",
            vec![origin.user.as_str().into(), i64::from(MAX_KNOWN_ADDRESSES).into()],
        )?;
        Ok(())
    }

    fn try_begin(&self, id: Uuid, attempt: &Attempt) -> worker::Result<Verdict> {
        let now = platform::now();
        for lapsed in self.under_way.borrow_mut().take_lapsed(now) {
            self.count(&lapsed, now)?;
        }
        let counters = self.counters(attempt, now)?;
        Ok(self.under_way.borrow_mut().begin(id, attempt, &counters, now))
    }

    /// Lets an attempt begin, or refuses it; where only those under way are too many, when one of them has ended.
    async fn begin(&self, id: Uuid, attempt: &Attempt) -> worker::Result<Verdict> {
        let until = platform::now().plus_seconds(LONGEST_WAIT);
        loop {
            let verdict = self.try_begin(id, attempt)?;
            if verdict != Verdict::Wait || platform::now() >= until {
                return Ok(verdict);
            }
            let (ended, end) = oneshot::channel();
            self.waiting.borrow_mut().push(ended);
            future::select(end, Delay::from(LOOK_AGAIN)).await;
        }
    }

    async fn end(&self, id: Uuid, attempt: &Attempt, outcome: Outcome) -> worker::Result<()> {
        let now = platform::now();
        match outcome {
            Outcome::Failure => self.count(attempt, now)?,
            Outcome::Success => {
                for key in attempt.after_success() {
                    self.sql().exec("DELETE FROM counters WHERE key = ?", vec![key.into()])?;
                }
                self.note_known(attempt, now)?;
            }
            Outcome::GivenUp => {}
        }
        self.under_way.borrow_mut().end(id);
        for waiting in self.waiting.take() {
            // One that looked again by itself does not listen any more.
            waiting.send(()).ok();
        }
        let storage = self.state.storage();
        if outcome != Outcome::GivenUp && storage.get_alarm().await?.is_none() {
            storage.set_alarm(CLEARED_AFTER).await?;
        }
        Ok(())
    }

    /// Counts a failure.
    fn count(&self, attempt: &Attempt, now: Timestamp) -> worker::Result<()> {
        let counters = self.counters(attempt, now)?;
        for Counter { key, count, ends_at } in attempt.after_failure(&counters, now) {
            self.sql().exec(
                "INSERT OR REPLACE INTO counters (key, count, ends_at) VALUES (?, ?, ?)",
                vec![key.into(), i64::from(count).into(), ends_at.to_string().into()],
            )?;
        }
        Ok(())
    }

    /// The counters of an attempt that have not expired.
    fn counters(&self, attempt: &Attempt, now: Timestamp) -> worker::Result<Vec<Counter>> {
        self.clear(now)?;
        let mut found = Vec::new();
        for key in attempt.keys() {
            let sql = "SELECT key, count, ends_at FROM counters WHERE key = ?";
            found.extend(self.sql().exec(sql, vec![key.into()])?.to_array::<Counter>()?);
        }
        Ok(found)
    }

    fn clear(&self, now: Timestamp) -> worker::Result<()> {
        self.sql().exec("DELETE FROM counters WHERE ends_at <= ?", vec![now.to_string().into()])?;
        Ok(())
    }
}
