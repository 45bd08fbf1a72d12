//! Health, and the document of the API.

use farhand_domain::error::Error;
use serde_json::json;

use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::platform;

/// The OpenAPI document, which `build.rs` makes of `docs/openapi.yaml`.
const SCHEMA: &str = include_str!(concat!(env!("OUT_DIR"), "/openapi.json"));

/// `GET /api/schema/` (contract 9).
pub fn schema() -> Reply {
    Reply::file("application/json", SCHEMA)
}

/// `GET /healthz` (contract 9).
pub fn health(call: &Call) -> Result<Reply, Error> {
    let commit = platform::commit(&call.env);
    Reply::ok(&json!({"status": "ok", "version": env!("CARGO_PKG_VERSION"), "commit": commit}))
}

/// `GET /api/status/` (contract 9).
pub async fn status(call: &Call) -> Result<Reply, Error> {
    Credential::from_request(call)?.check().await?;
    Reply::ok(&json!({"status": "ok"}))
}
