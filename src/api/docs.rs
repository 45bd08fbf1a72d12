//! The interactive API reference at `/api/docs/`. `scripts/build.mjs` writes its files to
//! `build/assets`: the page of `web/docs`, and Swagger UI.

use farhand_domain::error::Error;
use worker::web_sys;

use crate::http::request::Call;
use crate::http::response::Reply;

/// The binding of the static assets (`wrangler.toml`).
const ASSETS: &str = "ASSETS";
/// `GET /api/docs/` and its files (contract 9). The Worker serves the files, not the platform
/// alone: only hosts of workspaces have them, and the responses need these headers.
pub async fn file(call: &Call) -> Result<Reply, Error> {
    let media_type = match call.path.rsplit('.').next() {
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        _ => "text/html; charset=utf-8",
    };
    let name = if call.path.ends_with('/') { "index.html" } else { "" };
    // The binding ignores the host of the URL.
    let url = format!("https://assets{}{name}", call.path);
    let asset = call.env.assets(ASSETS)?.fetch(url, None).await?;
    if asset.status_code() != 200 {
        return Err(Error::internal(format!("{}: {}", call.path, asset.status_code())));
    }
    Ok(Reply::asset(media_type, web_sys::Response::from(asset)).for_page())
}
