//! The console: the page for users at `/`, and its files (contract 16). Its source is in
//! `web/console`.

use farhand_domain::error::Error;

use crate::http::assets;
use crate::http::request::Call;
use crate::http::response::Reply;

const PAGE: &str = "/console/index.html";
/// The name of a file contains a hash of its content, so browsers need to load it only once.
const FOREVER: &str = "public, max-age=31536000, immutable";

/// `GET /` and every other path of a page. All pages are the same file.
pub async fn page(call: &Call) -> Result<Reply, Error> {
    let missing = || Error::internal(format!("{PAGE}: no such asset"));
    let page = assets::find(call, PAGE).await?.ok_or_else(missing)?;
    Ok(page.for_console().header("Cache-Control", "no-cache"))
}

/// `GET /console/<file>`.
pub async fn file(call: &Call) -> Result<Reply, Error> {
    // The page itself is at its own paths only. An escape such as `%2F` could name another folder.
    if call.path == PAGE || call.path.contains('%') {
        return Err(Error::no_path());
    }
    let file = assets::find(call, &call.path).await?.ok_or_else(Error::no_path)?;
    // The text of the licences is the only file without a hash in its name.
    let cache = if call.path.ends_with(".txt") { "no-cache" } else { FOREVER };
    Ok(file.for_console().header("Cache-Control", cache))
}
