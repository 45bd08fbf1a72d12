//! Parses cron expressions, and finds the local minutes that match. [`next`](super::next) applies
//! the time zone.
//!
//! The crate `croner` parses the fields and decides which days match. It is lenient, and its errors
//! name no position. So this module first checks each item of the text. For example, it refuses
//! `JANFEB`, `MON` as a day of the month, an empty list item, a sixth field and `W`, which `croner`
//! accepts.

use std::fmt;

use chrono::{Datelike, Days, Months, NaiveDate, NaiveDateTime, NaiveTime, Timelike};
use croner::parser::{CronParser, Seconds, Year};
use croner::{CronPattern, Weekday};

/// Maximum length of an expression, in characters.
pub const MAX_LENGTH: usize = 256;

/// Maximum number of months in the search for the next match. The rarest expression, the fifth
/// Friday of a February, matches after at most 40 years.
const SEARCH_MONTHS: usize = 12 * 41;

/// Shorthands for whole expressions, in upper or lower case.
const NICKNAMES: [&str; 6] = ["@hourly", "@daily", "@weekly", "@monthly", "@yearly", "@annually"];

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// What one field of an expression accepts.
struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    /// Names of the values, starting with `min`.
    names: &'static [&'static str],
    accepted: &'static str,
}

const FIELDS: [Field; 5] = [
    Field { name: "minute", min: 0, max: 59, names: &[], accepted: "0-59" },
    Field { name: "hour", min: 0, max: 23, names: &[], accepted: "0-23" },
    Field { name: "day of month", min: 1, max: 31, names: &[], accepted: "1-31 and L" },
    Field { name: "month", min: 1, max: 12, names: &MONTHS, accepted: "1-12 and JAN-DEC" },
    Field {
        name: "day of week",
        min: 0,
        max: 7,
        names: &WEEKDAYS,
        accepted: "0-7, SUN-SAT, the last (FRIL) and the nth of the month (FRI#2)",
    },
];

const DAY_OF_MONTH: usize = 2;
const DAY_OF_WEEK: usize = 4;

/// Why a text is not a cron expression. Its display is the message for the field `cron`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotAnExpression(String);

impl fmt::Display for NotAnExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotAnExpression {}

/// What a schedule does when the local clock changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// The hour field is `*` or `*/n`: every moment whose local time matches is due. A local time
    /// that occurs twice is due twice. A skipped local time is never due.
    Elapsed,
    /// Each matching local time is due once, even if it occurs twice. Skipped local times are due
    /// together, at the moment of the change.
    Fixed,
}

/// A cron expression: the set of local minutes that match.
///
/// If the day of the month and the day of the week are both restricted, a day needs to match only
/// one of them. Only a bare `*` restricts nothing. `*/2` is a restriction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expression {
    /// Bit n stands for minute n.
    minutes: u64,
    /// Bit n stands for hour n.
    hours: u32,
    /// Bit n stands for month n, from 1.
    months: u16,
    /// The matching days of a month: bit n stands for day n, from 1. The first index is the length
    /// of the month minus 28. The second index is the weekday of its first day, from Sunday.
    days: [[u32; 7]; 4],
    clock: Clock,
}

impl Expression {
    /// Reads an expression: five fields, or a shorthand such as `@daily`.
    ///
    /// # Errors
    /// The text is not an expression, or it never matches (`0 0 30 2 *`).
    ///
    /// ```
    /// use farhand_domain::schedule::cron::Expression;
    /// assert!(Expression::parse("*/15 9-17 * * MON-FRI").is_ok());
    /// assert_eq!(
    ///     Expression::parse("0 25 * * *").unwrap_err().to_string(),
    ///     r#"Character 3, hour: "25" is outside 0-23."#
    /// );
    /// ```
    pub fn parse(text: &str) -> Result<Self, NotAnExpression> {
        if text.chars().count() > MAX_LENGTH {
            return Err(NotAnExpression(format!("Use at most {MAX_LENGTH} characters.")));
        }
        check(text)?;
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed);
        let read = parser.build().parse(text);
        let pattern = read.map_err(|error| NotAnExpression(error.to_string()))?.pattern;
        let expression = Self::from_pattern(&pattern)?;
        if !expression.ever_matches() {
            let message = "This never comes: none of these months has such a day.";
            return Err(NotAnExpression(message.to_owned()));
        }
        Ok(expression)
    }

    fn from_pattern(pattern: &CronPattern) -> Result<Self, NotAnExpression> {
        // One month of each length: year, month, length. The crate takes the weekday as an
        // argument.
        const LENGTHS: [(i32, u32, u32); 4] =
            [(2023, 2, 28), (2024, 2, 29), (2023, 4, 30), (2023, 1, 31)];
        let mut days = [[0; 7]; 4];
        for (shapes, (year, month, length)) in days.iter_mut().zip(LENGTHS) {
            for (first, bits) in (0..).zip(shapes.iter_mut()) {
                for day in 1..=length {
                    let weekday = Weekday::from_days_from_sunday(first + day - 1);
                    let matches = pattern.day_match(year, month, day, weekday);
                    if matches.map_err(|error| NotAnExpression(error.to_string()))? {
                        *bits |= 1 << day;
                    }
                }
            }
        }
        // The crate's text has the five fields of a shorthand.
        let hour = pattern.as_str().split_whitespace().nth(1).unwrap_or_default();
        let is_elapsed = hour == "*" || (hour.starts_with("*/") && !hour.contains(','));
        let bits =
            |values: Vec<u16>| values.into_iter().fold(0, |bits, value| bits | 1_u64 << value);
        Ok(Self {
            minutes: bits(pattern.minutes.values()),
            hours: bits(pattern.hours.values()) as u32,
            months: bits(pattern.months.values()) as u16,
            days,
            clock: if is_elapsed { Clock::Elapsed } else { Clock::Fixed },
        })
    }

    /// The rule for changes of the local clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the first matching local minute at or after `from`. Returns `None` near the end of
    /// `chrono`'s calendar.
    pub fn first_from(&self, from: NaiveDateTime) -> Option<NaiveDateTime> {
        let whole = from.with_second(0)?.with_nanosecond(0)?;
        let from = if whole < from { whole + chrono::TimeDelta::minutes(1) } else { whole };
        // On the first day, only times from `from` on count. If none matches, the next day is the
        // first.
        let start = match self.first_time(from.time()) {
            Some(time) if self.matches_day(from.date()) => return Some(from.date().and_time(time)),
            _ => from.date().checked_add_days(Days::new(1))?,
        };
        let time = self.first_time(NaiveTime::MIN)?;
        let mut first = start.with_day(1)?;
        let mut earliest = start.day();
        for _ in 0..SEARCH_MONTHS {
            let left = self.days_of(first) & (u32::MAX << earliest);
            if left != 0 {
                return Some(first.with_day(left.trailing_zeros())?.and_time(time));
            }
            first = first.checked_add_months(Months::new(1))?;
            earliest = 1;
        }
        None
    }

    /// The matching days of the month that begins at `first`: bit n stands for day n.
    fn days_of(&self, first: NaiveDate) -> u32 {
        if self.months & (1 << first.month()) == 0 {
            return 0;
        }
        let weekday = first.weekday().num_days_from_sunday();
        let shapes = self.days.get(usize::from(first.num_days_in_month()).saturating_sub(28));
        shapes.and_then(|shapes| shapes.get(weekday as usize)).copied().unwrap_or(0)
    }

    fn matches_day(&self, date: NaiveDate) -> bool {
        date.with_day(1).is_some_and(|first| self.days_of(first) & (1 << date.day()) != 0)
    }

    /// The first matching time of day at or after `from`.
    fn first_time(&self, from: NaiveTime) -> Option<NaiveTime> {
        let minutes = self.minutes & (u64::MAX << from.minute());
        if self.hours & (1 << from.hour()) != 0 && minutes != 0 {
            return NaiveTime::from_hms_opt(from.hour(), minutes.trailing_zeros(), 0);
        }
        let hours = self.hours & (u32::MAX << (from.hour() + 1));
        NaiveTime::from_hms_opt(hours.trailing_zeros(), self.minutes.trailing_zeros(), 0)
    }

    /// Whether a matching day exists in any year. A month of a given length begins on every weekday
    /// in some year.
    fn ever_matches(&self) -> bool {
        let lengths = |month| match month {
            2 => &self.days[..2],
            4 | 6 | 9 | 11 => &self.days[2..3],
            _ => &self.days[3..],
        };
        (1..=12)
            .filter(|month| self.months & (1 << month) != 0)
            .any(|month| lengths(month).iter().flatten().any(|days| *days != 0))
    }
}

/// Checks the items of an expression. The error names the position of the first invalid item.
fn check(text: &str) -> Result<(), NotAnExpression> {
    if text.trim_start().starts_with('@') {
        if NICKNAMES.iter().any(|name| name.eq_ignore_ascii_case(text.trim())) {
            return Ok(());
        }
        let message = format!("Use five fields, or one of {}.", NICKNAMES.join(", "));
        return Err(NotAnExpression(message));
    }
    let mut count = 0;
    for (place, word) in split(text, |character| character == ' ' || character == '\t') {
        if word.is_empty() {
            continue;
        }
        let Some(field) = FIELDS.get(count) else {
            return Err(fault(place, "end", word, "is a sixth field; use five"));
        };
        for (offset, item) in split(word, |character| character == ',') {
            if item == "*" && word != item {
                return Err(fault(place + offset, field.name, item, "must be the whole field"));
            }
            check_item(count, field, place + offset, item)?;
        }
        count += 1;
    }
    if count < FIELDS.len() {
        let message = "Use five fields: minute, hour, day of month, month, day of week.";
        return Err(NotAnExpression(format!("{message} The {} is missing.", FIELDS[count].name)));
    }
    Ok(())
}

/// Splits a text at separators. Returns each part with the number of characters before it.
fn split(text: &str, is_separator: fn(char) -> bool) -> impl Iterator<Item = (usize, &str)> {
    let mut place = 0;
    text.split(is_separator).map(move |part| {
        let start = place;
        place += part.chars().count() + 1;
        (start, part)
    })
}

fn fault(place: usize, field: &str, word: &str, what: &str) -> NotAnExpression {
    NotAnExpression(format!("Character {}, {field}: \"{word}\" {what}.", place + 1))
}

/// Checks one item of a list: `*`, a value or a range, with or without a step, or a special day.
fn check_item(
    index: usize,
    field: &Field,
    place: usize,
    item: &str,
) -> Result<(), NotAnExpression> {
    let wrong = |what: &str| Err(fault(place, field.name, item, what));
    let unknown =
        || wrong(&format!("is not valid; use *, {}, ranges, steps and lists", field.accepted));
    let (base, step) = match item.split_once('/') {
        Some((base, step)) => (base, Some(step)),
        None => (item, None),
    };
    if let Some(step) = step {
        let max_step = field.max - field.min + 1;
        if !number(step).is_some_and(|step| (1..=max_step).contains(&step)) {
            return wrong(&format!("needs a step of 1 to {max_step}"));
        }
        if base != "*" && !base.contains('-') {
            return wrong("has a step without a range; use */n or a-b/n");
        }
    }
    if base == "*" || (index == DAY_OF_MONTH && step.is_none() && base.eq_ignore_ascii_case("L")) {
        return Ok(());
    }
    if index == DAY_OF_WEEK && step.is_none() {
        let last = base.strip_suffix(['L', 'l']);
        let nth = base.split_once('#').map(|(day, nth)| (day, number(nth)));
        if nth.is_some_and(|(_, nth)| !nth.is_some_and(|nth| (1..=5).contains(&nth))) {
            return wrong("needs a number of 1 to 5 after #");
        }
        if let Some(day) = last.or(nth.map(|(day, _)| day)) {
            return match value(field, day, false) {
                Some(day) if day <= field.max => Ok(()),
                _ if day.is_empty() => wrong("needs a day, such as FRIL"),
                _ => unknown(),
            };
        }
    }
    let is_range = base.contains('-');
    let (from, to) = base.split_once('-').unwrap_or((base, base));
    let (Some(first), Some(last)) = (value(field, from, false), value(field, to, is_range)) else {
        return unknown();
    };
    if first < field.min || last < field.min || first > field.max || last > field.max {
        return wrong(&format!("is outside {}-{}", field.min, field.max));
    }
    if first > last {
        return wrong("runs backwards; write it as two ranges");
    }
    Ok(())
}

/// Converts a name or a number to the value. At the end of a range, `SUN` is 7.
fn value(field: &Field, word: &str, is_end: bool) -> Option<u32> {
    match field.names.iter().position(|name| name.eq_ignore_ascii_case(word)) {
        Some(0) if is_end && field.max == 7 => Some(7),
        Some(position) => Some(field.min + u32::try_from(position).ok()?),
        None => number(word),
    }
}

/// Reads a number of one or two digits.
fn number(word: &str) -> Option<u32> {
    let is_number = matches!(word.len(), 1 | 2) && word.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| word.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> NaiveDateTime {
        text.parse().unwrap()
    }

    /// The first matches from 2026-01-01, a Thursday.
    #[track_caller]
    fn check_matches(text: &str, expected: &[&str]) {
        let expression = Expression::parse(text).unwrap();
        let mut from = at("2026-01-01T00:00:00");
        for expected in expected {
            let next = expression.first_from(from).unwrap();
            assert_eq!(next, at(&format!("{expected}:00")), "{text}");
            from = next + chrono::TimeDelta::seconds(1);
        }
    }

    #[track_caller]
    fn check_refused(text: &str, message: &str) {
        assert_eq!(Expression::parse(text).unwrap_err().to_string(), message, "{text}");
    }

    #[test]
    fn fields_lists_ranges_steps_and_names() {
        check_matches("* * * * *", &["2026-01-01T00:00", "2026-01-01T00:01"]);
        check_matches(
            "5,50 23 * * *",
            &["2026-01-01T23:05", "2026-01-01T23:50", "2026-01-02T23:05"],
        );
        check_matches(
            "*/25 0-4/3 * * *",
            &["2026-01-01T00:00", "2026-01-01T00:25", "2026-01-01T00:50", "2026-01-01T03:00"],
        );
        check_matches(
            "0 0 1 feb-MAR,Dec *",
            &["2026-02-01T00:00", "2026-03-01T00:00", "2026-12-01T00:00"],
        );
        check_matches(
            "\t0  9  *  *  sat-SUN ",
            &["2026-01-03T09:00", "2026-01-04T09:00", "2026-01-10T09:00"],
        );
        check_matches("0 0 * * 7", &["2026-01-04T00:00", "2026-01-11T00:00"]);
        check_matches("0 0 * * 5-7/2", &["2026-01-02T00:00", "2026-01-04T00:00"]);
        check_matches("0 0 31 * *", &["2026-01-31T00:00", "2026-03-31T00:00", "2026-05-31T00:00"]);
    }

    #[test]
    fn last_and_nth_days() {
        check_matches("0 0 L * *", &["2026-01-31T00:00", "2026-02-28T00:00", "2026-03-31T00:00"]);
        check_matches("0 0 15,l * *", &["2026-01-15T00:00", "2026-01-31T00:00"]);
        check_matches("0 0 * * FRIL", &["2026-01-30T00:00", "2026-02-27T00:00"]);
        check_matches("0 0 * * 5L", &["2026-01-30T00:00", "2026-02-27T00:00"]);
        check_matches("0 0 * * tue#2", &["2026-01-13T00:00", "2026-02-10T00:00"]);
        check_matches("0 0 * * 7#1,7L", &["2026-01-04T00:00", "2026-01-25T00:00"]);
        // The rarest day. 2044 is the first of these years, 2100 has no leap day.
        check_matches(
            "0 0 * 2 MON#5",
            &["2044-02-29T00:00", "2072-02-29T00:00", "2112-02-29T00:00"],
        );
    }

    #[test]
    fn either_day_matches_if_both_are_given() {
        check_matches(
            "0 0 13 * FRI",
            &["2026-01-02T00:00", "2026-01-09T00:00", "2026-01-13T00:00"],
        );
        check_matches("0 0 L 2 MON#1", &["2026-02-02T00:00", "2026-02-28T00:00"]);
        check_matches("0 0 30 2 WED", &["2026-02-04T00:00", "2026-02-11T00:00"]);
        check_matches("0 0 */20 * SAT", &["2026-01-01T00:00", "2026-01-03T00:00"]);
    }

    #[test]
    fn shorthands() {
        check_matches("@hourly", &["2026-01-01T00:00", "2026-01-01T01:00"]);
        check_matches(" @Daily", &["2026-01-01T00:00", "2026-01-02T00:00"]);
        check_matches("@weekly", &["2026-01-04T00:00", "2026-01-11T00:00"]);
        check_matches("@monthly", &["2026-01-01T00:00", "2026-02-01T00:00"]);
        check_matches("@yearly", &["2026-01-01T00:00", "2027-01-01T00:00"]);
    }

    #[test]
    fn the_hour_field_decides_the_rule_for_changed_clocks() {
        for (text, clock) in [
            ("0 * * * *", Clock::Elapsed),
            ("@hourly", Clock::Elapsed),
            ("30 */2 * * MON", Clock::Elapsed),
            ("* 0-23 * * *", Clock::Fixed),
            ("*/5 2 * * *", Clock::Fixed),
            ("0 */2,3 * * *", Clock::Fixed),
            ("0 3,*/2 * * *", Clock::Fixed),
            ("@daily", Clock::Fixed),
        ] {
            assert_eq!(Expression::parse(text).unwrap().clock(), clock, "{text}");
        }
    }

    #[test]
    fn refusals_name_the_field_and_the_place() {
        let minutes = "use *, 0-59, ranges, steps and lists";
        check_refused(
            "",
            "Use five fields: minute, hour, day of month, month, day of week. The minute is missing.",
        );
        check_refused(
            "0 0 * *",
            "Use five fields: minute, hour, day of month, month, day of week. The day of week is missing.",
        );
        check_refused("0 0 * * * *", "Character 11, end: \"*\" is a sixth field; use five.");
        check_refused("60 * * * *", "Character 1, minute: \"60\" is outside 0-59.");
        check_refused(
            "0,,5 * * * *",
            &format!("Character 3, minute: \"\" is not valid; {minutes}."),
        );
        check_refused("0 1,* * * *", "Character 5, hour: \"*\" must be the whole field.");
        check_refused("0 0 0 * *", "Character 5, day of month: \"0\" is outside 1-31.");
        check_refused("0 0 1 13 *", "Character 7, month: \"13\" is outside 1-12.");
        check_refused(
            "0 22-2 * * *",
            "Character 3, hour: \"22-2\" runs backwards; write it as two ranges.",
        );
        check_refused(
            "0 0 * * FRI-MON",
            "Character 9, day of week: \"FRI-MON\" runs backwards; write it as two ranges.",
        );
        check_refused("*/0 * * * *", "Character 1, minute: \"*/0\" needs a step of 1 to 60.");
        check_refused("*/90 * * * *", "Character 1, minute: \"*/90\" needs a step of 1 to 60.");
        check_refused(
            "5/10 * * * *",
            "Character 1, minute: \"5/10\" has a step without a range; use */n or a-b/n.",
        );
        check_refused("0 0 * * L", "Character 9, day of week: \"L\" needs a day, such as FRIL.");
        check_refused(
            "0 0 * * FRI#6",
            "Character 9, day of week: \"FRI#6\" needs a number of 1 to 5 after #.",
        );
        check_refused(
            "@reboot",
            "Use five fields, or one of @hourly, @daily, @weekly, @monthly, @yearly, @annually.",
        );
        check_refused(&"0".repeat(257), "Use at most 256 characters.");
        for text in ["0 0 30 2 *", "0 0 31 4,6,9,11 *"] {
            check_refused(text, "This never comes: none of these months has such a day.");
        }
    }

    /// Texts that `croner` alone accepts, or reads with another meaning.
    #[test]
    fn other_dialects_are_refused() {
        for text in [
            "0 0 * JANFEB *",
            "0 0 MON * *",
            "0 0 * * JAN",
            "0 0 * 1JAN *",
            "0 0 * * MONDAY",
            "0 0 15W * *",
            "0 0 LW * *",
            "0 0 ? * *",
            "0 0 1 * +MON",
            "0 0 * * 1-5#1",
            "0 0 * * */2#1",
            "0 0 * * MON-FRIL",
            "0 0 L/2 * *",
            "0 0 1-L * *",
            "0 L * * *",
            "0 0 * * 9L",
            "0 0 * * 7#0",
            "+1 * * * *",
            "001 * * * *",
            "1-2-3 * * * *",
            "-1 * * * *",
            "1- * * * *",
            "*/ * * * *",
            "*/1/1 * * * *",
            "** * * * *",
            "1-5* * * * *",
            "0 0 * * #1",
            "@daily @daily",
            "0\u{a0}0 * * *",
            "0\n0 * * *",
            "٣ * * * *",
            "0 0 * * 1@",
        ] {
            assert!(Expression::parse(text).is_err(), "{text}");
        }
    }

    /// Random fields, joined from parts that often fit together.
    fn field() -> impl Strategy<Value = String> {
        let parts = [
            "*", "*/", "/", "-", ",", "#", "L", "0", "1", "2", "5", "7", "12", "31", "60", "MON",
            "SUN", "jan",
        ];
        let part = prop::sample::select(parts.to_vec());
        prop_oneof![
            Just("*".to_owned()),
            prop::collection::vec(part, 1..6).prop_map(|parts| parts.concat())
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 2_000, failure_persistence: None, ..ProptestConfig::default()
        })]

        /// Errors of `croner` name no position, so users must not get them.
        #[test]
        fn what_passes_the_check_can_be_read(fields in prop::collection::vec(field(), 5)) {
            let text = fields.join(" ");
            let parser = CronParser::new();
            if check(&text).is_ok() {
                prop_assert!(parser.parse(&text).is_ok(), "{}", text);
                if let Ok(expression) = Expression::parse(&text) {
                    let from = at("2026-01-01T00:00:00");
                    prop_assert!(expression.first_from(from).is_some(), "{}", text);
                }
            }
        }
    }
}
