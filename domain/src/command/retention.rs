//! Command retention: how long ended commands are kept.

use std::fmt;

use uuid::Uuid;

use crate::time::Timestamp;

/// Minimum retention, in days. The response for an Idempotency-Key must be available for 24 hours
/// (contract 3.11).
const MIN_DAYS: i64 = 2;
/// Maximum retention, in days: about a hundred years.
const MAX_DAYS: i64 = 36_500;
/// The seconds of a day.
const DAY: i64 = 24 * 60 * 60;

/// An invalid setting of the retention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidRetention;

impl fmt::Display for InvalidRetention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "neither empty, nor 0, nor a whole number of days from {MIN_DAYS} to {MAX_DAYS}")
    }
}

impl std::error::Error for InvalidRetention {}

/// The cutoff of the retention: commands that ended by this time may be deleted now. `days` is the
/// setting. Returns `None` if the setting is empty or 0: commands are kept forever.
///
/// # Errors
/// The setting is invalid, and nothing may be deleted.
///
/// ```
/// # use farhand_domain::{command::retention::{InvalidRetention, until}, time::Timestamp};
/// let now = Timestamp::parse("2026-11-21T01:23:45Z").unwrap();
/// assert_eq!(until("7", now), Ok(Some(Timestamp::parse("2026-11-14T01:23:45Z").unwrap())));
/// assert_eq!(until("0", now), Ok(None));
/// assert_eq!(until("1", now), Err(InvalidRetention));
/// ```
pub fn until(days: &str, now: Timestamp) -> Result<Option<Timestamp>, InvalidRetention> {
    if days.is_empty() || days == "0" {
        return Ok(None);
    }
    let is_number = days.bytes().all(|byte| byte.is_ascii_digit());
    let days = is_number.then(|| days.parse::<i64>().ok()).flatten();
    let days = days.filter(|days| (MIN_DAYS..=MAX_DAYS).contains(days)).ok_or(InvalidRetention)?;
    Ok(Some(now.plus_seconds(-days * DAY)))
}

/// Whether retention may have deleted a command of the server with this id: the id is newer than
/// the server's id, and old enough.
///
/// A late report about such a command succeeds (agent-protocol 4.1). A report about any other
/// unknown command gets 404.
pub fn may_be_deleted(command: Uuid, server: Uuid, now: Timestamp) -> bool {
    let (Some(created), Some(server_created)) = (created_at(command), created_at(server)) else {
        return false;
    };
    server_created <= created && created <= now.plus_seconds(-MIN_DAYS * DAY)
}

/// The creation time in a UUID of version 7. Returns `None` for other UUIDs.
fn created_at(id: Uuid) -> Option<Timestamp> {
    let (seconds, nanoseconds) = id.get_timestamp()?.to_unix();
    Some(Timestamp::from_millis(
        seconds.checked_mul(1_000)?.checked_add(u64::from(nanoseconds) / 1_000_000)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    #[test]
    fn the_setting_is_empty_or_a_number_of_days() {
        let now = at("2026-11-21T12:00:00Z");
        let kept_for = |days: i64| Ok(Some(now.plus_seconds(-days * DAY)));
        for (setting, expected) in [
            ("", Ok(None)),
            ("0", Ok(None)),
            ("2", kept_for(2)),
            ("365", kept_for(365)),
            ("007", kept_for(7)),
            ("36500", kept_for(36_500)),
        ] {
            assert_eq!(until(setting, now), expected, "{setting:?}");
        }
        for bad in [
            "1",
            "-1",
            "-5",
            "00",
            "+3",
            "1.5",
            "36501",
            "99999999999999999999",
            "a year",
            " 7",
            "7 ",
            "7d",
            "٧",
        ] {
            assert_eq!(until(bad, now), Err(InvalidRetention), "{bad:?}");
        }
    }

    #[test]
    fn only_old_commands_of_the_server_may_be_deleted() {
        let created = |text: &str| id::new(at(text), [7; 10]);
        let (server, now) = (created("2026-11-01T00:00:00Z"), at("2026-11-21T12:00:00Z"));
        for (command, expected) in [
            (created("2026-11-10T00:00:00Z"), true),
            (created("2026-11-19T12:00:00Z"), true),
            (created("2026-11-19T12:00:00.001Z"), false),
            (created("2026-11-21T12:00:00Z"), false),
            (created("2026-10-31T23:59:59Z"), false),
            (Uuid::nil(), false),
            (Uuid::max(), false),
        ] {
            assert_eq!(may_be_deleted(command, server, now), expected, "{command}");
        }
        assert!(!may_be_deleted(created("2026-11-10T00:00:00Z"), Uuid::nil(), now));
    }
}
