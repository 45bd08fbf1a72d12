//! Static assets: the files of `build/assets`, which `scripts/build.mjs` writes. The Worker serves
//! them, not the platform alone: only hosts of workspaces have them, and the responses need our
//! headers.

use farhand_domain::error::Error;
use worker::web_sys;

use crate::http::request::Call;
use crate::http::response::Reply;

/// The binding of the static assets (`wrangler.toml`).
const ASSETS: &str = "ASSETS";

/// The asset with a path, or `None` if there is none. Its media type follows from its name.
pub async fn find(call: &Call, path: &str) -> Result<Option<Reply>, Error> {
    find_as(call, path, media_type(path)).await
}

/// The asset with a path, or `None` if there is none.
pub async fn find_as(
    call: &Call,
    path: &str,
    media_type: &'static str,
) -> Result<Option<Reply>, Error> {
    // The binding ignores the host of the URL.
    let asset = call.env.assets(ASSETS)?.fetch(format!("https://assets{path}"), None).await?;
    match asset.status_code() {
        200 => Ok(Some(Reply::asset(media_type, web_sys::Response::from(asset)))),
        404 => Ok(None),
        status => Err(Error::internal(format!("{path}: {status}"))),
    }
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("txt") => "text/plain; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/html; charset=utf-8",
    }
}
