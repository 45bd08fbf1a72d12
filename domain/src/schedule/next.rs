//! Finds when an expression is due in a time zone, including the days when the local clock changes.
//!
//! - [`Clock::Elapsed`]: every moment whose local time matches is due.
//! - [`Clock::Fixed`]: each matching local time is due once, at the first moment when the local
//!   clock shows this time or a later time. If a local time occurs twice, only the first occurrence
//!   is due. All matching local times that the clock skips become one due time: the moment of the
//!   change.
//!
//! A *moment* is in seconds since 1970, UTC. A *reading* is what the local clock shows at a moment,
//! converted to seconds as if it were UTC.

use std::ops::Range;

use chrono::DateTime;

use super::cron::{Clock, Expression};
use super::zone::Zone;
use crate::time::Timestamp;

/// Longer than the largest change of an offset, in seconds. Samoa once skipped a day.
const MAX_OFFSET_CHANGE: i64 = 25 * 60 * 60;

/// Returns the first due time after `after`. Returns `None` if there is none up to the year 9999.
///
/// ```
/// use farhand_domain::schedule::{cron::Expression, next::next_due, zone::Utc};
/// use farhand_domain::time::Timestamp;
/// let noon = Expression::parse("0 12 * * *").unwrap();
/// let after = Timestamp::parse("2026-11-21T12:00:00Z").unwrap();
/// let next = next_due(&noon, &Utc, after).unwrap();
/// assert_eq!(next.to_string(), "2026-11-22T12:00:00.000000+00:00");
/// ```
pub fn next_due(expression: &Expression, zone: &impl Zone, after: Timestamp) -> Option<Timestamp> {
    let after = i64::try_from(after.as_millis() / 1000).ok()?;
    let next = match expression.clock() {
        Clock::Elapsed => next_elapsed(expression, zone, after + 1),
        Clock::Fixed => next_fixed(expression, zone, after),
    };
    let next = Timestamp::from_millis(u64::try_from(next?).ok()?.checked_mul(1000)?);
    // A `Timestamp` after the year 9999 has no text.
    Timestamp::parse(&next.to_string()).ok()
}

/// Returns the last due time that is after `from` and not after `until`, if there is one. `next`
/// returns the first due time after a moment.
pub fn last_due(
    next: impl Fn(Timestamp) -> Option<Timestamp>,
    from: Timestamp,
    until: Timestamp,
) -> Option<Timestamp> {
    let due_after = |after| next(after).filter(|due| *due <= until);
    let mut last = due_after(from)?;
    // The last due time is after `low` and at most `high`, in seconds.
    let (mut low, mut high) = (from.as_millis() / 1000, until.as_millis().div_ceil(1000));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match due_after(Timestamp::from_millis(middle * 1000)) {
            Some(due) => (last, low) = (due, middle),
            None => high = middle,
        }
    }
    Some(last)
}

/// Returns the first moment at or after `from` whose reading matches.
fn next_elapsed(expression: &Expression, zone: &impl Zone, mut from: i64) -> Option<i64> {
    let mut offset = zone.offset_at(from);
    loop {
        let due = first_reading(expression, from + offset)? - offset;
        let near = due.min(from + MAX_OFFSET_CHANGE);
        if zone.offset_at(near) != offset {
            // The clock changes before `due`: continue from the change.
            from = change_in(zone, from..near);
            offset = zone.offset_at(from);
        } else if near == due {
            return Some(due);
        } else {
            // Before the new `from`, every reading is below the reading of `due`, even if the clock
            // changes.
            from = near.max(due - MAX_OFFSET_CHANGE);
            offset = zone.offset_at(from);
        }
    }
}

/// Returns the first moment after `after` when the clock reaches a matching reading for the first
/// time.
fn next_fixed(expression: &Expression, zone: &impl Zone, after: i64) -> Option<i64> {
    let reading = first_reading(expression, highest_reading(zone, after) + 1)?;
    Some(first_reached(zone, reading))
}

/// Returns the highest reading up to a moment. If the clock was set back shortly before, it is
/// higher than the current reading.
fn highest_reading(zone: &impl Zone, moment: i64) -> i64 {
    let present = moment + zone.offset_at(moment);
    if zone.offset_at(moment - MAX_OFFSET_CHANGE) <= zone.offset_at(moment) {
        return present;
    }
    let change = change_in(zone, moment - MAX_OFFSET_CHANGE..moment);
    present.max(change - 1 + zone.offset_at(change - 1))
}

/// Returns the first moment when the clock shows `reading` or more.
fn first_reached(zone: &impl Zone, reading: i64) -> i64 {
    let (before, after) =
        (zone.offset_at(reading - MAX_OFFSET_CHANGE), zone.offset_at(reading + MAX_OFFSET_CHANGE));
    if before == after {
        return reading - before;
    }
    let change = change_in(zone, reading - MAX_OFFSET_CHANGE..reading + MAX_OFFSET_CHANGE);
    if reading - before < change { reading - before } else { change.max(reading - after) }
}

/// Returns the moment in the range when the offset changes. The offsets at both ends must differ.
fn change_in(zone: &impl Zone, range: Range<i64>) -> i64 {
    let Range { start: mut low, end: mut high } = range;
    let offset = zone.offset_at(low);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if zone.offset_at(middle) == offset { low = middle } else { high = middle }
    }
    high
}

/// Returns the first matching reading at or after `from`.
fn first_reading(expression: &Expression, from: i64) -> Option<i64> {
    let from = DateTime::from_timestamp(from, 0)?.naive_utc();
    Some(expression.first_from(from)?.and_utc().timestamp())
}
