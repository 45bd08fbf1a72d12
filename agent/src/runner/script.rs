//! The temporary file of a script.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown};
use std::path::PathBuf;

use farhand_domain::agent::wire::Script;
use uuid::Uuid;

use crate::host::account::Account;

/// A script's temporary file. Dropping it deletes the file.
pub struct ScriptFile(pub PathBuf);

impl ScriptFile {
    /// A new path for a command's script. It is random, because another account of the host could
    /// create a file at a path that it can guess, and so keep the script from running.
    fn new_path(id: Uuid) -> PathBuf {
        let random = fastrand::u64(..);
        std::env::temp_dir().join(format!("{}{random:016x}.script", Self::prefix(id)))
    }

    fn prefix(id: Uuid) -> String {
        format!("farhand-{id}-")
    }

    /// The files of a command's script.
    pub fn all(id: Uuid) -> Vec<Self> {
        let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return Vec::new() };
        let prefix = Self::prefix(id);
        let files = entries.flatten().filter(|entry| {
            entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix))
        });
        files.map(|entry| Self(entry.path())).collect()
    }

    /// Writes a script to a new file that only `account` can access.
    pub fn write(id: Uuid, script: &Script, account: &Account) -> io::Result<Self> {
        let path = Self::new_path(id);
        // Fails if the file exists, because in a folder that every account can write to, an
        // existing file could be a link.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let written = Self(path);
        file.write_all(script.body.as_bytes())?;
        file.set_permissions(Permissions::from_mode(0o700))?;
        if let Some(child_ids) = &account.child_ids {
            fchown(&file, Some(child_ids.uid.as_raw()), Some(child_ids.gid.as_raw()))?;
        }
        Ok(written)
    }
}

impl Drop for ScriptFile {
    fn drop(&mut self) {
        // The script may have deleted its own file.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use farhand_domain::agent::wire::AgentCommand;
    use farhand_domain::hash::sha256;
    use nix::unistd::geteuid;

    use super::*;
    use crate::runner::testing::*;

    fn script(interpreter: &str, body: &str) -> AgentCommand {
        let sha256 = sha256(body);
        let script = Script { interpreter: interpreter.into(), body: body.into(), sha256 };
        AgentCommand { script: Some(script), ..order("script:x@1") }
    }

    #[tokio::test]
    async fn a_script_runs_from_a_private_temporary_file() {
        let order = script("/bin/sh -e", "stat -c '%a %U' $0; echo $0; false; echo no");
        let (fin, _) = run(&order).await;
        let result = fin.result.unwrap();
        let (mode, path) = result.trim_end().split_once('\n').unwrap();
        assert_eq!((fin.exit_code, mode), (Some(1), format!("700 {}", own_name()).as_str()));
        assert!(path.contains(&format!("/farhand-{}-", order.id)), "{path}");
        assert!(!Path::new(path).exists());
        if geteuid().is_root() {
            let order = AgentCommand {
                user: "nobody".into(),
                ..script("sh", "stat -c '%a %U' $0; id -un")
            };
            assert_eq!(run(&order).await.0.result.unwrap(), "700 nobody\nnobody\n");
        }
        let mut other = script("sh", "true");
        other.script.as_mut().unwrap().body.push('x');
        assert!(refusal(&other).await.1.contains("SHA-256"));
        assert_eq!(refusal(&script(" ", "true")).await.0, 127);
        let missing = script("no-such-interpreter", "true");
        assert_eq!(refusal(&missing).await.0, 127);
        assert!(ScriptFile::all(missing.id).is_empty());
        assert_ne!(ScriptFile::new_path(order.id), ScriptFile::new_path(order.id));
    }

    #[tokio::test]
    async fn a_killed_script_leaves_no_file() {
        let order = script("sh", "sleep 60; sleep 60");
        let stops = never();
        let exists = || {
            let files = ScriptFile::all(order.id);
            // A dropped `ScriptFile` deletes its file.
            files.into_iter().map(std::mem::forget).count() > 0
        };
        let kill = async {
            eventually(exists).await;
            stops.killed.cancel();
        };
        let ((fin, _), ()) = tokio::join!(run_until(&order, &stops), kill);
        assert_eq!(fin.exit_code, Some(143));
        assert!(!exists());
    }
}
