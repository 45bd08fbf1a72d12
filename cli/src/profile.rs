//! Profiles: the workspaces that the user logged in to, in
//! `$XDG_CONFIG_HOME/farhand/profiles.json`. The file holds tokens, so only the user can read it.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The name of the profile if the user names no profile and none is current.
pub const DEFAULT_PROFILE: &str = "default";

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenKind {
    /// A login token. `farhand logout` ends its session.
    Login,
    /// The key of an API token. It stays valid after `farhand logout`.
    Api,
}

#[derive(Clone, Deserialize, PartialEq, Serialize)]
pub struct Profile {
    pub url: String,
    pub username: String,
    pub token: String,
    pub kind: TokenKind,
    /// Whether the user allowed plain http for the URL.
    #[serde(default)]
    pub insecure_http: bool,
}

/// The content of the file.
#[derive(Default, Deserialize, Serialize)]
pub struct Profiles {
    /// The profile of the last login, or the profile that `farhand profiles NAME` chose.
    pub current: Option<String>,
    pub profiles: BTreeMap<String, Profile>,
}

impl Profiles {
    /// The profile with this name, or else the current profile, or else `default`.
    pub fn find(&self, name: Option<&str>) -> Option<(&str, &Profile)> {
        let name = name.or(self.current.as_deref()).unwrap_or(DEFAULT_PROFILE);
        self.profiles.get_key_value(name).map(|(name, profile)| (name.as_str(), profile))
    }
}

/// The file that holds the profiles.
pub struct ProfileFile(PathBuf);

impl ProfileFile {
    /// The file of the user who runs farhand.
    pub fn of_user() -> Result<Self> {
        let variable = |name: &str| {
            std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
        };
        let folder = variable("XDG_CONFIG_HOME")
            .or_else(|| variable("HOME").map(|home| home.join(".config")))
            .ok_or_else(|| Error::local("Set HOME or XDG_CONFIG_HOME to a folder for profiles."))?;
        Ok(Self(folder.join("farhand/profiles.json")))
    }

    /// Reads the profiles. A missing file contains no profiles. Fails if other accounts can access
    /// the file.
    pub fn read(&self) -> Result<Profiles> {
        let metadata = match fs::metadata(&self.0) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Profiles::default()),
            Err(error) => return Err(Error::file("read", &self.0, &error)),
        };
        if metadata.permissions().mode() & 0o077 != 0 {
            let path = self.0.display();
            return Err(Error::local(format!(
                "{path} holds tokens, and others can access it. Run `chmod 600 {path}`."
            )));
        }
        let text = fs::read(&self.0).map_err(|error| Error::file("read", &self.0, &error))?;
        serde_json::from_slice(&text).map_err(|error| {
            let path = self.0.display();
            Error::local(format!("{path} is damaged ({error}). Delete it, and log in again."))
        })
    }

    /// Replaces the file atomically: after a crash, it has either the old or the new content.
    pub fn write(&self, profiles: &Profiles) -> Result<()> {
        let failed = |error| Error::file("write", &self.0, &error);
        let folder = self.0.parent().expect("the path has a folder");
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        let temporary = folder.join(format!(".profiles-{}.json", uuid::Uuid::new_v4()));
        let write = || {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(&serde_json::to_vec_pretty(profiles)?)?;
            file.sync_all()?;
            fs::rename(&temporary, &self.0)
        };
        write().map_err(|error| {
            // The temporary file may not exist. The error to report is the first one.
            let _ = fs::remove_file(&temporary);
            failed(error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(token: &str) -> Profile {
        Profile {
            url: "https://acme.example.com".into(),
            username: "ann".into(),
            token: token.into(),
            kind: TokenKind::Login,
            insecure_http: false,
        }
    }

    #[test]
    fn the_file_is_private_and_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = ProfileFile(folder.path().join("farhand/profiles.json"));
        assert!(file.read().unwrap().profiles.is_empty());
        let mut profiles = Profiles { current: Some("b".into()), ..Profiles::default() };
        profiles.profiles.insert("a".into(), profile("one"));
        profiles.profiles.insert("b".into(), profile("two"));
        file.write(&profiles).unwrap();
        file.write(&profiles).unwrap();
        let mode =
            |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let parent = file.0.parent().unwrap();
        assert_eq!((mode(&file.0), mode(parent)), (0o600, 0o700));
        assert_eq!(fs::read_dir(parent).unwrap().count(), 1);
        let read = file.read().unwrap();
        assert_eq!(read.find(None).unwrap().1.token, "two");
        assert_eq!(read.find(Some("a")).unwrap().1.token, "one");
        assert!(read.find(Some("c")).is_none());
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = ProfileFile(folder.path().join("profiles.json"));
        file.write(&Profiles::default()).unwrap();
        fs::set_permissions(&file.0, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(file.read().err().unwrap().to_string().contains("chmod 600"));
    }
}
