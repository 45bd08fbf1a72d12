//! Calls from the Worker to a batch's object.

use farhand_domain::error::Error;
use uuid::Uuid;
use worker::Env;

/// Begins a batch that D1 has.
pub async fn begin(_env: &Env, _workspace_id: i64, _batch: Uuid) -> Result<(), Error> {
    Ok(())
}
