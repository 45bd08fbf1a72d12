//! `configure`: writes the agent's config file for a server that exists, with its id and key. It
//! also replaces the key after a rotation.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use farhand_domain::secret::Secret;
use serde::Deserialize;
use uuid::Uuid;

use crate::config::Service;
use crate::connection::client::Client;
use crate::service::config_file::{Draft, config_text};
use crate::service::key_check::check_key;

/// The keys of the config file that `configure` writes. It keeps all other keys.
const WRITTEN: [&str; 4] = ["url", "id", "key", "allow_plain_http"];

/// The arguments of `configure`.
pub struct Configuration {
    pub service: Service,
    /// The id of the server.
    pub id: Uuid,
    /// The key of the server.
    pub key: Secret,
    /// The path of the agent's config file.
    pub config: PathBuf,
    /// Whether to replace the file of another server.
    pub force: bool,
}

/// Writes the config file, if the service accepts the key. Returns text to print.
///
/// # Errors
/// The reason, in one line. The file is unchanged.
pub async fn configure(configuration: Configuration) -> Result<String, String> {
    let Configuration { service, id, key, config, force } = configuration;
    let old = read_old(&config, id, force)?;
    let draft = Draft::begin(&config, old.is_some())?;
    let name = check_key(&Client::for_server(&service, id, &key)?).await?;
    let kept = old.unwrap_or_default();
    draft.finish(&(config_text(&service, id, &key) + &kept))?;
    Ok(format!("this host is {name}\nthe agent's file is {}", config.display()))
}

/// Returns the lines of an existing config file that stay, or `None` if there is no file. All lines
/// of a file of another server are dropped.
fn read_old(path: &Path, id: Uuid, force: bool) -> Result<Option<String>, String> {
    #[derive(Deserialize)]
    struct Owner {
        id: Option<String>,
    }
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let owner = toml::from_str::<Owner>(&text).ok().and_then(|owner| owner.id);
    match owner.as_deref().and_then(farhand_domain::id::parse) {
        Some(owner) if owner == id => Ok(Some(without_written(&text))),
        _ if force => Ok(Some(String::new())),
        _ => Err(format!(
            "{}: this file is not of server {id}; use --force to replace it",
            path.display()
        )),
    }
}

/// Removes the lines that `configure` writes. They are before the first table.
fn without_written(text: &str) -> String {
    let mut in_table = false;
    let is_kept = |line: &&str| {
        in_table |= line.trim_start().starts_with('[');
        let key = line.split('=').next().unwrap_or_default().trim();
        in_table || !WRITTEN.contains(&key)
    };
    text.split_inclusive('\n').filter(is_kept).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn other_settings_stay() {
        let file = "url = \"https://a.example\"\nid=\"x\"\n  key = \"k\"\nmax_running = 3\n# key\n\n[labels]\nkey = \"v\"\n";
        assert_eq!(without_written(file), "max_running = 3\n# key\n\n[labels]\nkey = \"v\"\n");
    }

    #[test]
    fn the_file_of_another_server_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        let id = Uuid::from_u128(1);
        assert_eq!(read_old(&path, id, false), Ok(None));
        fs::write(&path, format!("id = \"{id}\"\nkey = \"k\"\nmax_running = 3\n")).unwrap();
        assert_eq!(read_old(&path, id, false), Ok(Some("max_running = 3\n".to_owned())));
        assert!(read_old(&path, Uuid::from_u128(2), false).unwrap_err().contains("--force"));
        assert_eq!(read_old(&path, Uuid::from_u128(2), true), Ok(Some(String::new())));
        fs::write(&path, "not TOML").unwrap();
        assert!(read_old(&path, id, false).is_err());
    }
}
