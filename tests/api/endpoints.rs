//! The table of endpoints (`farhand_domain::http::endpoints`) as an iterator.

use farhand_domain::http::endpoints::{Access, ROUTES};

const UNKNOWN_UUID: &str = "01936d3e-7a00-7000-8000-000000000000";

/// Every endpoint: method, path pattern and access.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str, Access)> {
    ROUTES.iter().flat_map(|route| {
        route.methods.iter().map(|(method, _)| (*method, route.path, route.access))
    })
}

/// The path of an endpoint with unknown ids and the slug of a workspace.
pub fn path_of(pattern: &str, slug: &str) -> String {
    let is_numbered =
        ["/api/iam/users/", "/api/iam/groups/"].iter().any(|path| pattern.starts_with(path));
    let id = if is_numbered { "1" } else { UNKNOWN_UUID };
    let values = [
        ("{id}", id),
        ("{slug}", slug),
        ("{*rest}", "some/where/"),
        ("{key}", "unknown"),
        ("{file}", "unknown.js"),
        ("{username}", "boss"),
        ("{version}", "1"),
    ];
    values.into_iter().fold(pattern.to_owned(), |path, (name, value)| path.replace(name, value))
}
