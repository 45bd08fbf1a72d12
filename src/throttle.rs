//! The Durable Objects that count guesses (contract 4), and the calls into them. `farhand_domain::throttle` has the rules.
//!
//! There is a fixed number of objects; each attempt belongs to one by the hash of what it is counted by. An object stores
//! counters, which expire, so that guessing cannot fill it; the attempts under way are in its memory, where losing them
//! costs nothing.

use std::cell::RefCell;
use std::time::Duration;

use farhand_domain::error::Error;
use farhand_domain::password::{self, Checked};
use farhand_domain::secret::{Purpose, Secret};
use farhand_domain::throttle::{Attempt, Counter, LEASE_SECONDS, UnderWay, Verdict, shard};
use farhand_domain::time::Timestamp;
use futures_channel::oneshot;
use futures_util::future;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;
use worker::{Delay, DurableObject, Env, Request, Response, SqlStorage, State, durable_object};

use crate::audit::note_wrong_password;
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

async fn ask(env: &Env, question: Ask) -> Result<(), Error> {
    let name = format!("throttle-{}", shard(question.home(), SHARDS));
    match objects::ask(env, platform::THROTTLE, &name, &question).await? {
        Verdict::Go => Ok(()),
        Verdict::Refused { retry_after } => Err(Error::throttled(retry_after)),
        Verdict::Wait => Err(Error::throttled(1)),
    }
}

/// What counters are kept apart by: the workspace's id, which no other one ever has. Without a workspace nothing is counted.
async fn scope(call: &Call) -> Result<String, Error> {
    let id = workspaces::id_of(&call.env, call.workspace()?, call.now).await?;
    id.map(|id| id.to_string()).ok_or_else(Error::not_found)
}

/// Has a guess checked, unless there were too many lately. `None` from the check: it was wrong, and counts.
///
/// # Errors
/// Too many, or those of the check.
pub async fn guess<T>(
    call: &Call,
    username: &str,
    check: impl AsyncFnOnce() -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    let (scope, address, windows) = (scope(call).await?, call.remote_ip(), call.config.windows);
    // Whoever types their password where the name belongs does not find it stored.
    let username = platform::pepper(&call.env)?.hash(Purpose::GuessedName, &Secret::new(username.to_lowercase()));
    let attempts = [
        Attempt::login_by_username(&scope, &username, &address, windows),
        Attempt::login_by_address(&scope, &address, windows),
    ];
    let id = platform::new_id(call.now)?;
    // After the response: whoever comes before that is told waits for it, if it matters.
    let end_later = |begun: usize, outcome| {
        let (env, attempts) = (call.env.clone(), attempts[..begun].to_vec());
        call.context.wait_until(async move {
            if let Err(error) = end(&env, id, &attempts, outcome).await {
                log::trouble("throttle_not_told", json!({}), &error.detail);
            }
        });
    };
    // One after the other: two attempts that each wait for what the other one has would wait for long.
    for (begun, attempt) in attempts.iter().enumerate() {
        if let Err(error) = ask(&call.env, Ask::Begin { id, attempt: attempt.clone() }).await {
            end_later(begun, Outcome::GivenUp);
            return Err(error);
        }
    }
    let checked = check().await;
    match &checked {
        Ok(Some(_)) => end_later(attempts.len(), Outcome::Success),
        // A failure that is not counted must not be told either: it would be a free guess.
        Ok(None) => end(&call.env, id, &attempts, Outcome::Failure).await?,
        Err(_) => end_later(attempts.len(), Outcome::GivenUp),
    }
    checked
}

/// Tells the objects of an attempt how it ended. One that is not told takes it for failed in a minute.
async fn end(env: &Env, id: Uuid, attempts: &[Attempt], outcome: Outcome) -> Result<(), Error> {
    let ends = attempts.iter().map(|attempt| ask(env, Ask::End { id, attempt: attempt.clone(), outcome }));
    future::try_join_all(ends).await.map(drop)
}

/// Checks a password, and writes the work that it took to the log: it must be the same for those who may not log in.
pub fn check(call: &Call, password: &str, stored: Option<&str>) -> Checked {
    let checked = password::check(password, stored, call.config.pbkdf2_rounds);
    log::event("password_checked", json!({"request_id": call.id, "hash_rounds": checked.rounds}));
    checked
}

/// Tells whether a password is the current one of a caller, as a guess that counts.
///
/// # Errors
/// Too many guesses.
pub async fn is_current(call: &Call, username: &str, password: &str, stored: &str) -> Result<bool, Error> {
    let checked =
        guess(call, username, async || Ok(check(call, password, Some(stored)).is_right.then_some(()))).await?;
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
    let attempt = Attempt::reset_by_address(&scope(call).await?, &call.remote_ip(), call.config.windows);
    ask(&call.env, Ask::Count { id: platform::new_id(call.now)?, attempt }).await
}

const SCHEMA: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS counters (key TEXT PRIMARY KEY, count INTEGER NOT NULL, ends_at TEXT NOT NULL) WITHOUT ROWID",
    // Serves: clearing away what expired.
    "CREATE INDEX IF NOT EXISTS counters_by_end ON counters (ends_at)",
];

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
        self.clear(platform::now())?;
        let left = self.sql().exec("SELECT 1 AS one FROM counters LIMIT 1", None)?.to_array::<serde_json::Value>()?;
        if !left.is_empty() {
            self.state.storage().set_alarm(CLEARED_AFTER).await?;
        }
        Response::empty()
    }
}

impl Throttle {
    fn sql(&self) -> SqlStorage {
        self.state.storage().sql()
    }

    async fn answer(&self, question: Ask) -> worker::Result<Verdict> {
        for statement in SCHEMA {
            self.sql().exec(statement, None)?;
        }
        match question {
            Ask::Begin { id, attempt } => self.begin(id, &attempt).await,
            Ask::End { id, attempt, outcome } => {
                self.end(id, &attempt, outcome).await?;
                Ok(Verdict::Go)
            }
            Ask::Count { id, attempt } => {
                let verdict = self.try_begin(id, &attempt)?;
                if verdict == Verdict::Go {
                    self.end(id, &attempt, Outcome::Failure).await?;
                }
                Ok(verdict)
            }
        }
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
            }
            Outcome::GivenUp => {}
        }
        self.under_way.borrow_mut().end(id);
        for waiting in self.waiting.take() {
            // One that looked again by itself does not listen any more.
            waiting.send(()).ok();
        }
        let storage = self.state.storage();
        if outcome == Outcome::Failure && storage.get_alarm().await?.is_none() {
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
