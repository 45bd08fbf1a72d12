//! The page on which a user sets a new password (contract 11.6). Its source is in `web/`.

use farhand_domain::error::Error;

use crate::http::request::Call;
use crate::http::response::Reply;

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
    Ok(Reply::file(media_type, text).for_page())
}
