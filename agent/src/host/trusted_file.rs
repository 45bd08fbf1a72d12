//! Opens a file that only root can change (agent-protocol 7.3).
//!
//! The folders of the file are checked too, as sshd(8) does with its own files: an account that can
//! write to one of them could put another file in the place of this one.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::unistd::{Uid, geteuid};

/// The bits of a mode with which other accounts than the owner can write.
const OTHERS_WRITE: u32 = 0o022;
/// The bit of a folder in which an account can replace its own entries only.
const STICKY: u32 = 0o1000;

/// The reason why a file is not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileError {
    /// The file does not exist. Its folders were checked.
    Absent,
    /// The file must not be used, with the reason.
    Refused(String),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        if is_absent(&error) { Self::Absent } else { Self::Refused(error.to_string()) }
    }
}

pub fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Opens a file that only root can change. A link is refused.
pub fn open(path: &Path) -> Result<File, FileError> {
    check_folders(path, geteuid())?;
    let file = open_plain(path)?;
    // Checks the open file, so that it cannot be replaced between the check and the read.
    let metadata = file.metadata()?;
    check_owner(metadata.uid(), metadata.mode()).map_err(|why| FileError::Refused(why.into()))?;
    Ok(file)
}

/// Opens a file that is neither a link nor anything else than a file. Any account may own it.
pub fn open_plain(path: &Path) -> Result<File, FileError> {
    // Without `O_NONBLOCK`, opening a FIFO would wait for its writer.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => FileError::Refused("it is a link".to_owned()),
        _ => error.into(),
    })?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(FileError::Refused("it is not a file".to_owned()))
    }
}

/// Checks that only root can write a file.
fn check_owner(uid: u32, mode: u32) -> Result<(), &'static str> {
    if uid != 0 {
        Err("its owner is not root")
    } else if mode & OTHERS_WRITE != 0 {
        Err("accounts other than root can write to it")
    } else {
        Ok(())
    }
}

/// Checks each folder of a path up to the root: only root and `own` can replace its entries.
/// Checks the folders that links lead to as well.
fn check_folders(path: &Path, own: Uid) -> Result<(), FileError> {
    let path = std::path::absolute(path)?;
    let folder = path.parent().unwrap_or(&path);
    let resolved = fs::canonicalize(folder).ok();
    for folder in folder.ancestors().chain(resolved.iter().flat_map(|folder| folder.ancestors())) {
        let metadata = match fs::metadata(folder) {
            Ok(metadata) => metadata,
            Err(error) if is_absent(&error) => continue,
            Err(error) => {
                return Err(FileError::Refused(format!("{}: {error}", folder.display())));
            }
        };
        if !is_safe_folder(metadata.uid(), metadata.mode(), own) {
            return Err(FileError::Refused(format!(
                "accounts other than root can change the folder {}",
                folder.display()
            )));
        }
    }
    Ok(())
}

/// Whether only root and `own` can replace the entries of a folder that belong to root.
fn is_safe_folder(uid: u32, mode: u32, own: Uid) -> bool {
    (uid == 0 || uid == own.as_raw()) && (mode & OTHERS_WRITE == 0 || mode & STICKY != 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::PathBuf;

    use nix::sys::stat::Mode;

    use super::*;

    fn refusal(path: &Path) -> String {
        match open(path) {
            Err(FileError::Refused(why)) => why,
            other => panic!("{}: {other:?}", path.display()),
        }
    }

    fn write(path: &Path) {
        fs::write(path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    }

    #[test]
    fn only_a_file_of_root_is_valid() {
        assert!(check_owner(0, 0o100_644).is_ok() && check_owner(0, 0o100_600).is_ok());
        assert!(check_owner(0, 0o100_664).is_err() && check_owner(0, 0o100_646).is_err());
        assert!(check_owner(1_000, 0o100_600).is_err());
    }

    #[test]
    fn only_root_and_the_agent_may_own_a_folder() {
        let (root, own) = (Uid::from_raw(0), Uid::from_raw(1_000));
        for (uid, mode, agent, is_safe) in [
            (0, 0o755, root, true),
            (0, 0o755, own, true),
            (0, 0o1777, root, true),
            (0, 0o777, root, false),
            (0, 0o775, root, false),
            (1_000, 0o700, own, true),
            (1_000, 0o700, root, false),
            (1_001, 0o700, own, false),
            (1_000, 0o770, own, false),
        ] {
            assert_eq!(is_safe_folder(uid, mode, agent), is_safe, "{uid} {mode:o} {agent}");
        }
    }

    #[test]
    fn a_link_and_what_is_no_file_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write(&at("file"));
        symlink(at("file"), at("link")).unwrap();
        nix::unistd::mkfifo(&at("fifo"), Mode::S_IRUSR).unwrap();
        assert_eq!(refusal(&at("link")), "it is a link");
        for other in [at("fifo"), folder.path().to_owned()] {
            assert_eq!(refusal(&other), "it is not a file");
        }
        assert!(matches!(open(&at("missing")), Err(FileError::Absent)));
        assert!(matches!(open(&at("file/x")), Err(FileError::Absent)));
        match geteuid().is_root() {
            true => assert!(open(&at("file")).is_ok()),
            false => assert_eq!(refusal(&at("file")), "its owner is not root"),
        }
    }

    #[test]
    fn a_folder_that_others_can_change_is_refused_also_above_and_without_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let inner: PathBuf = folder.path().join("above/inner");
        fs::create_dir_all(&inner).unwrap();
        let above = inner.parent().unwrap();
        write(&inner.join("file"));
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for (changed, mode) in [(&*inner, 0o775), (&*inner, 0o757), (above, 0o777)] {
            set(changed, mode);
            let expected =
                format!("accounts other than root can change the folder {}", changed.display());
            for name in ["file", "missing"] {
                assert_eq!(refusal(&inner.join(name)), expected);
            }
            // The same through a link to the folder.
            let link = folder.path().join("link");
            symlink(&inner, &link).unwrap();
            assert!(refusal(&link.join("file")).contains("can change the folder"));
            fs::remove_file(&link).unwrap();
            set(changed, 0o755);
        }
        if geteuid().is_root() {
            assert!(open(&inner.join("file")).is_ok());
            chown(above, Some(1), None).unwrap();
            assert!(refusal(&inner.join("file")).ends_with(&above.display().to_string()));
        }
    }
}
