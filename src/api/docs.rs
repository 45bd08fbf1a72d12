//! The interactive API reference at `/api/docs/`: the page of `web/docs`, and Swagger UI.

use farhand_domain::error::Error;

use crate::http::assets;
use crate::http::request::Call;
use crate::http::response::Reply;

/// `GET /api/docs/` and its files (contract 9).
pub async fn file(call: &Call) -> Result<Reply, Error> {
    let name = if call.path.ends_with('/') { "index.html" } else { "" };
    let path = format!("{}{name}", call.path);
    let missing = || Error::internal(format!("{path}: no such asset"));
    Ok(assets::find(call, &path).await?.ok_or_else(missing)?.for_page())
}
