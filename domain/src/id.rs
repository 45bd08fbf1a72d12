//! UUIDs: creation and parsing (contract 3.6).

use uuid::{Builder, Uuid};

use crate::time::Timestamp;

/// A UUID of version 7 from the time and ten random bytes. Ids sort by creation time.
pub fn new(now: Timestamp, random: [u8; 10]) -> Uuid {
    Builder::from_unix_timestamp_millis(now.as_millis(), &random).into_uuid()
}

/// Reads a UUID of 36 characters with hyphens, in upper or lower case.
///
/// The crate `uuid` also accepts other forms: with braces, with `urn:uuid:`, or without hyphens.
/// Ids in the API have only this form.
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
    fn only_the_form_with_hyphens_is_read() {
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
