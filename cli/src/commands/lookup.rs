//! Finds the ids of servers and users, for endpoints that do not accept names.

use crate::client::Client;
use crate::error::{Error, Result};
use crate::types::{Server, User};

use super::typed;

/// The id of the server with this name. A UUID is returned unchanged.
pub fn server_id(client: &Client, server: &str) -> Result<String> {
    if uuid::Uuid::try_parse(server).is_ok() {
        return Ok(server.to_owned());
    }
    let (found, _) = client.list("/api/servers/", &[("name", server.to_owned())], 1)?;
    match found.first() {
        Some(found) => Ok(typed::<Server>(found)?.id),
        None => Err(Error::local(format!(
            "There is no server {server:?}, or you cannot access it. `farhand servers` lists them."
        ))),
    }
}

/// The id of the user with this name.
pub fn user_id(client: &Client, username: &str) -> Result<i64> {
    let (found, _) = client.list("/api/iam/users/", &[("username", username.to_owned())], 1)?;
    match found.first() {
        Some(found) => Ok(typed::<User>(found)?.id),
        None => {
            Err(Error::local(format!("There is no user {username:?}. `farhand users` lists them.")))
        }
    }
}
