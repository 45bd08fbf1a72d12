//! The head of a request: method, URL and headers. One call to the runtime reads it.

use farhand_domain::http::host::Host;
use serde::Deserialize;
use wasm_bindgen::prelude::wasm_bindgen;
use worker::{Env, web_sys};

use crate::store::database::Database;

#[wasm_bindgen(module = "/src/http/http.js")]
extern "C" {
    #[wasm_bindgen(js_name = readHead)]
    fn read_head(request: &web_sys::Request) -> String;
}

/// The method, the URL, and the headers that nearly every request needs.
#[derive(Default, Deserialize)]
pub struct Head {
    /// The method, as sent.
    pub method: String,
    pub url: String,
    /// Names and values of the headers in `http.js`. The value of a missing header is `None`.
    headers: Vec<(String, Option<String>)>,
}

impl Head {
    pub fn read(request: &web_sys::Request) -> Self {
        serde_json::from_str(&read_head(request)).unwrap_or_default()
    }

    /// The value of a header. Reading a header outside of the head costs a call to the runtime.
    pub fn header(&self, request: &web_sys::Request, name: &str) -> Option<String> {
        match self.headers.iter().find(|(known, _)| known == name) {
            Some((_, value)) => value.clone(),
            None => request.headers().get(name).ok().flatten(),
        }
    }
}

/// Splits a URL into origin, path and query. `Request::url()` would do this too, but its URL parser
/// would double the size of the bundle.
pub fn split_url(url: &str) -> (&str, &str, &str) {
    let authority = url.find("://").map_or(0, |at| at + 3);
    let path = url[authority..].find(['/', '?', '#']).map_or(url.len(), |at| authority + at);
    let (origin, rest) = url.split_at(path);
    let rest = rest.split('#').next().unwrap_or("");
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    (origin, path, query)
}

/// Whether a path is in the operator API, which belongs to the cell (contract 2.1).
pub fn is_of_operator(path: &str) -> bool {
    path.starts_with("/operator/")
}

/// The database of a request: the database of the workspace that the Host header selects. Requests
/// to the operator API, and requests that select no workspace, use the database of the cell.
pub fn database_of(env: &Env, host: &Host, path: &str) -> Database {
    match host.workspace().filter(|_| !is_of_operator(path)) {
        Some(slug) => Database::of_slug(env, slug),
        None => Database::cell(env),
    }
}

/// Whether an `X-Request-Id` is valid, so that the request keeps it (contract 3.8).
pub fn is_request_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split() {
        assert_eq!(
            split_url("https://a.b:8/x/y/?q=1&r=/#f"),
            ("https://a.b:8", "/x/y/", "q=1&r=/")
        );
        assert_eq!(split_url("http://a/"), ("http://a", "/", ""));
        assert_eq!(split_url("http://a?x"), ("http://a", "", "x"));
        assert_eq!(split_url("http://[::1]:80/x?y?z"), ("http://[::1]:80", "/x", "y?z"));
    }

    #[test]
    fn request_ids() {
        assert!(is_request_id("Az_9-"));
        let too_long = "a".repeat(65);
        for bad in ["", "a b", "a.b", "ä", &too_long] {
            assert!(!is_request_id(bad), "{bad}");
        }
    }
}
