//! The page on which a user chooses a new password; its files are in `web/`.

use farhand_domain::error::Error;

use crate::http::request::Call;
use crate::http::response::Reply;

/// What the page may load and do: its own two files, and requests to its own workspace. Its icon is
/// in the page itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page's files. They are small, so they are part of the Worker.
const FILES: [(&str, &str, &str); 3] = [
    (
        "/reset-password/",
        "text/html; charset=utf-8",
        include_str!("../../web/reset-password/index.html"),
    ),
    (
        "/reset-password/page.css",
        "text/css; charset=utf-8",
        include_str!("../../web/reset-password/page.css"),
    ),
    (
        "/reset-password/page.js",
        "text/javascript; charset=utf-8",
        include_str!("../../web/reset-password/page.js"),
    ),
];

/// `GET /reset-password/` and its files.
///
/// The page's address holds the key of a reset, so no request that it makes may tell its address
/// (contract 4.10).
pub fn file(call: &Call) -> Result<Reply, Error> {
    let file = FILES.into_iter().find(|(path, ..)| *path == call.path);
    let (_, media_type, text) = file.ok_or_else(Error::not_found)?;
    Ok(Reply::file(media_type, text)
        .header("Content-Security-Policy", POLICY)
        .header("Referrer-Policy", "no-referrer")
        .header("X-Frame-Options", "DENY"))
}
