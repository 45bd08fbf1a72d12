//! The Durable Objects that throttle logins, password resets and operator tokens (contract 2.1, 4.5
//! and 4.10). `farhand_domain::limits::throttle` has the rules.
//!
//! The number of objects is fixed. A hash of the attempt's `home` selects its object. The object
//! stores counters that expire, so that attempts cannot fill its storage. Attempts in progress are
//! only in memory, so a restart of the object loses them.
//!
//! The objects also hold the slots of live streams (contract 11.4), chosen by a hash of the user.

use std::cell::RefCell;
use std::time::Duration;

use farhand_domain::error::Error;
use farhand_domain::limits::stream_slots::{self, StreamSlots};
use farhand_domain::limits::throttle::{
    Attempt, AttemptVerdict, Counter, KNOWN_ADDRESS_UPDATE_INTERVAL, KNOWN_DAYS, KnownAddress,
    LEASE_SECONDS, MAX_KNOWN_ADDRESSES, PendingAttempts, shard,
};
use farhand_domain::time::Timestamp;
use farhand_sql::object::throttle as tables;
use farhand_sql::statement::Statement;
use futures_channel::oneshot;
use futures_util::future;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use worker::{Delay, DurableObject, Env, Request, Response, SqlStorage, State, durable_object};

use crate::objects::{self, alarm::Alarm, sqlite};
use crate::platform::{self, internal};

/// The number of objects. Changing it moves attempts to other objects, which resets their counters.
const SHARDS: u32 = 64;
/// How long a waiting attempt sleeps before it checks again: the attempt in progress may never
/// report its end.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The maximum wait of an attempt, in seconds. It is shorter than the lease, because the attempt
/// may hold a lease of another object while it waits here.
const MAX_WAIT_SECONDS: i64 = LEASE_SECONDS / 3;
/// The delay of the alarm that deletes expired counters, in seconds.
const PURGE_COUNTERS_AFTER_SECONDS: i64 = 3_700;
/// The delay of the alarm that deletes expired known addresses, in seconds.
const PURGE_ADDRESSES_AFTER_SECONDS: i64 = 24 * 3_600;

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AttemptOutcome {
    /// The guess was wrong. It counts.
    Failure,
    /// The guess was right.
    Success,
    /// The guess was not checked. It does not count.
    GivenUp,
}

/// A request message to an object.
#[derive(Debug, Serialize, Deserialize)]
pub enum ThrottleRequest {
    /// Begin an attempt, if it is allowed. The response may wait until other attempts end.
    Begin { id: Uuid, attempt: Attempt },
    /// End an attempt.
    End { id: Uuid, attempt: Attempt, outcome: AttemptOutcome },
    /// Begin an attempt, if it is allowed, and immediately end it as a failure.
    Count { id: Uuid, attempt: Attempt },
    /// Change the slot of a live stream of a user.
    Stream { id: Uuid, user: String, change: SlotChange },
}

/// A change of the slot of a live stream.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum SlotChange {
    /// Take a slot, if the user has fewer than `max` streams.
    Open { max: i64 },
    /// Renew the lease.
    Renew,
    /// Free the slot.
    Close,
}

impl ThrottleRequest {
    fn home(&self) -> &str {
        match self {
            Self::Begin { attempt, .. }
            | Self::End { attempt, .. }
            | Self::Count { attempt, .. } => &attempt.home,
            Self::Stream { user, .. } => user,
        }
    }
}

/// The response message of an object.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct ThrottleResponse {
    verdict: AttemptVerdict,
    /// Whether the user logged in from the attempt's address within the last [`KNOWN_DAYS`].
    is_known: bool,
    /// Whether the user did not log in from the attempt's network within the last [`KNOWN_DAYS`].
    #[serde(default)]
    is_new_network: bool,
}

impl From<AttemptVerdict> for ThrottleResponse {
    fn from(verdict: AttemptVerdict) -> Self {
        Self { verdict, is_known: false, is_new_network: false }
    }
}

/// What an object knows about the client's address of an attempt that may begin.
#[derive(Clone, Copy, Debug)]
pub struct AttemptOrigin {
    /// Whether the user logged in from the address within the last [`KNOWN_DAYS`].
    pub is_known: bool,
    /// Whether the user did not log in from its network within the last [`KNOWN_DAYS`].
    pub is_new_network: bool,
}

/// Calls the object of an attempt.
///
/// # Errors
/// 429 if the attempt is refused, or if it still has to wait. Other errors if the call fails.
pub async fn call_throttle(env: &Env, message: ThrottleRequest) -> Result<AttemptOrigin, Error> {
    let answer = call(env, &message).await?;
    match answer.verdict {
        AttemptVerdict::Go => {
            Ok(AttemptOrigin { is_known: answer.is_known, is_new_network: answer.is_new_network })
        }
        AttemptVerdict::Refused { retry_after } => Err(Error::throttled(retry_after)),
        AttemptVerdict::Wait => Err(Error::throttled(1)),
    }
}

/// Changes the slot of a live stream.
///
/// # Errors
/// 429 `QUOTA_EXCEEDED` if the user has too many streams. Other errors if the call fails.
pub async fn change_slot(env: &Env, user: &str, id: Uuid, change: SlotChange) -> Result<(), Error> {
    let message = ThrottleRequest::Stream { id, user: user.to_owned(), change };
    match (call(env, &message).await?.verdict, change) {
        (AttemptVerdict::Refused { retry_after }, SlotChange::Open { max }) => {
            let detail = format!("You have {max} open streams. Close one first.");
            Err(Error::quota_exceeded(detail, retry_after))
        }
        _ => Ok(()),
    }
}

/// Sends a message to its object.
async fn call(env: &Env, message: &ThrottleRequest) -> Result<ThrottleResponse, Error> {
    let name = format!("throttle-{}", shard(message.home(), SHARDS));
    objects::call(env, platform::THROTTLE, &name, message).await
}

/// An address is known if its user logged in from it after the returned time.
fn known_since(now: Timestamp) -> Timestamp {
    now.plus_seconds(-KNOWN_DAYS * 24 * 3_600)
}

#[durable_object]
pub struct Throttle {
    state: State,
    alarm: Alarm,
    under_way: RefCell<PendingAttempts>,
    /// Notifies the attempts that wait until another attempt ends.
    waiting: RefCell<Vec<oneshot::Sender<()>>>,
    streams: RefCell<StreamSlots>,
}

impl DurableObject for Throttle {
    fn new(state: State, _: Env) -> Self {
        Self {
            state,
            alarm: Alarm::default(),
            under_way: RefCell::default(),
            waiting: RefCell::default(),
            streams: RefCell::default(),
        }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        objects::respond(&mut request, async |message: ThrottleRequest| {
            self.handle(message).await.map_err(internal)
        })
        .await
    }

    async fn alarm(&self) -> worker::Result<Response> {
        self.alarm.went_off();
        let now = platform::now();
        self.purge_counters(now)?;
        self.exec(tables::delete_expired_addresses(known_since(now)))?;
        for (any_row, after) in [
            (tables::any_counter(), PURGE_COUNTERS_AFTER_SECONDS),
            (tables::any_address(), PURGE_ADDRESSES_AFTER_SECONDS),
        ] {
            if sqlite::has_rows(&self.sql(), any_row)? {
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

    /// Runs a statement that returns no rows.
    fn exec(&self, statement: Statement) -> worker::Result<()> {
        sqlite::exec(&self.sql(), statement).map(drop)
    }

    async fn handle(&self, message: ThrottleRequest) -> worker::Result<ThrottleResponse> {
        sqlite::exec_all(&self.sql(), tables::schema())?;
        match message {
            ThrottleRequest::Begin { id, attempt } => {
                let now = platform::now();
                let is_known = self.last_login_from(attempt.origin.as_ref(), now)?.is_some();
                let is_new_network = attempt.network.is_some()
                    && self.last_login_from(attempt.network.as_ref(), now)?.is_none();
                let attempt = if is_known { attempt.for_known_address() } else { attempt };
                let verdict = self.begin(id, &attempt).await?;
                Ok(ThrottleResponse { verdict, is_known, is_new_network })
            }
            ThrottleRequest::End { id, attempt, outcome } => {
                self.end(id, &attempt, outcome).await?;
                Ok(AttemptVerdict::Go.into())
            }
            ThrottleRequest::Count { id, attempt } => {
                let verdict = self.try_begin(id, &attempt)?;
                if verdict == AttemptVerdict::Go {
                    self.end(id, &attempt, AttemptOutcome::Failure).await?;
                }
                Ok(verdict.into())
            }
            ThrottleRequest::Stream { id, user, change } => {
                Ok(self.change_slot(&user, id, change).into())
            }
        }
    }

    fn change_slot(&self, user: &str, id: Uuid, change: SlotChange) -> AttemptVerdict {
        let (mut streams, now) = (self.streams.borrow_mut(), platform::now());
        match change {
            SlotChange::Open { max } if !streams.open(user, id, max, now) => {
                let retry_after = stream_slots::LEASE_SECONDS.unsigned_abs();
                return AttemptVerdict::Refused { retry_after };
            }
            SlotChange::Open { .. } => {}
            SlotChange::Renew => streams.renew(user, id, now),
            SlotChange::Close => streams.close(user, id),
        }
        AttemptVerdict::Go
    }

    /// The stored time of the last login from an attempt's address or network, if it is known.
    fn last_login_from(
        &self,
        origin: Option<&KnownAddress>,
        now: Timestamp,
    ) -> worker::Result<Option<Timestamp>> {
        #[derive(Deserialize)]
        struct LastLogin {
            logged_in_at: Timestamp,
        }
        let Some(origin) = origin else { return Ok(None) };
        let last_login = tables::last_login(origin, known_since(now));
        let mut rows: Vec<LastLogin> = sqlite::rows(&self.sql(), last_login)?;
        Ok(rows.pop().map(|known| known.logged_in_at))
    }

    /// Stores that a user logged in from the attempt's address or network, unless this was stored
    /// within the last day. Deletes the user's oldest ones beyond [`MAX_KNOWN_ADDRESSES`].
    fn store_known_address(&self, origin: &KnownAddress, now: Timestamp) -> worker::Result<()> {
        let is_fresh = |at: Timestamp| at.plus_seconds(KNOWN_ADDRESS_UPDATE_INTERVAL) > now;
        if self.last_login_from(Some(origin), now)?.is_some_and(is_fresh) {
            return Ok(());
        }
        self.exec(tables::store_login(origin, now))?;
        self.exec(tables::delete_surplus_addresses(&origin.user, MAX_KNOWN_ADDRESSES))
    }

    /// Begins an attempt, if it is allowed now. First counts attempts whose lease has expired as
    /// failures.
    fn try_begin(&self, id: Uuid, attempt: &Attempt) -> worker::Result<AttemptVerdict> {
        let now = platform::now();
        for expired in self.under_way.borrow_mut().take_lapsed(now) {
            self.count_failure(&expired, now)?;
        }
        let counters = self.counters(attempt, now)?;
        Ok(self.under_way.borrow_mut().begin(id, attempt, &counters, now))
    }

    /// Like [`Self::try_begin`], but while only attempts in progress block the attempt, waits for
    /// their end, at most [`MAX_WAIT_SECONDS`].
    async fn begin(&self, id: Uuid, attempt: &Attempt) -> worker::Result<AttemptVerdict> {
        let until = platform::now().plus_seconds(MAX_WAIT_SECONDS);
        loop {
            let verdict = self.try_begin(id, attempt)?;
            if verdict != AttemptVerdict::Wait || platform::now() >= until {
                return Ok(verdict);
            }
            let (wake, woken) = oneshot::channel();
            self.waiting.borrow_mut().push(wake);
            future::select(woken, Delay::from(RECHECK_INTERVAL)).await;
        }
    }

    async fn end(
        &self,
        id: Uuid,
        attempt: &Attempt,
        outcome: AttemptOutcome,
    ) -> worker::Result<()> {
        let now = platform::now();
        match outcome {
            AttemptOutcome::Failure => self.count_failure(attempt, now)?,
            AttemptOutcome::Success => {
                let counted = attempt.after_success(&self.counters(attempt, now)?, now);
                for key in attempt.cleared_by_success() {
                    self.exec(tables::delete_counter(key))?;
                }
                self.store_counters(counted)?;
                for origin in attempt.origin.iter().chain(&attempt.network) {
                    self.store_known_address(origin, now)?;
                }
            }
            AttemptOutcome::GivenUp => {}
        }
        self.under_way.borrow_mut().end(id);
        for waiting in self.waiting.take() {
            // This fails if the attempt stopped waiting, which is harmless.
            waiting.send(()).ok();
        }
        if outcome == AttemptOutcome::GivenUp {
            return Ok(());
        }
        let purge_at = now.plus_seconds(PURGE_COUNTERS_AFTER_SECONDS);
        self.alarm.set_by(&self.state.storage(), purge_at, now).await
    }

    fn count_failure(&self, attempt: &Attempt, now: Timestamp) -> worker::Result<()> {
        let counters = self.counters(attempt, now)?;
        self.store_counters(attempt.after_failure(&counters, now))
    }

    fn store_counters(&self, counters: Vec<Counter>) -> worker::Result<()> {
        counters.into_iter().try_for_each(|counter| self.exec(tables::store_counter(counter)))
    }

    /// The counters of an attempt that have not expired.
    fn counters(&self, attempt: &Attempt, now: Timestamp) -> worker::Result<Vec<Counter>> {
        self.purge_counters(now)?;
        let mut counters = Vec::new();
        for key in attempt.keys() {
            counters.extend(sqlite::rows::<Counter>(&self.sql(), tables::counter(key))?);
        }
        Ok(counters)
    }

    /// Deletes expired counters.
    fn purge_counters(&self, now: Timestamp) -> worker::Result<()> {
        self.exec(tables::delete_expired_counters(now))
    }
}
