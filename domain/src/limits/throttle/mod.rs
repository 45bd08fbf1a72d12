//! The throttles of logins and password resets (contract 4.5 and 4.10).
//!
//! Failures are counted in fixed windows. A window begins with its first counted failure and has a
//! fixed length. After that, the count starts again at 0. Successful logins of a user are counted in
//! the same way: each has an audit event and costs no quota, so a user could fill D1 with them.
//!
//! The counters are in two objects, which do not share counters. A login needs the permission of
//! both:
//! - One object limits a username ([`Attempt::login_by_username`]).
//! - One object limits addresses, networks and the workspace ([`Attempt::login_by_address`],
//!   [`Attempt::reset_by_address`]).
//!
//! The check of a password takes time. So an attempt in progress counts as a failure. Otherwise any
//! number of concurrent attempts could begin before the first attempt has failed. An attempt that
//! does not end within its lease counts as failed, because a client can cancel its request.
//!
//! At most 20 failures of one address count for the 100 failures of a username in an hour. So one
//! address cannot lock a user out everywhere: five addresses are needed. For IPv6, five networks of
//! /48 are needed, because a single customer may have a whole /48. An address that has used up its
//! share is still limited by the pair of username and address.
//!
//! The known addresses of a user are the addresses of successful logins within 30 days. Only the
//! limit of the pair applies to an attempt from a known address ([`Attempt::for_known_address`]).
//! So strangers at other addresses cannot lock the user out. The username's object stores the known
//! addresses as hashes. This does not reveal whether a username exists: a user who never logged in
//! has no known address either. The known networks of a user are stored in the same way. They decide
//! only whether a login causes a mail (contract 4.16).
//!
//! Steps of the object for an attempt:
//! 1. It counts the attempts of [`PendingAttempts::take_lapsed`] as failed, reads the counters of
//!    [`Attempt::keys`], and calls [`PendingAttempts::begin`].
//! 2. When the attempt has ended, it stores [`Attempt::after_failure`]; or it deletes
//!    [`Attempt::cleared_by_success`] and stores [`Attempt::after_success`]. For an abandoned attempt,
//!    it does nothing in this step.
//! 3. In the same step it calls [`PendingAttempts::end`], so that each attempt counts exactly once.

pub mod settings;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use self::settings::ThrottleSettings;
use crate::hash::sha256;
use crate::time::Timestamp;

/// Seconds after which an attempt that has not ended counts as failed.
pub const LEASE_SECONDS: i64 = 60;

/// Maximum number of failures of a username at an address, in a login window.
const MAX_PAIR_FAILURES: u32 = 10;
/// Maximum number of failures of an address, in a login window.
const MAX_ADDRESS_FAILURES: u32 = 50;
/// Maximum number of failures of a username, in an hour.
const MAX_USERNAME_FAILURES: u32 = 100;
/// Maximum number of failures of one address that count for a username, in an hour.
const MAX_ADDRESS_SHARE: u32 = 20;
/// The prefix length of the IPv6 network that belongs to one host.
const HOST_BITS: u32 = 64;
/// The prefix length of the IPv6 network that may belong to one customer: a site.
const SITE_BITS: u32 = 48;
/// Maximum number of reset requests of an address, in an hour.
const MAX_RESETS: u32 = 20;

/// Maximum number of wrong operator tokens in the whole cell, in [`OPERATOR_SECONDS`].
const MAX_OPERATOR_FAILURES: u32 = 10;
/// The window of wrong operator tokens, in seconds.
const OPERATOR_SECONDS: i64 = 60;

/// An address is known for this number of days after a login from it.
pub const KNOWN_DAYS: i64 = 30;
/// Maximum number of known addresses of a user. Only the newest addresses are kept.
pub const MAX_KNOWN_ADDRESSES: u32 = 16;
/// Seconds after which a login from a known address stores its time again.
pub const KNOWN_ADDRESS_UPDATE_INTERVAL: i64 = 24 * 3_600;

/// How much of a counter one address may use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Share {
    /// The key of the counter of this address's part. Its window ends together with the window of
    /// the whole counter, so that an address cannot use its share twice in one window.
    pub key: String,
    /// Maximum number of failures of the address that count.
    pub max_failures: u32,
}

/// A counter and its limit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttemptLimit {
    /// The counter's key.
    pub key: String,
    /// Maximum count in a window.
    pub max: u32,
    /// The length of the window, in seconds.
    pub window_seconds: i64,
    /// How much of the counter the attempt's address may use; `None`: all of it.
    pub share: Option<Share>,
    /// Whether a success deletes the counter.
    pub cleared_by_success: bool,
    /// Which attempts the counter counts.
    #[serde(default)]
    pub counted: Counted,
}

/// The attempts that a counter counts, by their end.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counted {
    /// The attempts that failed.
    #[default]
    Failures,
    /// The attempts that succeeded.
    Successes,
}

/// A counter: a row in the storage of an object. After `ends_at`, it is ignored and may be deleted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Counter {
    /// The counter's key.
    pub key: String,
    /// The failures since the window began.
    pub count: u32,
    /// When the window ends.
    pub ends_at: Timestamp,
}

/// Whether an attempt may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptVerdict {
    /// The attempt may begin.
    Go,
    /// The attempt must wait until another attempt, or its lease, ends.
    Wait,
    /// The attempt must not begin. The response is 429.
    Refused {
        /// Whole seconds until an attempt may begin, at least 1.
        retry_after: u64,
    },
}

/// An attempt at one object: the counters there that limit it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attempt {
    /// The key from which [`shard`] chooses the object. Attempts that share a counter have the same
    /// key, so they use the same object.
    pub home: String,
    /// The counters and their limits.
    pub limits: Vec<AttemptLimit>,
    /// The known address that the object stores after a success; `None`: it stores no address.
    pub origin: Option<KnownAddress>,
    /// The known network that the object stores after a successful login, in the same form;
    /// `None`: it stores no network.
    #[serde(default)]
    pub network: Option<KnownAddress>,
}

/// The stored form of a known address: hashes of the username and the address.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KnownAddress {
    /// The hash of the workspace and the username.
    pub user: String,
    /// The hash of the workspace, the username and the address.
    pub address: String,
}

/// A unique key for a kind and its parts. It is JSON, because usernames and addresses may contain
/// any character.
fn key(kind: &str, parts: &[&str]) -> String {
    json!([kind, parts]).to_string()
}

/// The text under which an address is counted: an IPv4 address, or an IPv6 network with this prefix
/// length. All texts that are not addresses are counted together.
fn counted_address(address: &str, bits: u32) -> String {
    match address.parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(IpAddr::V4(v4)) => v4.to_string(),
        Ok(IpAddr::V6(v6)) => {
            format!("{}/{bits}", Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << (128 - bits))))
        }
        Err(_) => "unknown".to_owned(),
    }
}

/// The network of an address: the /24 of an IPv4 address, or the site of an IPv6 address.
fn network_of(address: &str) -> String {
    match address.parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(IpAddr::V4(v4)) => format!("{}/24", Ipv4Addr::from_bits(v4.to_bits() & (u32::MAX << 8))),
        _ => counted_address(address, SITE_BITS),
    }
}

/// The counter with this key, unless its window has ended.
fn live<'a>(counters: &'a [Counter], key: &str, now: Timestamp) -> Option<&'a Counter> {
    counters.iter().find(|counter| counter.key == key && counter.ends_at > now)
}

impl Attempt {
    /// A login, or a check of the current password, at the object that counts usernames. `scope`
    /// identifies the workspace. The case of usernames is ignored.
    pub fn login_by_username(
        scope: &str,
        username: &str,
        address: &str,
        settings: ThrottleSettings,
    ) -> Self {
        let (username, site) = (username.to_lowercase(), counted_address(address, SITE_BITS));
        let (is_unknown, network) = (address.parse::<IpAddr>().is_err(), network_of(address));
        let address = counted_address(address, HOST_BITS);
        let home = key("login-username", &[scope, &username]);
        let origin = KnownAddress {
            user: sha256(&home),
            address: sha256(&key("login-origin", &[scope, &username, &address])),
        };
        let network = Some(KnownAddress {
            user: sha256(&key("login-networks", &[scope, &username])),
            address: sha256(&key("login-network", &[scope, &username, &network])),
        });
        let pair = AttemptLimit {
            key: key("login-pair", &[scope, &username, &address]),
            max: MAX_PAIR_FAILURES,
            window_seconds: settings.login_seconds,
            share: None,
            cleared_by_success: true,
            counted: Counted::Failures,
        };
        let everywhere = AttemptLimit {
            key: home.clone(),
            max: MAX_USERNAME_FAILURES,
            window_seconds: settings.hour_seconds,
            share: Some(Share {
                key: key("login-share", &[scope, &username, &site]),
                max_failures: MAX_ADDRESS_SHARE,
            }),
            cleared_by_success: false,
            counted: Counted::Failures,
        };
        // All clients with an unknown address would share one known address.
        let origin = Some(origin).filter(|_| !is_unknown);
        let network = network.filter(|_| !is_unknown);
        let successes = AttemptLimit {
            key: key("login-success", &[scope, &username]),
            max: settings.logins_of_user,
            window_seconds: settings.hour_seconds,
            share: None,
            cleared_by_success: false,
            counted: Counted::Successes,
        };
        Self { home, limits: vec![pair, everywhere, successes], origin, network }
    }

    /// Stores no network after a success: the check of a current password is no login, and causes no
    /// mail.
    #[must_use]
    pub fn without_network(self) -> Self {
        Self { network: None, ..self }
    }

    /// Keeps only the limits of the pair and of successes, because the address is known for this user.
    pub fn for_known_address(mut self) -> Self {
        self.limits.retain(|limit| limit.cleared_by_success || limit.counted == Counted::Successes);
        self
    }

    /// A login, or a check of the current password, at the object that counts addresses, sites and
    /// the workspace.
    pub fn login_by_address(scope: &str, address: &str, settings: ThrottleSettings) -> Self {
        let limits = [MAX_ADDRESS_FAILURES, settings.logins_of_site, settings.logins_of_workspace];
        Self::by_address(
            ["login-address", "login-site", "login-workspace"],
            scope,
            address,
            limits,
            settings.login_seconds,
        )
    }

    /// A request for a password reset. Each request counts: the object ends it as failed
    /// immediately.
    pub fn reset_by_address(scope: &str, address: &str, settings: ThrottleSettings) -> Self {
        let limits = [MAX_RESETS, settings.resets_of_site, settings.resets_of_workspace];
        Self::by_address(
            ["reset-address", "reset-site", "reset-workspace"],
            scope,
            address,
            limits,
            settings.hour_seconds,
        )
    }

    /// A use of the operator token. All failures in the cell are counted together, from any
    /// address.
    pub fn operator() -> Self {
        let home = key("operator", &[]);
        let limit = AttemptLimit {
            key: home.clone(),
            max: MAX_OPERATOR_FAILURES,
            window_seconds: OPERATOR_SECONDS,
            share: None,
            cleared_by_success: false,
            counted: Counted::Failures,
        };
        Self { home, limits: vec![limit], origin: None, network: None }
    }

    /// Limits an address, its IPv6 site (/48) and the workspace, in this order, with counters of
    /// these kinds.
    fn by_address(
        kinds: [&str; 3],
        scope: &str,
        address: &str,
        max_failures: [u32; 3],
        window_seconds: i64,
    ) -> Self {
        let home = key(kinds[2], &[scope]);
        let (host, site) =
            (counted_address(address, HOST_BITS), counted_address(address, SITE_BITS));
        let is_site = site.contains('/');
        let keys = [key(kinds[0], &[scope, &host]), key(kinds[1], &[scope, &site]), home.clone()];
        let limit = |(key, max)| AttemptLimit {
            key,
            max,
            window_seconds,
            share: None,
            cleared_by_success: false,
            counted: Counted::Failures,
        };
        let mut limits: Vec<AttemptLimit> = keys.into_iter().zip(max_failures).map(limit).collect();
        // An IPv4 address has no site.
        if !is_site {
            limits.remove(1);
        }
        Self { home, limits, origin: None, network: None }
    }

    /// The keys of all counters that the other methods need.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let shares = self
            .limits
            .iter()
            .filter_map(|limit| limit.share.as_ref())
            .map(|share| share.key.as_str());
        self.limits.iter().map(|limit| limit.key.as_str()).chain(shares)
    }

    /// Whether the attempt may begin, given the stored counters and the attempts in progress.
    ///
    /// If a count alone reaches a limit, the attempt is refused until the last of the full windows
    /// ends. If the count and the attempts in progress together reach a limit, the attempt waits,
    /// because the other attempts may end otherwise.
    fn verdict(
        &self,
        counters: &[Counter],
        under_way: &PendingAttempts,
        now: Timestamp,
    ) -> AttemptVerdict {
        let count = |limit: &AttemptLimit| {
            live(counters, &limit.key, now).map_or(0, |counter| counter.count)
        };
        let full = self.limits.iter().filter(|limit| count(limit) >= limit.max);
        let seconds = full.filter_map(|limit| live(counters, &limit.key, now)).map(|counter| {
            let left = counter.ends_at.seconds_since(now).ceil();
            left.max(1.0) as u64
        });
        if let Some(retry_after) = seconds.max() {
            return AttemptVerdict::Refused { retry_after };
        }
        let has_room = |limit: &AttemptLimit| {
            count(limit).saturating_add(under_way.number(&limit.key)) < limit.max
        };
        if self.limits.iter().all(has_room) { AttemptVerdict::Go } else { AttemptVerdict::Wait }
    }

    /// The counters to store after the attempt has failed. An attempt that fails after its lease
    /// has ended counts twice.
    pub fn after_failure(&self, counters: &[Counter], now: Timestamp) -> Vec<Counter> {
        self.counted(Counted::Failures, counters, now)
    }

    /// The counters to store after the attempt has succeeded.
    pub fn after_success(&self, counters: &[Counter], now: Timestamp) -> Vec<Counter> {
        self.counted(Counted::Successes, counters, now)
    }

    /// The counters that count an end, with that end.
    fn counted(&self, end: Counted, counters: &[Counter], now: Timestamp) -> Vec<Counter> {
        let mut stored = Vec::new();
        for limit in self.limits.iter().filter(|limit| limit.counted == end) {
            let fresh = || Counter {
                key: limit.key.clone(),
                count: 0,
                ends_at: now.plus_seconds(limit.window_seconds),
            };
            let mut counter = live(counters, &limit.key, now).cloned().unwrap_or_else(fresh);
            if let Some(share) = &limit.share {
                let used = live(counters, &share.key, now).map_or(0, |counter| counter.count);
                if used >= share.max_failures {
                    continue;
                }
                stored.push(Counter {
                    key: share.key.clone(),
                    count: used + 1,
                    ends_at: counter.ends_at,
                });
            }
            counter.count = counter.count.saturating_add(1);
            stored.push(counter);
        }
        stored
    }

    /// The keys of the counters to delete after the attempt has succeeded: only the counter of the
    /// pair. The counter of the username and its shares are kept.
    pub fn cleared_by_success(&self) -> impl Iterator<Item = &str> {
        self.limits.iter().filter(|limit| limit.cleared_by_success).map(|limit| limit.key.as_str())
    }
}

/// The attempts that have begun and not ended, in the memory of an object.
#[derive(Default, Debug)]
pub struct PendingAttempts(BTreeMap<Uuid, AttemptInProgress>);

/// An attempt in progress.
#[derive(Debug)]
struct AttemptInProgress {
    /// When its lease ends.
    until: Timestamp,
    attempt: Attempt,
}

impl PendingAttempts {
    /// Begins an attempt under `id`, if it may begin. `counters`: the stored counters of its keys.
    pub fn begin(
        &mut self,
        id: Uuid,
        attempt: &Attempt,
        counters: &[Counter],
        now: Timestamp,
    ) -> AttemptVerdict {
        let verdict = attempt.verdict(counters, self, now);
        if verdict == AttemptVerdict::Go {
            self.0.insert(
                id,
                AttemptInProgress {
                    until: now.plus_seconds(LEASE_SECONDS),
                    attempt: attempt.clone(),
                },
            );
        }
        verdict
    }

    /// Removes and returns the attempts whose lease has ended. They count as failed.
    pub fn take_lapsed(&mut self, now: Timestamp) -> Vec<Attempt> {
        let lapsed: Vec<Uuid> =
            self.0.iter().filter(|(_, begun)| begun.until <= now).map(|(id, _)| *id).collect();
        lapsed.iter().filter_map(|id| self.0.remove(id)).map(|begun| begun.attempt).collect()
    }

    /// Removes an attempt that has ended.
    pub fn end(&mut self, id: Uuid) {
        self.0.remove(&id);
    }

    /// The number of attempts in progress that use a counter.
    fn number(&self, key: &str) -> u32 {
        let counting = self
            .0
            .values()
            .filter(|begun| begun.attempt.limits.iter().any(|limit| limit.key == key));
        u32::try_from(counting.count()).unwrap_or(u32::MAX)
    }
}

/// The number of the object for a key, from 0 to `shards - 1`. The same arguments always return the
/// same number.
pub fn shard(key: &str, shards: u32) -> u32 {
    let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(key));
    u32::from_be_bytes([a, b, c, d]) % shards.max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use proptest::prelude::*;

    const ADDRESS: &str = "203.0.113.7";

    fn at(seconds: i64) -> Timestamp {
        Timestamp::parse("2026-11-21T00:00:00Z").unwrap().plus_seconds(seconds)
    }

    fn refused(retry_after: u64) -> AttemptVerdict {
        AttemptVerdict::Refused { retry_after }
    }

    /// How an attempt ends.
    #[derive(Clone, Copy, Debug)]
    enum End {
        Failure,
        Success,
        GivenUp,
    }

    /// A model of the Worker's object: rows by key, and attempts in progress.
    #[derive(Default)]
    struct Object {
        rows: HashMap<String, Counter>,
        under_way: PendingAttempts,
        last: u128,
    }

    impl Object {
        fn counters(&self, attempt: &Attempt) -> Vec<Counter> {
            attempt.keys().filter_map(|key| self.rows.get(key)).cloned().collect()
        }

        fn begin(&mut self, attempt: &Attempt, now: Timestamp) -> (Uuid, AttemptVerdict) {
            self.last += 1;
            let id = Uuid::from_u128(self.last);
            for lapsed in self.under_way.take_lapsed(now) {
                self.count_failure(&lapsed, now);
            }
            (id, self.under_way.begin(id, attempt, &self.counters(attempt), now))
        }

        fn count_failure(&mut self, attempt: &Attempt, now: Timestamp) {
            for counter in attempt.after_failure(&self.counters(attempt), now) {
                self.rows.insert(counter.key.clone(), counter);
            }
        }

        fn end(&mut self, id: Uuid, attempt: &Attempt, end: End, now: Timestamp) {
            match end {
                End::Failure => self.count_failure(attempt, now),
                End::Success => {
                    let counted = attempt.after_success(&self.counters(attempt), now);
                    attempt.cleared_by_success().for_each(|key| {
                        self.rows.remove(key);
                    });
                    self.rows.extend(counted.into_iter().map(|row| (row.key.clone(), row)));
                }
                End::GivenUp => {}
            }
            self.under_way.end(id);
        }

        /// Begins an attempt and, if it may begin, ends it immediately.
        fn run(&mut self, attempt: &Attempt, end: End, now: Timestamp) -> AttemptVerdict {
            let (id, verdict) = self.begin(attempt, now);
            if verdict == AttemptVerdict::Go {
                self.end(id, attempt, end, now);
            }
            verdict
        }

        #[track_caller]
        fn fail(&mut self, attempt: &Attempt, times: u32, now: Timestamp) {
            for _ in 0..times {
                assert_eq!(self.run(attempt, End::Failure, now), AttemptVerdict::Go);
            }
        }

        fn count(&self, key: &str) -> u32 {
            self.rows.get(key).map_or(0, |counter| counter.count)
        }
    }

    fn login(username: &str, address: &str) -> Attempt {
        Attempt::login_by_username("ws", username, address, ThrottleSettings::default())
    }

    #[test]
    fn a_pair_has_ten_failures_in_a_window() {
        let (mut object, alice) = (Object::default(), login("alice", ADDRESS));
        object.fail(&alice, 1, at(0));
        object.fail(&alice, 9, at(299));
        assert_eq!(object.begin(&alice, at(299)).1, refused(1));
        assert_eq!(object.begin(&alice, at(100)).1, refused(200));
        assert_eq!(object.begin(&alice, at(100).plus_millis(1)).1, refused(200));
        assert_eq!(object.begin(&alice, at(300).plus_millis(-1)).1, refused(1));
        object.fail(&login("alice", "203.0.113.8"), 1, at(299));
        object.fail(&login("bob", ADDRESS), 1, at(299));
        object.fail(&alice, 10, at(300));
        assert_eq!(object.begin(&alice, at(301)).1, refused(299));
    }

    #[test]
    fn a_user_has_a_limit_of_successes_from_all_addresses() {
        let settings = ThrottleSettings { logins_of_user: 3, ..ThrottleSettings::default() };
        let login =
            |username, address| Attempt::login_by_username("ws", username, address, settings);
        let mut object = Object::default();
        let mut run = |attempt: &Attempt, end, second| object.run(attempt, end, at(second));
        let (alice, elsewhere) = (login("alice", ADDRESS), login("alice", "203.0.113.8"));
        assert_eq!(run(&alice, End::Success, 0), AttemptVerdict::Go);
        // Other ends do not count.
        for end in [End::Failure, End::GivenUp] {
            assert_eq!(run(&alice, end, 1), AttemptVerdict::Go);
        }
        assert_eq!(run(&elsewhere, End::Success, 2), AttemptVerdict::Go);
        assert_eq!(run(&alice.clone().for_known_address(), End::Success, 3), AttemptVerdict::Go);
        for attempt in [&alice, &elsewhere, &alice.clone().for_known_address()] {
            assert_eq!(run(attempt, End::Success, 10), refused(3_590));
        }
        assert_eq!(run(&login("bob", ADDRESS), End::Success, 10), AttemptVerdict::Go);
        assert_eq!(run(&alice, End::Success, 3_600), AttemptVerdict::Go);
        // Attempts in progress may succeed, so they count until they end.
        let (mut object, now) = (Object::default(), at(0));
        let begun: Vec<_> = (0..4).map(|_| object.begin(&alice, now)).collect();
        let verdicts: Vec<_> = begun.iter().map(|(_, verdict)| *verdict).collect();
        let go = AttemptVerdict::Go;
        assert_eq!(verdicts, [go, go, go, AttemptVerdict::Wait]);
    }

    #[test]
    fn an_address_has_fifty_failures_and_twenty_resets() {
        let settings = ThrottleSettings::default();
        for (attempt, max_failures, seconds) in [
            (Attempt::login_by_address("ws", ADDRESS, settings), 50, 300),
            (Attempt::reset_by_address("ws", ADDRESS, settings), 20, 3_600),
            (Attempt::operator(), 10, 60),
        ] {
            let mut object = Object::default();
            object.fail(&attempt, max_failures, at(0));
            assert_eq!(object.begin(&attempt, at(0)).1, refused(seconds));
            object.run(&attempt, End::Success, at(0));
            assert_eq!(
                object.begin(&attempt, at(1)).1,
                refused(seconds - 1),
                "a success clears no address"
            );
            assert_eq!(object.begin(&attempt, at(3_600)).1, AttemptVerdict::Go);
        }
    }

    #[test]
    fn settings_shorten_the_windows() {
        let settings =
            ThrottleSettings { login_seconds: 2, hour_seconds: 5, ..ThrottleSettings::default() };
        let mut object = Object::default();
        let attempt = Attempt::reset_by_address("ws", ADDRESS, settings);
        object.fail(&attempt, 20, at(0));
        assert_eq!(object.begin(&attempt, at(0)).1, refused(5));
        let attempt = Attempt::login_by_username("ws", "alice", ADDRESS, settings);
        object.fail(&attempt, 10, at(0));
        assert_eq!(object.begin(&attempt, at(0)).1, refused(2));
    }

    #[test]
    fn sites_and_workspaces_have_limits() {
        let settings = ThrottleSettings {
            logins_of_workspace: 210,
            resets_of_workspace: 205,
            ..ThrottleSettings::default()
        };
        type Kind = fn(&str, &str, ThrottleSettings) -> Attempt;
        let kinds: [(Kind, u32, u32, u64); 2] =
            [(Attempt::login_by_address, 50, 10, 300), (Attempt::reset_by_address, 20, 5, 3_600)];
        for (kind, of_address, left, seconds) in kinds {
            let from = |address: String| kind("ws", &address, settings);
            let mut object = Object::default();
            for host in 0..200 / of_address {
                object.fail(&from(format!("2001:db8:0:{host}::1")), of_address, at(0));
            }
            assert_eq!(
                object.begin(&from("2001:db8:0:ffff::1".into()), at(0)).1,
                refused(seconds),
                "a /48 has 200"
            );
            object.fail(&from("2001:db8:1::1".into()), left - 1, at(0));
            let last = object.begin(&from(ADDRESS.into()), at(0));
            assert_eq!(last.1, AttemptVerdict::Go);
            assert_eq!(
                object.begin(&from(ADDRESS.into()), at(0)).1,
                AttemptVerdict::Wait,
                "one under way counts"
            );
            object.end(last.0, &from(ADDRESS.into()), End::Failure, at(0));
            assert_eq!(object.begin(&from("198.51.100.1".into()), at(0)).1, refused(seconds));
            assert_eq!(
                object.begin(&kind("other", ADDRESS, settings), at(0)).1,
                AttemptVerdict::Go
            );
        }
        // An IPv4 address has no site.
        assert_eq!(Attempt::login_by_address("ws", ADDRESS, settings).limits.len(), 2);
    }

    #[test]
    fn strangers_cannot_lock_out_a_known_address() {
        let (mut object, known) = (Object::default(), login("alice", ADDRESS).for_known_address());
        for n in 0..20 {
            object.fail(
                &login("alice", &format!("198.51.100.{n}")),
                if n < 10 { 10 } else { 0 },
                at(0),
            );
        }
        assert_eq!(object.begin(&login("alice", ADDRESS), at(1)).1, refused(3_599));
        object.fail(&known, 10, at(1));
        assert_eq!(object.begin(&known, at(2)).1, refused(299), "but its own failures count");
        assert_eq!(object.count(&known.home), 100);
    }

    #[test]
    fn a_success_clears_only_the_pair() {
        let (mut object, alice) = (Object::default(), login("alice", ADDRESS));
        object.fail(&alice, 9, at(0));
        let other = login("alice", "203.0.113.8");
        object.fail(&other, 9, at(0));
        assert_eq!(object.run(&alice, End::Success, at(1)), AttemptVerdict::Go);
        assert_eq!(object.count(&alice.home), 18);
        object.fail(&other, 1, at(1));
        assert_eq!(object.begin(&other, at(1)).1, refused(299));
        object.fail(&alice, 10, at(1));
        assert_eq!(object.begin(&alice, at(1)).1, refused(300));
    }

    #[test]
    fn attempts_under_way_count_as_failed() {
        let (mut object, alice) = (Object::default(), login("alice", ADDRESS));
        object.fail(&alice, 8, at(0));
        let (first, second) = (object.begin(&alice, at(1)), object.begin(&alice, at(1)));
        assert_eq!((first.1, second.1), (AttemptVerdict::Go, AttemptVerdict::Go));
        assert_eq!(object.begin(&alice, at(1)).1, AttemptVerdict::Wait);
        object.end(first.0, &alice, End::GivenUp, at(1));
        let third = object.begin(&alice, at(1));
        assert_eq!(
            (third.1, object.begin(&alice, at(1)).1),
            (AttemptVerdict::Go, AttemptVerdict::Wait)
        );
        object.end(second.0, &alice, End::Failure, at(2));
        assert_eq!(object.begin(&alice, at(2)).1, AttemptVerdict::Wait);
        object.end(third.0, &alice, End::Failure, at(2));
        assert_eq!(object.begin(&alice, at(2)).1, refused(298));
    }

    #[test]
    fn an_attempt_that_never_ends_has_failed() {
        let (mut object, alice) = (Object::default(), login("alice", ADDRESS));
        for second in 0..10 {
            assert_eq!(object.begin(&alice, at(second)).1, AttemptVerdict::Go);
        }
        assert_eq!(object.begin(&alice, at(59)).1, AttemptVerdict::Wait);
        // One attempt has failed, and nine attempts are in progress.
        assert_eq!(object.begin(&alice, at(60)).1, AttemptVerdict::Wait);
        assert_eq!((object.under_way.0.len(), object.count(&alice.home)), (9, 1));
        assert_eq!(object.begin(&alice, at(69)).1, refused(291));
        assert_eq!((object.under_way.0.len(), object.count(&alice.home)), (0, 10));
    }

    #[test]
    fn a_username_has_a_hundred_failures_from_five_addresses() {
        let mut object = Object::default();
        let from = |n: u32| login("alice", &format!("203.0.113.{n}"));
        for n in 0..5 {
            object.fail(&from(n), 10, at(0));
            object.fail(&from(n), if n == 4 { 9 } else { 10 }, at(300));
        }
        object.fail(&from(9), 1, at(600));
        for n in [0, 4, 9, 77] {
            assert_eq!(object.begin(&from(n), at(600)).1, refused(3_000));
        }
        // The pair's window ends sooner, but the response shows the longest time.
        let (mut object, pair) = (Object::default(), from(0));
        object.fail(&pair, 10, at(0));
        object.rows.insert(
            pair.home.clone(),
            Counter { key: pair.home.clone(), count: 100, ends_at: at(200) },
        );
        assert_eq!(object.begin(&pair, at(0)).1, refused(300));
        object.rows.insert(
            pair.home.clone(),
            Counter { key: pair.home.clone(), count: 100, ends_at: at(400) },
        );
        assert_eq!(object.begin(&pair, at(0)).1, refused(400));
        assert_eq!(object.begin(&login("bob", ADDRESS), at(0)).1, AttemptVerdict::Go);
    }

    #[test]
    fn one_address_cannot_lock_a_user_out_everywhere() {
        let (mut object, alice) = (Object::default(), login("alice", ADDRESS));
        for window in 0..12 {
            object.fail(&alice, 10, at(300 * window));
            assert_eq!(object.begin(&alice, at(300 * window)).1, refused(300));
        }
        assert_eq!(object.count(&alice.home), 20);
        assert_eq!(object.begin(&login("alice", "203.0.113.8"), at(3_599)).1, AttemptVerdict::Go);
    }

    /// If the window of a share began with the address's own first failure, the address could use
    /// its share twice in one hour of the username.
    #[test]
    fn a_share_ends_with_the_window_of_the_username() {
        let (mut object, other, alice) =
            (Object::default(), login("alice", "203.0.113.8"), login("alice", ADDRESS));
        object.fail(&other, 1, at(0));
        object.fail(&alice, 10, at(3_000));
        object.fail(&alice, 10, at(3_300));
        assert_eq!(object.count(&alice.home), 21);
        object.fail(&alice, 10, at(3_600));
        assert_eq!(object.count(&alice.home), 10, "a new window, and a new share of it");
        object.fail(&alice, 10, at(3_900));
        object.fail(&alice, 10, at(4_200));
        assert_eq!(object.count(&alice.home), 20);
        object.run(&alice, End::Success, at(4_500));
        object.fail(&alice, 10, at(4_500));
        assert_eq!(object.count(&alice.home), 20, "a success gives no new share");
    }

    #[test]
    fn addresses_of_one_network_are_counted_together() {
        let home = |address| {
            Attempt::login_by_address("ws", address, ThrottleSettings::default()).limits[0]
                .key
                .clone()
        };
        let same = |a, b| assert_eq!(home(a), home(b), "{a} {b}");
        let differ = |a, b| assert_ne!(home(a), home(b), "{a} {b}");
        same("203.0.113.7", "::ffff:203.0.113.7");
        same("2001:db8:0:1::1", "2001:DB8:0:1:ffff:ffff:ffff:ffff");
        differ("2001:db8:0:1::1", "2001:db8:0:2::1");
        differ("203.0.113.7", "203.0.113.8");
        // All texts that are not addresses are counted together, so junk gives no advantage.
        same("", "031.0.0.1");
        same("nonsense", "203.0.113.7, 203.0.113.8");
        differ("2001:db8::1", "203.0.113.7");
        assert_eq!(login("Alice", "::1"), login("aLICE", "::2"));
        let origin = |username, address| login(username, address).origin;
        assert_eq!(origin("alice", "2001:db8:0:1::1"), origin("alice", "2001:db8:0:1::2"));
        assert_ne!(origin("alice", "2001:db8:0:1::1"), origin("alice", "2001:db8:0:2::1"));
        assert_ne!(origin("alice", ADDRESS), origin("bob", ADDRESS));
        assert_eq!(origin("alice", "no address"), None);
    }

    #[test]
    fn a_known_network_is_a_24_or_a_site_of_one_user() {
        let network = |username, address| login(username, address).network;
        for (one, same, other) in [
            ("192.0.2.1", "192.0.2.254", "192.0.3.1"),
            ("::ffff:192.0.2.1", "192.0.2.2", "2001:db8::1"),
            ("2001:db8:0:1::1", "2001:db8:0:2::1", "2001:db8:1:1::1"),
        ] {
            assert_eq!(network("alice", one), network("ALICE", same));
            assert_ne!(network("alice", one), network("alice", other));
            assert_ne!(network("alice", one), network("bob", one));
        }
        assert_eq!(network("alice", "no address"), None);
        // Networks and addresses of a user do not push each other out.
        let attempt = login("alice", ADDRESS);
        assert_ne!(attempt.network.as_ref().unwrap().user, attempt.origin.as_ref().unwrap().user);
        assert_eq!(attempt.clone().for_known_address().network, attempt.network);
        assert_eq!(attempt.without_network().network, None);
        let share = |address| login("alice", address).limits[1].share.clone();
        assert_eq!(share("2001:db8:0:1::1"), share("2001:db8:0:ffff::1"), "of one /48");
        assert_ne!(share("2001:db8:0:1::1"), share("2001:db8:1:1::1"));
        assert_ne!(share("203.0.113.7"), share("203.0.113.8"));
        assert_ne!(login("alice ", ADDRESS), login("alice", ADDRESS));
        assert_eq!(login("alice", ADDRESS).home, login("alice", "::1").home);
    }

    #[test]
    fn stored_and_sent_forms_read_back() {
        let alice = login("alice", ADDRESS);
        let text = serde_json::to_string(&alice).unwrap();
        assert_eq!(serde_json::from_str::<Attempt>(&text).unwrap(), alice);
        for counter in alice.after_failure(&[], at(0)) {
            let text = serde_json::to_string(&counter).unwrap();
            assert_eq!(serde_json::from_str::<Counter>(&text).unwrap(), counter);
        }
    }

    #[test]
    fn shards_never_change() {
        assert_eq!([shard("", 16), shard("a", 16), shard("b", 16), shard("a", 0)], [2, 2, 6, 0]);
        let mut objects = [0; 8];
        (0..8_000).for_each(|n| objects[shard(&n.to_string(), 8) as usize] += 1);
        assert!(objects.iter().all(|keys| (800..1_200).contains(keys)), "{objects:?}");
    }

    /// A naive model of the rules: for each counter, the addresses of the failures in its window.
    #[derive(Default)]
    struct Tally(HashMap<String, (Timestamp, Vec<u32>)>);

    impl Tally {
        /// Counts a failure of an address, unless the window has `share` failures of it already.
        fn count(
            &mut self,
            key: String,
            seconds: i64,
            now: Timestamp,
            address: u32,
            share: usize,
        ) -> usize {
            let window =
                self.0.entry(key).or_insert_with(|| (now.plus_seconds(seconds), Vec::new()));
            if window.0 <= now {
                *window = (now.plus_seconds(seconds), Vec::new());
            }
            if window.1.iter().filter(|own| **own == address).count() < share {
                window.1.push(address);
            }
            window.1.len()
        }

        fn of(&self, key: &str, now: Timestamp) -> usize {
            self.0.get(key).filter(|window| window.0 > now).map_or(0, |window| window.1.len())
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Begin { user: u32, address: u32 },
        End { which: usize, end: End },
        Pass { millis: i64 },
    }

    /// One user is attacked from many addresses, and many users from one address. So each limit is
    /// reached.
    fn step() -> impl Strategy<Value = Step> {
        let end =
            prop_oneof![30 => Just(End::Failure), 1 => Just(End::Success), 2 => Just(End::GivenUp)];
        prop_oneof![
            30 => (0..8u32).prop_map(|address| Step::Begin { user: 0, address }),
            30 => (0..8u32).prop_map(|user| Step::Begin { user, address: 0 }),
            55 => (0..100usize, end).prop_map(|(which, end)| Step::End { which, end }),
            10 => (0..400i64).prop_map(|millis| Step::Pass { millis }),
            1 => prop_oneof![9 => 0..9_000i64, 1 => 0..150_000i64].prop_map(|millis| Step::Pass { millis }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// In any order of begins and ends:
        /// - No window has more failures than its limit.
        /// - An attempt is refused only if a limit is reached.
        /// - An attempt waits only if other attempts are in progress.
        #[test]
        fn no_window_has_more_failures_than_its_limit(steps in proptest::collection::vec(step(), 0..1_500)) {
            let settings = ThrottleSettings { login_seconds: 20, hour_seconds: 120, ..ThrottleSettings::default() };
            let (mut users, mut addresses) = (Object::default(), Object::default());
            let mut tally = Tally::default();
            let mut begun: Vec<(Timestamp, Uuid, Uuid, u32, u32)> = Vec::new();
            let mut now = at(0);
            let attempts = |user: u32, address: u32| {
                let address = format!("203.0.113.{address}");
                let by_username = Attempt::login_by_username("ws", &format!("user-{user}"), &address, settings);
                (by_username, Attempt::login_by_address("ws", &address, settings))
            };
            let keys = |user, address| {
                [(format!("pair {user} {address}"), 10), (format!("user {user}"), 100), (format!("address {address}"), 50)]
            };
            for step in steps {
                match step {
                    Step::Pass { millis } => {
                        now = now.plus_millis(millis);
                        // Attempts whose lease has ended are abandoned here. Another test covers
                        // their failure.
                        let (lapsed, left) = begun
                            .into_iter()
                            .partition::<Vec<_>, _>(|(since, ..)| since.plus_seconds(LEASE_SECONDS) <= now);
                        begun = left;
                        for (_, first, second, user, address) in lapsed {
                            let (by_username, by_address) = attempts(user, address);
                            addresses.end(first, &by_address, End::GivenUp, now);
                            users.end(second, &by_username, End::GivenUp, now);
                        }
                    }
                    Step::Begin { user, address } => {
                        let (by_username, by_address) = attempts(user, address);
                        let full = keys(user, address).map(|(key, max_failures)| tally.of(&key, now) >= max_failures);
                        let (first, verdict) = addresses.begin(&by_address, now);
                        let expect_refusal = |verdict: AttemptVerdict, full: bool| match verdict {
                            AttemptVerdict::Refused { retry_after } => full && (1..=120).contains(&retry_after),
                            AttemptVerdict::Go => !full,
                            AttemptVerdict::Wait => !full && !begun.is_empty(),
                        };
                        prop_assert!(expect_refusal(verdict, full[2]), "{verdict:?} {full:?}");
                        if verdict != AttemptVerdict::Go {
                            continue;
                        }
                        let (second, verdict) = users.begin(&by_username, now);
                        prop_assert!(expect_refusal(verdict, full[0] || full[1]), "{verdict:?} {full:?}");
                        if verdict == AttemptVerdict::Go {
                            begun.push((now, first, second, user, address));
                        } else {
                            addresses.end(first, &by_address, End::GivenUp, now);
                        }
                    }
                    Step::End { which, end } if !begun.is_empty() => {
                        let (_, first, second, user, address) = begun.swap_remove(which % begun.len());
                        let (by_username, by_address) = attempts(user, address);
                        addresses.end(first, &by_address, end, now);
                        users.end(second, &by_username, end, now);
                        let bounds = keys(user, address);
                        match end {
                            End::Failure => {
                                for ((key, max_failures), (seconds, share)) in
                                    bounds.into_iter().zip([(20, usize::MAX), (120, 20), (20, usize::MAX)])
                                {
                                    let failures = tally.count(key.clone(), seconds, now, address, share);
                                    prop_assert!(failures <= max_failures, "{failures} of {key}");
                                }
                            }
                            End::Success => {
                                tally.0.remove(&bounds[0].0);
                            }
                            End::GivenUp => {}
                        }
                    }
                    Step::End { .. } => {}
                }
            }
        }

        /// Two attempts share a key only if all parts of the key are equal.
        #[test]
        fn keys_are_not_ambiguous(
            one in ["[a:\",\\[/ ]{0,3}", "[a:\",\\[/ ]{0,3}", "[a:\",\\[/ ]{0,3}"],
            two in ["[a:\",\\[/ ]{0,3}", "[a:\",\\[/ ]{0,3}", "[a:\",\\[/ ]{0,3}"],
        ) {
            let key_of = |[scope, username, address]: &[String; 3]| {
                Attempt::login_by_username(scope, username, address, ThrottleSettings::default()).limits[0].key.clone()
            };
            let parts = |[scope, username, address]: &[String; 3]| {
                (scope.clone(), username.clone(), counted_address(address, HOST_BITS))
            };
            prop_assert_eq!(key_of(&one) == key_of(&two), parts(&one) == parts(&two));
            let [scope, username, address] = &one;
            let attempt = Attempt::login_by_username(scope, username, address, ThrottleSettings::default());
            let own = attempt.keys().collect::<std::collections::HashSet<_>>();
            prop_assert_eq!(own.len(), 4);
            for other in [
                Attempt::login_by_address(&two[0], &two[2], ThrottleSettings::default()),
                Attempt::reset_by_address(&two[0], &two[2], ThrottleSettings::default()),
            ] {
                prop_assert!(other.keys().all(|key| !own.contains(key)));
            }
        }
    }
}
