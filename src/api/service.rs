//! Health and service documents (contract 9).

use farhand_domain::error::Error;
use serde_json::json;

use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::platform::{self, d1_size};

/// The OpenAPI document. `build.rs` converts it from `docs/openapi.yaml`.
const SCHEMA: &str = include_str!(concat!(env!("OUT_DIR"), "/openapi.json"));

/// `GET /api/schema/`.
pub fn schema() -> Reply {
    Reply::file("application/json", SCHEMA)
}

/// `GET /healthz`.
pub fn health(call: &Call) -> Result<Reply, Error> {
    let commit = platform::commit(&call.env);
    let storage = d1_size::fullness(&call.env);
    Reply::ok(&json!({
        "status": "ok", "version": env!("CARGO_PKG_VERSION"), "commit": commit, "storage": storage,
    }))
}

/// `GET /api/status/`.
pub async fn status(call: &Call) -> Result<Reply, Error> {
    Credential::from_request(call)?.check().await?;
    Reply::ok(&json!({"status": "ok"}))
}
