//! The agent's config file: its text, and how it and the policy are written.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use farhand_domain::secret::Secret;
use uuid::Uuid;

use crate::config::Service;

/// The first lines of an agent's config file: the service and the identity of the server.
pub fn config_text(service: &Service, id: Uuid, key: &Secret) -> String {
    // Only the URL can contain characters that TOML requires to be escaped.
    let url = service.to_string().replace('\\', "\\\\").replace('"', "\\\"");
    // The user allowed plain http. Without this line the agent refuses to start.
    let plain_http = if service.is_insecure() { "allow_plain_http = true\n" } else { "" };
    format!("url = \"{url}\"\nid = \"{id}\"\nkey = \"{}\"\n{plain_http}", key.expose())
}

/// A config file under a temporary name in its final folder, so that the final path never has an
/// incomplete file. Dropping the draft deletes the temporary file.
pub struct Draft<'a> {
    path: &'a Path,
    temporary: PathBuf,
    file: File,
    force: bool,
}

impl<'a> Draft<'a> {
    /// Creates the temporary file, and checks that the final path can be used. With `force`, the
    /// file may exist, and is replaced.
    ///
    /// # Errors
    /// The reason why the path cannot be used, in one line.
    pub fn begin(path: &'a Path, force: bool) -> Result<Self, String> {
        if !force && exists(path) {
            return Err(format!(
                "{}: a file is there already; use --force to replace it",
                path.display()
            ));
        }
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let describe = |error: io::Error| format!("{}: {error}", folder.display());
        // Other accounts may enter the folder, because the agent may run as another account.
        DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(describe)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = folder.join(format!(".{name}.{:016x}", fastrand::u64(..)));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(describe)?;
        let draft = Self { path, temporary, file, force };
        if path.is_dir() {
            return Err(format!("{}: this is a folder", path.display()));
        }
        Ok(draft)
    }

    /// Lets all accounts read the file, because it contains no credential.
    ///
    /// # Errors
    /// The reason, in one line.
    pub fn readable_by_all(self) -> Result<Self, String> {
        let set = self.file.set_permissions(fs::Permissions::from_mode(0o644));
        set.map_err(|error| format!("{}: {error}", self.path.display()))?;
        Ok(self)
    }

    /// Writes the file and moves it to its final path.
    ///
    /// # Errors
    /// The reason, in one line.
    pub fn finish(mut self, content: &str) -> Result<(), String> {
        let mut write = || {
            self.file.write_all(content.as_bytes())?;
            self.file.sync_all()?;
            if self.force {
                fs::rename(&self.temporary, self.path)
            } else {
                link_new(&self.temporary, self.path)
            }
        };
        write().map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // Fails after a rename, because the file has moved.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Links a file to a new path. Fails if the path exists.
fn link_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        // Some file systems have no hard links.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists && !exists(to) => {
            fs::rename(from, to)
        }
        done => done,
    }
}

/// Whether a path exists. A dangling link counts too.
fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn a_file_is_complete_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b/agent.toml");
        Draft::begin(&path, false).unwrap().finish("one").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o755);
        assert!(Draft::begin(&path, false).err().unwrap().contains("a file is there already"));
        Draft::begin(&path, true).unwrap().finish("two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(names(path.parent().unwrap()), ["agent.toml"]);
    }

    #[test]
    fn a_file_created_concurrently_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.toml");
        let draft = Draft::begin(&path, false).unwrap();
        fs::write(&path, "another").unwrap();
        assert!(draft.finish("one").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "another");
        assert_eq!(names(directory.path()), ["agent.toml"]);
    }

    #[test]
    fn an_unusable_path_is_refused_before_registering() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Draft::begin(directory.path(), true).err().unwrap().ends_with("this is a folder"));
        assert!(Draft::begin(Path::new("/dev/null/agent.toml"), false).is_err());
        std::os::unix::fs::symlink("/no/such/file", directory.path().join("link")).unwrap();
        assert!(
            Draft::begin(&directory.path().join("link"), false)
                .err()
                .unwrap()
                .contains("a file is there already")
        );
        assert_eq!(names(directory.path()), ["link"]);
    }

    #[test]
    fn plain_http_to_another_host_is_written_as_allowed() {
        let id = Uuid::from_u128(1);
        let text =
            |url: &str| config_text(&Service::parse(url).unwrap(), id, &Secret::new("sesame"));
        let secure = format!("url = \"https://a.example/base\"\nid = \"{id}\"\nkey = \"sesame\"\n");
        assert_eq!(text("https://a.example/base/"), secure);
        let insecure = format!(
            "url = \"http://a.example\"\nid = \"{id}\"\nkey = \"sesame\"\nallow_plain_http = true\n"
        );
        assert_eq!(text("http://a.example"), insecure);
    }
}
