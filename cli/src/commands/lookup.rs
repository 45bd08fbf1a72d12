//! Finds the ids of resources by their names, for endpoints that do not accept names.

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

/// The id of the script with this name. A UUID is returned unchanged.
pub fn script_id(client: &Client, script: &str) -> Result<String> {
    id_by_name(client, "/api/events/scripts/", "script", script)
}

/// The id of the resource with this name in a list. A UUID is returned unchanged. Fails if several
/// resources have the name.
pub fn id_by_name(client: &Client, path: &str, what: &str, name: &str) -> Result<String> {
    if uuid::Uuid::try_parse(name).is_ok() {
        return Ok(name.to_owned());
    }
    let (found, count) = client.list(path, &[("name", name.to_owned())], 1)?;
    match (found.first().and_then(|found| found["id"].as_str()), count) {
        (Some(id), 1) => Ok(id.to_owned()),
        (Some(_), count) => Err(Error::local(format!(
            "{count} {what}s have the name {name:?}. Use the id: `farhand {what}s list` shows the ids."
        ))),
        (None, _) => Err(Error::local(format!(
            "You have no {what} {name:?}. `farhand {what}s list` lists them."
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
