//! Loops over the table of endpoints (`farhand_domain::endpoints`).

use farhand_domain::endpoints::{Access, ROUTES};

const ID: &str = "01936d3e-7a00-7000-8000-000000000000";

/// Every endpoint: method, pattern of the path, and access.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str, Access)> {
    ROUTES.iter().flat_map(|route| {
        route.methods.iter().map(|(method, _)| (*method, route.path, route.access))
    })
}

/// The path of an endpoint, with ids of nothing and the slug of a workspace in it.
pub fn path_of(pattern: &str, slug: &str) -> String {
    let is_numbered =
        ["/api/iam/users/", "/api/iam/groups/"].iter().any(|path| pattern.starts_with(path));
    let id = if is_numbered { "1" } else { ID };
    let values = [
        ("{id}", id),
        ("{slug}", slug),
        ("{*rest}", "some/where/"),
        ("{key}", "unknown"),
        ("{username}", "boss"),
    ];
    values.into_iter().fold(pattern.to_owned(), |path, (name, value)| path.replace(name, value))
}
