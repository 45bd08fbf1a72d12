//! Workspaces: the tenants. Each has its own host name.

/// The slugs that no new workspace can get, because people take hosts with these names for a part
/// of the service itself.
const RESERVED: [&str; 4] = ["api", "localhost", "operator", "www"];
/// Slugs with this prefix are reserved: browsers show them as other texts (punycode, RFC 5891).
const RESERVED_PREFIX: &str = "xn--";

/// Whether a slug is reserved (contract 2.2). Workspaces that have such a slug keep it.
pub fn is_reserved(slug: &str) -> bool {
    RESERVED.contains(&slug) || slug.starts_with(RESERVED_PREFIX)
}

/// Whether `text` is a workspace slug: `^[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?$` (contract 1.1). A slug
/// is a DNS label.
pub fn is_slug(text: &str) -> bool {
    let bytes = text.as_bytes();
    let alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=63).contains(&bytes.len())
        && bytes[0].is_ascii_lowercase()
        && bytes.iter().all(|b| alphanumeric(b) || *b == b'-')
        && bytes.last().is_some_and(alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::{is_reserved, is_slug};

    #[test]
    fn names_of_the_service_and_punycode_are_reserved() {
        for reserved in ["api", "localhost", "operator", "www", "xn--", "xn--a"] {
            assert!(is_reserved(reserved), "{reserved}");
        }
        for free in ["a", "acme", "api2", "www-1", "xn", "xn-a", "a-xn--a"] {
            assert!(!is_reserved(free), "{free}");
        }
    }

    #[test]
    fn slugs_are_dns_labels() {
        let longest = "a".repeat(63);
        for good in ["a", "acme", "a1", "a-b", "a--b", &longest] {
            assert!(is_slug(good), "{good}");
        }
        let too_long = "a".repeat(64);
        for bad in ["", "-", "1a", "a-", "-a", "A", "ä", "a.b", "a_b", "a b", &too_long] {
            assert!(!is_slug(bad), "{bad}");
        }
    }
}
