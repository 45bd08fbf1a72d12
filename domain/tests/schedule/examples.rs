//! Due times on days when the local clock changes, as the documents describe them.

use farhand_domain::schedule::cron::Expression;
use farhand_domain::schedule::next::next_due;
use farhand_domain::time::Timestamp;

use super::zones::{Table, seconds};

/// The due times after `from`, in UTC.
#[track_caller]
fn check(zone: &str, expression: &str, from: &str, expected: &[&str]) {
    let start = seconds(from);
    let zone = Table::new(zone, start - 30 * 24 * 3600, start + 400 * 24 * 3600);
    let parsed = Expression::parse(expression).unwrap();
    let mut after = Timestamp::parse(from).unwrap();
    for expected in expected {
        after = next_due(&parsed, &zone, after).unwrap();
        assert_eq!(after, Timestamp::parse(expected).unwrap(), "{expression}: {after}");
    }
}

/// On 2026-03-29 in Berlin, 02:00 to 03:00 does not occur: 01:00 UTC is 03:00.
#[test]
fn skipped_local_times_run_together_after_the_gap() {
    let from = "2026-03-28T12:00:00Z";
    check("Europe/Berlin", "30 2 * * *", from, &["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]);
    check("Europe/Berlin", "*/20 2 * * *", from, &["2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"]);
    check("Europe/Berlin", "0 2,3 * * *", from, &["2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"]);
    check(
        "Europe/Berlin",
        "0 1-4 * * *",
        from,
        &["2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"],
    );
    check("Europe/Berlin", "59 1 * * *", from, &["2026-03-29T00:59:00Z", "2026-03-29T23:59:00Z"]);
    // The day of the skipped time must match, not the day of the moment after the gap.
    check(
        "America/Havana",
        "30 0 * * SUN",
        "2026-03-07T12:00:00Z",
        &["2026-03-08T05:00:00Z", "2026-03-15T04:30:00Z"],
    );
}

/// On 2026-10-25 in Berlin, 02:00 to 03:00 occurs twice: first from 00:00 UTC, then from 01:00 UTC.
#[test]
fn repeated_local_times_run_the_first_time() {
    let from = "2026-10-24T12:00:00Z";
    check("Europe/Berlin", "30 2 * * *", from, &["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
    check(
        "Europe/Berlin",
        "0,30 2 * * *",
        from,
        &["2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:00:00Z"],
    );
    check("Europe/Berlin", "0 2,3 * * *", from, &["2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z"]);
    // The same holds if the search starts during the repeated hour.
    check("Europe/Berlin", "30,59 2 * * *", "2026-10-25T01:10:00Z", &["2026-10-26T01:30:00Z"]);
}

#[test]
fn an_hour_field_of_a_star_follows_elapsed_time() {
    let spring = "2026-03-28T23:30:00Z";
    check(
        "Europe/Berlin",
        "0 * * * *",
        spring,
        &["2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"],
    );
    check(
        "Europe/Berlin",
        "0 */2 * * *",
        spring,
        &["2026-03-29T02:00:00Z", "2026-03-29T04:00:00Z"],
    );
    let autumn = "2026-10-24T23:30:00Z";
    check(
        "Europe/Berlin",
        "30 * * * *",
        autumn,
        &["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"],
    );
    check(
        "Europe/Berlin",
        "0 */2 * * *",
        autumn,
        &["2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T03:00:00Z"],
    );
    // Half an hour is repeated.
    check(
        "Australia/Lord_Howe",
        "45 * * * *",
        "2026-04-04T14:00:00Z",
        &["2026-04-04T14:45:00Z", "2026-04-04T15:15:00Z", "2026-04-04T16:15:00Z"],
    );
}

/// Samoa had no 2011-12-30.
#[test]
fn a_skipped_day_runs_once() {
    let from = "2011-12-29T12:00:00Z";
    check(
        "Pacific/Apia",
        "0 */6 * * *",
        from,
        &[
            "2011-12-29T16:00:00Z",
            "2011-12-29T22:00:00Z",
            "2011-12-30T04:00:00Z",
            "2011-12-30T10:00:00Z",
        ],
    );
    check(
        "Pacific/Apia",
        "0 9,21 30 12 *",
        from,
        &["2011-12-30T10:00:00Z", "2012-12-29T19:00:00Z"],
    );
}
