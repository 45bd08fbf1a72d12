//! What the rules need of a time zone.

/// The longest name of a time zone.
const MAX_NAME_LENGTH: usize = 64;

/// A time zone: how far its local time is ahead of UTC at each moment.
///
/// The Worker asks the runtime (`Intl.DateTimeFormat`), so that the bundle holds no time zone data.
/// The offset must not change twice within three days. A test checks the zones of the IANA database
/// for that, from 2020 to 2040.
pub trait Zone {
    /// Local time minus UTC in seconds, at a moment in seconds since 1970.
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

/// Whether a text has the form of an IANA name, such as `America/Argentina/Buenos_Aires`. Whether
/// the zone exists is for the platform to say.
///
/// `Intl` also takes offsets such as `+05:30`. They are not names and are refused.
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
