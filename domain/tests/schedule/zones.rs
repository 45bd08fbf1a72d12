//! Time zones of the IANA database, for the tests only: `chrono-tz` holds its data.

use chrono::{DateTime, Offset, TimeZone};
use chrono_tz::Tz;
use farhand_domain::schedule::zone::Zone;

pub const FIRST_YEAR: &str = "2020-01-01T00:00:00Z";
pub const LAST_YEAR: &str = "2041-01-01T00:00:00Z";

/// Zones with all kinds of changes: half an hour (Lord Howe), two hours (Troll), at midnight
/// (Havana, Beirut), twice a year around Ramadan (Casablanca), once, or never.
pub const NAMES: [&str; 50] = [
    "UTC",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Africa/El_Aaiun",
    "Africa/Johannesburg",
    "Africa/Juba",
    "America/Adak",
    "America/Argentina/Buenos_Aires",
    "America/Asuncion",
    "America/Chicago",
    "America/Denver",
    "America/Halifax",
    "America/Havana",
    "America/Los_Angeles",
    "America/Mexico_City",
    "America/Miquelon",
    "America/New_York",
    "America/Nuuk",
    "America/Phoenix",
    "America/Port-au-Prince",
    "America/Santiago",
    "America/Sao_Paulo",
    "America/Scoresbysund",
    "America/St_Johns",
    "America/Whitehorse",
    "Antarctica/Casey",
    "Antarctica/McMurdo",
    "Antarctica/Troll",
    "Antarctica/Vostok",
    "Asia/Almaty",
    "Asia/Amman",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Jerusalem",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Asia/Tehran",
    "Asia/Tokyo",
    "Atlantic/Azores",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Europe/Berlin",
    "Europe/Chisinau",
    "Europe/Dublin",
    "Europe/London",
    "Europe/Volgograd",
    "Pacific/Chatham",
    "Pacific/Easter",
    "Pacific/Fiji",
    "Pacific/Norfolk",
];

pub fn seconds(text: &str) -> i64 {
    DateTime::parse_from_rfc3339(text).unwrap().timestamp()
}

fn offset_of(zone: Tz, moment: i64) -> i64 {
    let moment = DateTime::from_timestamp(moment, 0).unwrap().naive_utc();
    zone.offset_from_utc_datetime(&moment).fix().local_minus_utc().into()
}

/// A zone as a list of changes: much faster than asking `chrono-tz` for each minute.
pub struct Table {
    pub name: String,
    first: i64,
    /// The moment of each change, and the offset from then on.
    pub changes: Vec<(i64, i64)>,
}

impl Zone for Table {
    fn offset_at(&self, moment: i64) -> i64 {
        let count = self.changes.partition_point(|(change, _)| *change <= moment);
        count.checked_sub(1).map_or(self.first, |last| self.changes[last].1)
    }
}

impl Table {
    /// Finds the changes between two moments, first by day and then by minute.
    pub fn new(name: &str, from: i64, until: i64) -> Self {
        let zone: Tz = name.parse().unwrap();
        let first = offset_of(zone, from);
        let mut changes = vec![];
        let mut offset = first;
        for start in (from..until).step_by(24 * 3600) {
            if offset_of(zone, start + 24 * 3600) == offset {
                continue;
            }
            for minute in (start + 60..=start + 24 * 3600).step_by(60) {
                if offset_of(zone, minute) != offset {
                    // Checks a property of the IANA database, not of our code.
                    assert_ne!(
                        offset_of(zone, minute - 1),
                        offset_of(zone, minute),
                        "{name}: not a whole minute"
                    );
                    offset = offset_of(zone, minute);
                    changes.push((minute, offset));
                }
            }
        }
        Self { name: name.to_owned(), first, changes }
    }
}

/// Checks the requirement that [`Zone`] documents.
#[test]
fn no_zone_changes_twice_within_three_days() {
    for zone in chrono_tz::TZ_VARIANTS {
        let table = Table::new(zone.name(), seconds(FIRST_YEAR), seconds(LAST_YEAR));
        for pair in table.changes.windows(2) {
            assert!(pair[1].0 - pair[0].0 > 3 * 24 * 3600, "{zone}: {pair:?}");
        }
    }
}
