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
    // The page itself is at its own paths only.
    let file = if call.path == PAGE { None } else { assets::find(call, &call.path).await? };
    let file = file.ok_or_else(Error::no_path)?;
    Ok(file.for_console().header("Cache-Control", FOREVER))
}
