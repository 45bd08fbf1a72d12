//! Time zones: the offset from UTC, which the platform supplies, and the form of their names.

/// Maximum length of a time zone's name, in bytes.
const MAX_NAME_LENGTH: usize = 64;

/// A time zone: how far its local time is ahead of UTC at each moment.
///
/// The Worker reads the offset from the runtime (`Intl.DateTimeFormat`), so that the bundle
/// contains no time zone data. The offset must not change twice within three days. A test checks
/// this from 2020 to 2040 for zones of the IANA database.
pub trait Zone {
    /// Local time minus UTC, in seconds. `moment` is in seconds since 1970.
    fn offset_at(&self, moment: i64) -> i64;
}

/// UTC.
#[derive(Clone, Copy, Debug)]
pub struct Utc;

impl Zone for Utc {
    fn offset_at(&self, _: i64) -> i64 {
        0
    }
}

impl<Z: Zone + ?Sized> Zone for &Z {
    fn offset_at(&self, moment: i64) -> i64 {
        (**self).offset_at(moment)
    }
}

/// Whether a text has the form of an IANA name, such as `America/Argentina/Buenos_Aires`. The
/// platform checks whether the zone exists.
///
/// `Intl` also accepts offsets such as `+05:30`. They are refused here, because they are not names.
pub fn is_name(text: &str) -> bool {
    let is_part = |part: &str| {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-".contains(&byte);
        part.starts_with(|first: char| first.is_ascii_alphabetic()) && part.bytes().all(is_known)
    };
    text.len() <= MAX_NAME_LENGTH && text.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_database() {
        for name in ["UTC", "Europe/Berlin", "America/Port-au-Prince", "Etc/GMT+12", "EST5EDT"] {
            assert!(is_name(name), "{name}");
        }
        let long = "A".repeat(65);
        for name in [
            "",
            "+05:30",
            "-3",
            "Europe/",
            "/UTC",
            "Europe//Berlin",
            "Europe/Ber lin",
            "Zürich",
            &long,
        ] {
            assert!(!is_name(name), "{name}");
        }
    }
}
