//! How long commands are kept that are over.

use std::fmt;

use uuid::Uuid;

use crate::time::Timestamp;

/// The shortest that commands may be kept, in days: an Idempotency-Key answers with its command for
/// 24 hours (contract 3.11).
const LEAST_DAYS: i64 = 2;
/// The longest, in days: a hundred years.
const MOST_DAYS: i64 = 36_500;
/// Seconds of a day.
const DAY: i64 = 24 * 60 * 60;

/// A setting that does not say how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadDays;

impl fmt::Display for BadDays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "neither empty, nor 0, nor a whole number of days from {LEAST_DAYS} to {MOST_DAYS}"
        )
    }
}

impl std::error::Error for BadDays {}

/// Before which moment a command must have been over to go now, by the setting of how many days it
/// is kept; `None` where commands are kept for ever, as an empty setting and 0 say.
///
/// # Errors
/// The setting is neither of these nor a number of days that can be: nothing may go then.
///
/// ```
/// # use farhand_domain::{retention::{BadDays, until}, time::Timestamp};
/// let now = Timestamp::parse("2026-11-21T01:23:45Z").unwrap();
/// assert_eq!(until("7", now), Ok(Some(Timestamp::parse("2026-11-14T01:23:45Z").unwrap())));
/// assert_eq!(until("0", now), Ok(None));
/// assert_eq!(until("1", now), Err(BadDays));
/// ```
pub fn until(days: &str, now: Timestamp) -> Result<Option<Timestamp>, BadDays> {
    if days.is_empty() || days == "0" {
        return Ok(None);
    }
    let is_number = days.bytes().all(|byte| byte.is_ascii_digit());
    let days = is_number.then(|| days.parse::<i64>().ok()).flatten();
    let days = days.filter(|days| (LEAST_DAYS..=MOST_DAYS).contains(days)).ok_or(BadDays)?;
    Ok(Some(now.plus_seconds(-days * DAY)))
}

/// Whether a server may have had a command of that id which was taken since: it is younger than the
/// server, and old enough.
///
/// A late report of such a one is answered like any late report (agent-protocol 4.1), of any other
/// unknown one with 404.
pub fn may_be_taken(command: Uuid, server: Uuid, now: Timestamp) -> bool {
    let (Some(made), Some(server_made)) = (made_at(command), made_at(server)) else { return false };
    server_made <= made && made <= now.plus_seconds(-LEAST_DAYS * DAY)
}

/// When an id was made, which ids of ours tell.
fn made_at(id: Uuid) -> Option<Timestamp> {
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
    fn settings() {
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
            assert_eq!(until(bad, now), Err(BadDays), "{bad:?}");
        }
    }

    #[test]
    fn commands_that_may_be_taken() {
        let made = |text: &str| id::new(at(text), [7; 10]);
        let (server, now) = (made("2026-11-01T00:00:00Z"), at("2026-11-21T12:00:00Z"));
        for (command, expected) in [
            (made("2026-11-10T00:00:00Z"), true),
            (made("2026-11-19T12:00:00Z"), true),
            (made("2026-11-19T12:00:00.001Z"), false),
            (made("2026-11-21T12:00:00Z"), false),
            (made("2026-10-31T23:59:59Z"), false),
            (Uuid::nil(), false),
            (Uuid::max(), false),
        ] {
            assert_eq!(may_be_taken(command, server, now), expected, "{command}");
        }
        assert!(!may_be_taken(made("2026-11-10T00:00:00Z"), Uuid::nil(), now));
    }
}
