//! Timestamps in the form that all parts of Farhand store and show.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Datelike, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A time in UTC, in microseconds since 1970.
///
/// Its text has a fixed width: `2026-11-21T01:23:45.678901+00:00` (contract 3.5). So texts sort in
/// the order of the times. D1, the objects' storage and JSON use this form.
///
/// ```
/// use farhand_domain::time::Timestamp;
/// let noon = Timestamp::parse("2026-11-21T12:00:00+01:00").unwrap();
/// assert_eq!(noon.to_string(), "2026-11-21T11:00:00.000000+00:00");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Timestamp(i64);

/// The last microsecond of the year 9999.
const LAST_MICROS: i64 = 253_402_300_799_999_999;

/// A text that is not a [`Timestamp`]. Its display is the error message for the field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotATimestamp;

impl fmt::Display for NotATimestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "Enter a date and time in ISO 8601 with an offset or Z, such as 2026-11-21T01:23:45Z.",
        )
    }
}

impl Timestamp {
    /// The time `millis` milliseconds after the start of 1970.
    pub fn from_millis(millis: u64) -> Self {
        Self(i64::try_from(millis).unwrap_or(i64::MAX / 1000).saturating_mul(1000))
    }

    /// Milliseconds since the start of 1970, rounded down. Returns 0 for an earlier time.
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0.div_euclid(1000)).unwrap_or(0)
    }

    /// Reads ISO 8601 with an offset (contract 3.5).
    ///
    /// # Errors
    /// The text has another form or no offset, or the year in UTC is not between 1 and 9999.
    pub fn parse(text: &str) -> Result<Self, NotATimestamp> {
        let micros =
            DateTime::parse_from_rfc3339(text).map_err(|_| NotATimestamp)?.timestamp_micros();
        // Checks the resulting year: a leap second at the end of a year is in the next year.
        let year = DateTime::from_timestamp_micros(micros).map(|time: DateTime<Utc>| time.year());
        if !year.is_some_and(|year| (1..=9999).contains(&year)) {
            return Err(NotATimestamp);
        }
        Ok(Self(micros))
    }

    /// The form in mails (RFC 5322): `Sat, 21 Nov 2026 01:23:45 +0000`. A later time becomes the
    /// last second of the year 9999.
    pub fn to_rfc_5322(self) -> String {
        // chrono has no text for a later time.
        DateTime::from_timestamp(self.0.clamp(0, LAST_MICROS).div_euclid(1_000_000), 0)
            .unwrap_or_default()
            .to_rfc2822()
    }

    /// The time `seconds` later, or earlier if the number is negative. The result is at most the
    /// end of the year 9999, because a later time has no text of the fixed width.
    pub fn plus_seconds(self, seconds: i64) -> Self {
        self.plus_micros(seconds.saturating_mul(1_000_000))
    }

    /// The time `period` later, at most the end of the year 9999.
    pub fn plus(self, period: Duration) -> Self {
        self.plus_micros(i64::try_from(period.as_micros()).unwrap_or(i64::MAX))
    }

    /// The time `period` earlier.
    pub fn minus(self, period: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(period.as_micros()).unwrap_or(i64::MAX)))
    }

    /// The time `millis` milliseconds later, at most the end of the year 9999.
    pub fn plus_millis(self, millis: i64) -> Self {
        self.plus_micros(millis.saturating_mul(1000))
    }

    fn plus_micros(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros).min(LAST_MICROS))
    }

    /// The seconds from `earlier` to this time. Negative if this time is before `earlier`.
    pub fn seconds_since(self, earlier: Self) -> f64 {
        (self.0 - earlier.0) as f64 / 1_000_000.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time: DateTime<Utc> =
            DateTime::from_timestamp_micros(self.0).unwrap_or(DateTime::<Utc>::MAX_UTC);
        f.write_str(&time.to_rfc3339_opts(SecondsFormat::Micros, false))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        assert_eq!(
            Timestamp::parse(text).ok().map(|t| t.to_string()).as_deref(),
            expected,
            "{text}"
        );
    }

    #[test]
    fn reads_iso_8601_with_an_offset_only() {
        check("2026-11-21T01:23:45.678901Z", Some("2026-11-21T01:23:45.678901+00:00"));
        check("2026-11-21T01:23:45.6789019Z", Some("2026-11-21T01:23:45.678901+00:00"));
        check("2026-11-21T01:23:45-05:30", Some("2026-11-21T06:53:45.000000+00:00"));
        check("9999-12-31T23:59:59Z", Some("9999-12-31T23:59:59.000000+00:00"));
        check("2026-11-21T01:23:45", None);
        check("2026-11-21", None);
        check("2026-13-01T00:00:00Z", None);
        check("9999-12-31T23:59:59-01:00", None);
        check("9999-12-31T23:59:60Z", None);
        check("2026-06-30T23:59:60Z", Some("2026-07-01T00:00:00.000000+00:00"));
        check("0000-01-01T00:00:00Z", None);
        check("1764000000", None);
        check("", None);
    }

    #[test]
    fn texts_sort_like_times() {
        let times = [0, 1, 999_999, 1_000_000, 1_763_688_225_678_901].map(Timestamp);
        let mut texts = times.map(|t| t.to_string());
        texts.sort();
        assert_eq!(texts, times.map(|t| t.to_string()));
    }

    #[test]
    fn mails_use_the_form_of_rfc_5322() {
        let text = |seconds: i64| Timestamp::from_millis(0).plus_seconds(seconds).to_rfc_5322();
        assert_eq!(text(1_795_224_225), "Sat, 21 Nov 2026 01:23:45 +0000");
        assert_eq!(text(0), "Thu, 1 Jan 1970 00:00:00 +0000");
        assert_eq!(text(-1), text(0));
        assert_eq!(text(i64::MAX), "Fri, 31 Dec 9999 23:59:59 +0000");
    }

    #[test]
    fn arithmetic_is_in_the_named_units() {
        let t = Timestamp::from_millis(1_000);
        assert_eq!(t.plus_seconds(2).as_millis(), 3_000);
        assert_eq!(t.plus_millis(250).seconds_since(t), 0.25);
        assert_eq!(t.plus_seconds(-1).as_millis(), 0);
    }

    #[test]
    fn no_time_is_after_the_year_9999() {
        let late = Timestamp::parse("9999-12-31T23:30:00Z").unwrap();
        for later in
            [late.plus_seconds(3_600), late.plus_millis(i64::MAX), late.plus_seconds(i64::MAX)]
        {
            assert_eq!(later.to_string(), "9999-12-31T23:59:59.999999+00:00");
            assert_eq!(Timestamp::parse(&later.to_string()), Ok(later));
        }
    }
}
