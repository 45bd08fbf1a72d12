//! The Durable Objects that count guesses (contract 4.5). `farhand_domain::throttle` has the rules.
//!
//! There is a fixed number of objects; each attempt belongs to one by the hash of what it is
//! counted by. An object stores counters, which expire, so that guessing cannot fill it; the
//! attempts under way are in its memory, where losing them costs nothing.

use std::cell::RefCell;
use std::time::Duration;

use farhand_domain::error::Error;
use farhand_domain::throttle::{
    Attempt, Counter, KNOWN_DAYS, KNOWN_STORED_EVERY, LEASE_SECONDS, MAX_KNOWN_ADDRESSES, UnderWay,
    Verdict, shard,
};
use farhand_domain::time::Timestamp;
use futures_channel::oneshot;
use futures_util::future;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use worker::{Delay, DurableObject, Env, Request, Response, SqlStorage, State, durable_object};

use crate::objects::{self, alarm::Alarm};
use crate::platform::{self, internal};

/// How many objects share the work. Another number forgets what was counted, and nothing else.
const SHARDS: u32 = 64;
/// How long an attempt that waits sleeps at most before it looks again: one under way may never
/// end.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long an attempt waits at most, in seconds: not so long that the lease it has from the other
/// object ends.
const LONGEST_WAIT: i64 = LEASE_SECONDS / 3;
/// When expired counters are deleted, in seconds, unless an attempt is counted before.
const CLEARED_AFTER: i64 = 3_700;
/// When known addresses that lapsed are deleted, in seconds.
const KNOWN_CLEARED_AFTER: i64 = 24 * 3_600;

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// It was wrong, and counts.
    Failure,
    /// It was right.
    Success,
    /// Whether it was right was not found out.
    GivenUp,
}

/// What an object can be asked.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// May an attempt begin? The answer comes when that is known.
    Begin { id: Uuid, attempt: Attempt },
    /// It has ended.
    End { id: Uuid, attempt: Attempt, outcome: Outcome },
    /// Count something that happens at once, if it may happen.
    Count { id: Uuid, attempt: Attempt },
}

impl Ask {
    fn home(&self) -> &str {
        let (Self::Begin { attempt, .. } | Self::End { attempt, .. } | Self::Count { attempt, .. }) =
            self;
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
pub async fn ask(env: &Env, question: Ask) -> Result<bool, Error> {
    let name = format!("throttle-{}", shard(question.home(), SHARDS));
    let answer: Answer = objects::call(env, platform::THROTTLE, &name, &question).await?;
    match answer.verdict {
        Verdict::Go => Ok(answer.is_known),
        Verdict::Refused { retry_after } => Err(Error::throttled(retry_after)),
        Verdict::Wait => Err(Error::throttled(1)),
    }
}

const SCHEMA: [&str; 4] = [
    "CREATE TABLE IF NOT EXISTS counters (key TEXT PRIMARY KEY, count INTEGER NOT NULL, ends_at TEXT NOT NULL) WITHOUT ROWID",
    // Serves: clearing away what expired.
    "CREATE INDEX IF NOT EXISTS counters_by_end ON counters (ends_at)",
    // The addresses that users logged in from lately, as hashes:
    // `farhand_domain::throttle::Origin`.
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
    alarm: Alarm,
    under_way: RefCell<UnderWay>,
    /// Those who wait for an attempt to end.
    waiting: RefCell<Vec<oneshot::Sender<()>>>,
}

impl DurableObject for Throttle {
    fn new(state: State, _: Env) -> Self {
        Self {
            state,
            alarm: Alarm::default(),
            under_way: RefCell::default(),
            waiting: RefCell::default(),
        }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        objects::respond(&mut request, async |question: Ask| {
            self.answer(question).await.map_err(internal)
        })
        .await
    }

    async fn alarm(&self) -> worker::Result<Response> {
        self.alarm.went_off();
        let now = platform::now();
        self.clear(now)?;
        self.sql().exec(
            "DELETE FROM known_addresses WHERE logged_in_at <= ?",
            vec![known_since(now).into()],
        )?;
        for (table, after) in
            [("counters", CLEARED_AFTER), ("known_addresses", KNOWN_CLEARED_AFTER)]
        {
            let one = format!("SELECT 1 AS one FROM {table} LIMIT 1");
            if !self.sql().exec(&one, None)?.to_array::<serde_json::Value>()?.is_empty() {
                self.alarm.set_by(&self.state.storage(), now.plus_seconds(after), now).await?;
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
        let bound = vec![
            origin.user.as_str().into(),
            origin.address.as_str().into(),
            known_since(now).into(),
        ];
        Ok(self.sql().exec(sql, bound)?.to_array::<Known>()?.pop().map(|known| known.logged_in_at))
    }

    /// Stores that a user logged in from an address, at most once a day. The user's newest
    /// addresses are kept.
    fn note_known(&self, attempt: &Attempt, now: Timestamp) -> worker::Result<()> {
        let Some(origin) = &attempt.origin else { return Ok(()) };
        let is_fresh = |at: Timestamp| at.plus_seconds(KNOWN_STORED_EVERY) > now;
        if self.known_at(attempt, now)?.is_some_and(is_fresh) {
            return Ok(());
        }
        self.sql().exec(
            "INSERT OR REPLACE INTO known_addresses (user, address, logged_in_at) VALUES (?, ?, ?)",
            vec![
                origin.user.as_str().into(),
                origin.address.as_str().into(),
                now.to_string().into(),
            ],
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

    /// Lets an attempt begin, or refuses it; where only those under way are too many, when one of
    /// them has ended.
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
        if outcome == Outcome::GivenUp {
            return Ok(());
        }
        self.alarm.set_by(&self.state.storage(), now.plus_seconds(CLEARED_AFTER), now).await
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
