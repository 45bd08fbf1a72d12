//! The paths of the console, a web page for users. Its script shows one page for each of these
//! paths (`web/console/src/pages.ts`).

/// The first segments of the paths of pages, besides `/`.
pub const PAGES: [&str; 14] = [
    "audit",
    "batches",
    "commands",
    "groups",
    "history",
    "registration",
    "run",
    "schedules",
    "scripts",
    "servers",
    "sessions",
    "settings",
    "tokens",
    "users",
];

/// Whether a path belongs to a page of the console (contract 16.2).
pub fn is_page(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|rest| {
        let first = rest.split('/').next().unwrap_or_default();
        rest.is_empty() || PAGES.contains(&first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_segments_are_pages() {
        for path in ["/", "/servers", "/servers/", "/servers/web-1", "/batches/7/targets"] {
            assert!(is_page(path), "{path}");
        }
        for path in
            ["", "servers", "/Servers", "/servers.js", "/nope", "/api/", "/console/x.js", "//run"]
        {
            assert!(!is_page(path), "{path}");
        }
    }

    #[test]
    fn the_segments_are_in_order_and_no_other_prefix() {
        assert!(PAGES.is_sorted());
        for taken in ["api", "operator", "ws", "healthz", "console", "reset-password", "agent"] {
            assert!(!PAGES.contains(&taken), "{taken}");
        }
    }
}
