//! Identifiers.

use uuid::{Builder, Uuid};

use crate::time::Timestamp;

/// A UUID of version 7 from the time and ten random bytes: ids sort by creation (contract 3.6).
pub fn new(now: Timestamp, random: [u8; 10]) -> Uuid {
    Builder::from_unix_timestamp_millis(now.as_millis(), &random).into_uuid()
}

/// Reads a UUID in its one usual form, 36 characters with hyphens, in either case.
///
/// The crate would also take braces, `urn:uuid:` and no hyphens; an id in a path has one spelling.
pub fn parse(text: &str) -> Option<Uuid> {
    (text.len() == 36).then(|| Uuid::try_parse(text).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_creation() {
        let early = new(Timestamp::from_millis(1_000), [0xff; 10]);
        let late = new(Timestamp::from_millis(1_001), [0; 10]);
        assert!(early.to_string() < late.to_string());
        assert_eq!(early.get_version_num(), 7);
    }

    #[test]
    fn one_spelling_only() {
        assert!(parse("01936d3e-7a00-7000-8000-000000000000").is_some());
        assert!(parse("01936D3E-7A00-7000-8000-000000000000").is_some());
        for bad in [
            "",
            "-",
            "01936d3e7a0070008000000000000000",
            "{01936d3e-7a00-7000-8000-00000000000}",
            "g1936d3e-7a00-7000-8000-000000000000",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
