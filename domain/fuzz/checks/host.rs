//! Compares the parser of the Host header with a naive parser that splits labels.

use farhand_domain::http::host::{Host, CellNames};

const NAMES: CellNames<'_> = CellNames { region: "eu1", service_domain: "farhand.example", default_workspace: Some("demo") };

pub fn check(data: &[u8]) {
    let header = String::from_utf8_lossy(data);
    let host = Host::parse(&header, NAMES);
    assert_eq!(Host::parse(&header.to_ascii_uppercase(), NAMES), host, "case does not matter");
    assert_eq!(matches!(host, Host::Workspace(_)).then(|| host.workspace()).flatten(), by_labels(&header).as_deref());
    if let Host::Workspace(slug) = &host {
        let written = format!("{slug}.eu1.farhand.example:8443");
        assert_eq!(Host::parse(&written, NAMES), host, "a name reads as itself, with a port too");
    }
    if let Host::Bare(workspace) = &host {
        assert_eq!(workspace.as_deref(), Some("demo"));
    }
}

/// The slug, if the header has exactly the four labels and at most a port.
fn by_labels(header: &str) -> Option<String> {
    let lower = header.to_ascii_lowercase();
    let (host, port) = lower.split_once(':').unwrap_or((&lower, ""));
    let [slug, "eu1", "farhand", "example"] = host.split('.').collect::<Vec<_>>()[..] else { return None };
    let is_label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_slug = slug.len() <= 63
        && slug.chars().all(is_label)
        && slug.starts_with(|c: char| c.is_ascii_lowercase())
        && !slug.ends_with('-');
    (is_slug && port.chars().all(|c| c.is_ascii_digit())).then(|| slug.to_owned())
}
