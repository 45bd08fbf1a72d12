//! Access control lists in the dialect (contract 21.5).
//!
//! Alpacon ties an account to each allowed command. A native list has `commands` and `usernames`
//! beside each other. So all commands of a token that a client of the dialect adds have the same
//! accounts, and a command that needs other accounts is refused.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid};

use crate::error::Error;

/// The accounts of a command that the client adds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Accounts {
    /// Every account: `*`.
    Any,
    /// One account.
    One(String),
}

impl Accounts {
    /// Reads `username`. `own_name` is the username of the token's owner.
    pub fn from_username(username: Option<&str>, own_name: &str) -> Self {
        match username {
            Some("*") => Self::Any,
            None | Some("") => Self::One(own_name.to_owned()),
            Some(name) => Self::One(name.to_owned()),
        }
    }

    /// The value of `usernames` in a native list.
    fn native(&self) -> Value {
        match self {
            Self::Any => Value::Null,
            Self::One(name) => json!([name]),
        }
    }
}

/// The id of an entry, which depends only on the token and the entry.
pub fn entry_id(token: &str, entry: &str) -> Uuid {
    let hash = Sha256::digest(format!("{token}\0{entry}"));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    Builder::from_custom_bytes(bytes).into_uuid()
}

/// The texts of a list in an access control list. `None`: the list is absent.
pub fn entries(acl: &Value, list: &str) -> Option<Vec<String>> {
    let texts = acl[list].as_array()?;
    Some(texts.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect())
}

/// A copy of a list with one member replaced. Null removes the member.
fn with(acl: &Value, name: &str, value: Value) -> Value {
    let mut members = acl.as_object().cloned().unwrap_or_default();
    match value {
        Value::Null => members.remove(name),
        value => members.insert(name.to_owned(), value),
    };
    Value::Object(members)
}

/// Adds a command to a token's list. Returns `None` if the list has the command already.
///
/// # Errors
/// A field error if the other commands of the token need other accounts.
pub fn add_command(
    acl: &Value,
    command: &str,
    accounts: &Accounts,
) -> Result<Option<Value>, Error> {
    let mut commands = entries(acl, "commands").unwrap_or_default();
    let has_usernames = acl["usernames"].is_array();
    // A list without commands, but with accounts, is a limit that its owner has set natively.
    let is_tied = !commands.is_empty() || (has_usernames && acl["commands"].is_null());
    if is_tied && acl["usernames"] != accounts.native() {
        let present =
            entries(acl, "usernames").map_or_else(|| "*".to_owned(), |names| names.join(", "));
        let message = format!(
            "All commands of a token have the same accounts, here: {present}. Use another token."
        );
        return Err(Error::field("username", message));
    }
    if commands.iter().any(|present| present == command) {
        return Ok(None);
    }
    commands.push(command.to_owned());
    Ok(Some(with(&with(acl, "commands", json!(commands)), "usernames", accounts.native())))
}

/// Adds servers to a token's list. Returns `None` if the list has all of them already.
pub fn add_servers(acl: &Value, added: &[String]) -> Option<Value> {
    let mut servers = entries(acl, "servers").unwrap_or_default();
    let before = servers.len();
    for server in added {
        if !servers.contains(server) {
            servers.push(server.clone());
        }
    }
    (servers.len() > before).then(|| with(acl, "servers", json!(servers)))
}

/// Removes entries from a list. The list stays, even if it becomes empty: an empty list allows
/// nothing, and an absent list would allow everything. Returns `None` if no entry is in the list.
pub fn remove(acl: &Value, list: &str, is_removed: impl Fn(&str) -> bool) -> Option<Value> {
    let present = entries(acl, list)?;
    let rest: Vec<&String> = present.iter().filter(|entry| !is_removed(entry)).collect();
    (rest.len() < present.len()).then(|| with(acl, list, json!(rest)))
}

/// The allowed commands of a token, as the client shows them.
pub fn command_entries(token: &Value) -> Vec<Value> {
    let id = token["id"].as_str().unwrap_or("");
    let usernames = entries(&token["acl"], "usernames");
    let username = usernames.map_or_else(|| "*".to_owned(), |names| names.join(","));
    let commands = entries(&token["acl"], "commands").unwrap_or_default();
    let entry = |command: &String| {
        json!({
            "id": entry_id(id, command),
            "token": id,
            "token_name": token["name"],
            "command": command,
            "username": username,
            "groupname": "",
        })
    };
    commands.iter().map(entry).collect()
}

/// The allowed servers of a token, as the client shows them. `name_of` is the name of a server.
pub fn server_entries(token: &Value, name_of: impl Fn(&str) -> Value) -> Vec<Value> {
    let id = token["id"].as_str().unwrap_or("");
    let entry = |server: &String| {
        json!({
            "id": entry_id(id, server),
            "token": id,
            "token_name": token["name"],
            "server": {"id": server, "name": name_of(server)},
        })
    };
    entries(&token["acl"], "servers").unwrap_or_default().iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Accounts {
        Accounts::from_username(None, "boss")
    }

    #[test]
    fn a_username_selects_the_accounts() {
        assert_eq!(owner(), Accounts::One("boss".into()));
        assert_eq!(Accounts::from_username(Some(""), "boss"), Accounts::One("boss".into()));
        assert_eq!(Accounts::from_username(Some("*"), "boss"), Accounts::Any);
        assert_eq!(Accounts::from_username(Some("root"), "boss"), Accounts::One("root".into()));
    }

    #[test]
    fn the_first_command_limits_the_token() {
        let add =
            |acl: Value, accounts: Accounts| add_command(&acl, "ls *", &accounts).unwrap().unwrap();
        assert_eq!(add(json!(null), owner()), json!({"commands": ["ls *"], "usernames": ["boss"]}));
        assert_eq!(add(json!(null), Accounts::Any), json!({"commands": ["ls *"]}));
        let acl = json!({"read_only": false, "servers": ["a"]});
        let limited = json!({"read_only": false, "servers": ["a"], "commands": ["ls *"], "usernames": ["boss"]});
        assert_eq!(add(acl, owner()), limited);
        // An empty list of commands ties no command to the earlier accounts.
        let emptied = json!({"commands": [], "usernames": ["boss"]});
        assert_eq!(add(emptied, Accounts::Any), json!({"commands": ["ls *"]}));
    }

    #[test]
    fn all_commands_have_the_same_accounts() {
        let acl = json!({"commands": ["id"], "usernames": ["boss"]});
        let added = add_command(&acl, "ls", &owner()).unwrap();
        assert_eq!(added, Some(json!({"commands": ["id", "ls"], "usernames": ["boss"]})));
        assert_eq!(add_command(&acl, "id", &owner()), Ok(None));
        let deploy = json!({"usernames": ["deploy"]});
        for (acl, other) in [
            (acl.clone(), Accounts::Any),
            (acl, Accounts::One("root".into())),
            (json!({"commands": ["id"]}), owner()),
            (json!({"commands": ["id"], "usernames": ["a", "b"]}), Accounts::One("a".into())),
            (deploy.clone(), Accounts::Any),
            (deploy, owner()),
        ] {
            let error = add_command(&acl, "id", &other).unwrap_err();
            assert!(error.fields.contains_key("username"), "{acl}");
        }
    }

    #[test]
    fn the_last_removal_leaves_an_empty_list() {
        let acl = json!({"commands": ["id", "ls"], "usernames": ["boss"]});
        let one = remove(&acl, "commands", |entry| entry == "id").unwrap();
        assert_eq!(one, json!({"commands": ["ls"], "usernames": ["boss"]}));
        let none = remove(&one, "commands", |_| true).unwrap();
        assert_eq!(none, json!({"commands": [], "usernames": ["boss"]}));
        assert_eq!(remove(&none, "commands", |_| true), None);
        assert_eq!(remove(&json!(null), "servers", |_| true), None);
        assert_eq!(remove(&acl, "servers", |_| true), None);
    }

    #[test]
    fn servers_are_added_once() {
        let both = ["a".to_owned(), "b".to_owned()];
        let acl = add_servers(&json!(null), &both).unwrap();
        assert_eq!(acl, json!({"servers": ["a", "b"]}));
        assert_eq!(add_servers(&acl, &both), None);
        assert_eq!(
            add_servers(&json!({"servers": ["b"]}), &both),
            Some(json!({"servers": ["b", "a"]}))
        );
    }

    #[test]
    fn entries_have_stable_ids() {
        let token = json!({"id": "t", "name": "ci", "acl": {"commands": ["id"], "servers": ["a"]}});
        let command = &command_entries(&token)[0];
        assert_eq!((&command["command"], &command["username"]), (&json!("id"), &json!("*")));
        assert_eq!(command["id"], json!(entry_id("t", "id")));
        assert_ne!(entry_id("t", "id"), entry_id("u", "id"));
        let server = &server_entries(&token, |_| json!("web"))[0];
        assert_eq!(server["server"], json!({"id": "a", "name": "web"}));
        assert!(command_entries(&json!({"id": "t", "acl": null})).is_empty());
    }
}
