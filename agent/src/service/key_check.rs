//! Checks that the service accepts the agent's key.

use crate::connection::client::Client;
use crate::connection::websocket::KEY_REFUSED;

/// Checks that the service accepts the key of this agent's server. Returns the server's name.
///
/// # Errors
/// The reason why it does not, in one line.
pub async fn check_key(client: &Client) -> Result<String, String> {
    match client.get("/api/servers/servers/-/").await {
        Ok((200, server)) => server["name"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("{}: the response is not a server", client.service())),
        Ok((403, _)) => Err(KEY_REFUSED.to_owned()),
        Ok((status, _)) => Err(format!("{}: status {status}", client.service())),
        Err(why) => Err(format!("{}: {}", client.service(), why.0)),
    }
}
