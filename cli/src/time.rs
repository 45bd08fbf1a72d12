//! Durations and times as people write them, and times as tables show them.

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};

use crate::error::{Error, Result};

/// Reads seconds (`90`), or a number with a unit: `90s`, `30m`, `2h`, `7d`.
pub fn parse_seconds(text: &str) -> std::result::Result<u64, String> {
    let accepted = || format!("{text:?} is not a duration. Examples: 90s, 30m, 2h, 7d.");
    let (number, unit) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3_600),
        Some((at, 'd')) => (&text[..at], 86_400),
        _ => (text, 1),
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    seconds.filter(|_| is_number).ok_or_else(accepted)
}

/// Reads a time with an offset (`2026-12-01T02:00:00Z`), or a distance from now (`+2h`). Returns
/// the time in the format of the API.
pub fn parse_time(text: &str, now: DateTime<Utc>) -> Result<String> {
    let time = match text.strip_prefix('+') {
        Some(distance) => {
            let seconds = parse_seconds(distance).map_err(Error::Local)?;
            let delta = i64::try_from(seconds).ok().and_then(TimeDelta::try_seconds);
            delta.and_then(|delta| now.checked_add_signed(delta))
        }
        None => DateTime::parse_from_rfc3339(text).ok().map(|time| time.to_utc()),
    };
    let time = time.ok_or_else(|| {
        Error::local(format!(
            "{text:?} is not a time. Examples: 2026-12-01T02:00:00Z, 2026-12-01T02:00:00+09:00, +2h."
        ))
    })?;
    Ok(time.to_rfc3339_opts(SecondsFormat::Secs, true))
}

/// Like [`parse_time`], but a distance needs no `+`: `90d` means in 90 days.
pub fn parse_future(text: &str, now: DateTime<Utc>) -> Result<String> {
    match parse_seconds(text) {
        Ok(_) => parse_time(&format!("+{text}"), now),
        Err(_) => parse_time(text, now),
    }
}

/// Like [`parse_time`], but a distance without `+` is in the past: `2h` means two hours ago.
pub fn parse_past(text: &str, now: DateTime<Utc>) -> Result<String> {
    let distance = parse_seconds(text).ok().and_then(|seconds| i64::try_from(seconds).ok());
    match distance.and_then(TimeDelta::try_seconds) {
        Some(distance) => {
            let time = now.checked_sub_signed(distance).unwrap_or(DateTime::UNIX_EPOCH);
            Ok(time.to_rfc3339_opts(SecondsFormat::Secs, true))
        }
        None => parse_time(text, now),
    }
}

pub fn now() -> DateTime<Utc> {
    Utc::now()
}

/// Formats a time of the API for a table: `2026-11-21 01:23:45Z`.
pub fn shown(time: &str) -> String {
    match DateTime::parse_from_rfc3339(time) {
        Ok(time) => time.to_utc().format("%Y-%m-%d %H:%M:%SZ").to_string(),
        Err(_) => time.to_owned(),
    }
}

/// Like [`shown`]. Returns `missing` if there is not a time.
pub fn shown_or(time: Option<&str>, missing: &str) -> String {
    time.map_or_else(|| missing.to_owned(), shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(parse_seconds("90"), Ok(90));
        assert_eq!(parse_seconds("30m"), Ok(1_800));
        assert_eq!(parse_seconds("2h"), Ok(7_200));
        assert_eq!(parse_seconds("7d"), Ok(604_800));
        for wrong in ["", "m", "-5", "+5", "1.5h", "5 m", "99999999999999999999", "9é"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn times() {
        let now = DateTime::parse_from_rfc3339("2026-11-23T04:00:00Z").unwrap().to_utc();
        assert_eq!(parse_time("+2h", now).unwrap(), "2026-11-23T06:00:00Z");
        let seoul = parse_time("2026-12-01T02:00:00+09:00", now).unwrap();
        assert_eq!(seoul, "2026-11-30T17:00:00Z");
        assert_eq!(parse_future("2h", now).unwrap(), "2026-11-23T06:00:00Z");
        assert_eq!(parse_past("2h", now).unwrap(), "2026-11-23T02:00:00Z");
        assert_eq!(parse_past("2026-11-01T00:00:00Z", now).unwrap(), "2026-11-01T00:00:00Z");
        for wrong in ["2026-12-01T02:00:00", "tomorrow", "+", "+9999999999999999999h"] {
            assert!(parse_time(wrong, now).is_err(), "{wrong}");
        }
        assert_eq!(shown("2026-11-21T01:23:45.678901+00:00"), "2026-11-21 01:23:45Z");
        assert_eq!(shown_or(None, "never"), "never");
    }
}
