//! The page on which a user sets a new password (contract 11.6). Its source is in `web/`.

use farhand_domain::error::Error;

use crate::http::request::Call;
use crate::http::response::Reply;

/// The Content-Security-Policy of the page: it may load its own two files, and call its own origin.
/// Its icon is a `data:` URL.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The path, media type and text of each file. The files are small, so the Worker contains them.
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
/// The URL of the page contains the key of a reset. So the page sends no `Referer` (contract 4.10).
pub fn file(call: &Call) -> Result<Reply, Error> {
    let file = FILES.into_iter().find(|(path, ..)| *path == call.path);
    let (_, media_type, text) = file.ok_or_else(Error::not_found)?;
    Ok(Reply::file(media_type, text)
        .header("Content-Security-Policy", POLICY)
        .header("Referrer-Policy", "no-referrer")
        .header("X-Frame-Options", "DENY"))
}
