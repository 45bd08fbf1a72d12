//! The file of the agent's program, and its replacement with a new version (contract 17.4).
//!
//! Files beside the program, whose names contain the server's id, because several agents of one
//! host may share a program:
//!
//! - `new`: the new program, before it replaces the old one;
//! - `previous`: the old program, until the new one starts;
//! - `tried`: the old program, from the start of the new one until the new one has connected.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::host::program::Program;

/// The endings of the files beside the program.
const NEW: &str = "new";
const PREVIOUS: &str = "previous";
const TRIED: &str = "tried";
/// The flag of `run` that checks the connection to the service and exits.
pub const CHECK_FLAG: &str = "--check-connection";
/// The time limit for a new program to check its connection.
const CHECK_TIMEOUT: Duration = Duration::from_secs(45);
/// The pause between attempts to start a file that is still open for writing.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// The maximum number of these attempts.
const BUSY_ATTEMPTS: u32 = 40;
/// The maximum length of a program's message in a result, in characters.
const MAX_MESSAGE_CHARS: usize = 300;

/// The paths of the program and of the files beside it.
#[derive(Clone, Debug)]
pub struct ProgramFile {
    path: PathBuf,
    new: PathBuf,
    previous: PathBuf,
    tried: PathBuf,
}

/// What the start of a program means for an upgrade.
#[derive(Debug)]
pub enum Start {
    /// No upgrade is in progress.
    Usual,
    /// The program is new. It must connect, or the previous one returns.
    Trial(ProgramFile),
    /// The program is new, and its first start ended before it connected.
    Failed(ProgramFile),
}

/// Deletes the files that earlier upgrades left beside a program. Call this after the program was
/// replaced in another way.
pub fn forget_upgrades(path: &Path) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let start = format!(".{name}.");
    for entry in path.parent().and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten() {
        let Ok(entry) = entry else { continue };
        let beside = entry.file_name();
        let Some(rest) = beside.to_str().and_then(|beside| beside.strip_prefix(&start)) else {
            continue;
        };
        if rest.split_once('.').is_some_and(|(id, kind)| {
            Uuid::parse_str(id).is_ok() && [NEW, PREVIOUS, TRIED].contains(&kind)
        }) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

impl ProgramFile {
    /// The files of the agent of the server `id`. Follows links, so that a link stays a link.
    ///
    /// # Errors
    /// The program's file does not exist any more.
    pub fn new(program: &Program, id: Uuid) -> io::Result<Self> {
        let path = fs::canonicalize(program.path())?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let beside = |kind: &str| path.with_file_name(format!(".{name}.{id}.{kind}"));
        let [new, previous, tried] = [NEW, PREVIOUS, TRIED].map(beside);
        Ok(Self { path, new, previous, tried })
    }

    /// Writes the new program, with the mode of the current one.
    ///
    /// # Errors
    /// The folder cannot be written, or the disk is full.
    pub fn write_new(&self, content: &[u8]) -> io::Result<()> {
        self.discard_new();
        let mode = fs::metadata(&self.path)?.permissions();
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.new)?;
        file.write_all(content)?;
        file.set_permissions(mode)?;
        file.sync_all()
    }

    /// Deletes the new program, if it is there.
    pub fn discard_new(&self) {
        let _ = fs::remove_file(&self.new);
    }

    /// Lets the new program check its connection, with the arguments and the environment of this
    /// process.
    ///
    /// # Errors
    /// The reason why the new program cannot connect, in one line.
    pub async fn check_new(&self, arguments: &[OsString]) -> Result<(), String> {
        let mut attempts = 0;
        let child = loop {
            let mut command = Command::new(&self.new);
            command
                .args(arguments)
                .arg(CHECK_FLAG)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .kill_on_drop(true);
            match command.spawn() {
                // A process that another thread just forked has the file open until it executes its
                // own program.
                Err(error)
                    if error.kind() == io::ErrorKind::ExecutableFileBusy
                        && attempts < BUSY_ATTEMPTS =>
                {
                    attempts += 1;
                    sleep(BUSY_PAUSE).await;
                }
                child => break child.map_err(|error| format!("it cannot be started: {error}"))?,
            }
        };
        let output = match timeout(CHECK_TIMEOUT, child.wait_with_output()).await {
            Ok(output) => output.map_err(|error| error.to_string())?,
            Err(_) => return Err(format!("it does not answer in {} s", CHECK_TIMEOUT.as_secs())),
        };
        if output.status.success() {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        let last: String = last.chars().take(MAX_MESSAGE_CHARS).collect();
        Err(format!("{}: {last}", output.status))
    }

    /// Replaces the program with the new one, and keeps the old one as `previous`.
    ///
    /// # Errors
    /// A file cannot be linked or renamed. The program is unchanged.
    pub fn replace(&self) -> io::Result<()> {
        for old in [&self.previous, &self.tried] {
            match fs::remove_file(old) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        // Some file systems have no hard links.
        fs::hard_link(&self.path, &self.previous)
            .or_else(|_| fs::copy(&self.path, &self.previous).map(drop))?;
        fs::rename(&self.new, &self.path).inspect_err(|_| {
            let _ = fs::remove_file(&self.previous);
        })
    }

    /// Finds out whether this start of the agent is the first one after an upgrade. Call it once.
    pub fn start(self) -> Start {
        if self.tried.exists() {
            return Start::Failed(self);
        }
        match fs::rename(&self.previous, &self.tried) {
            Ok(()) => Start::Trial(self),
            Err(_) => Start::Usual,
        }
    }

    /// Deletes the old program, because the new one has connected.
    pub fn keep_new(&self) {
        let _ = fs::remove_file(&self.tried);
    }

    /// Replaces the new program with the old one.
    ///
    /// # Errors
    /// The file cannot be renamed.
    pub fn go_back(&self) -> io::Result<()> {
        fs::rename(&self.tried, &self.path)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A program file with the content `old`.
    fn program(folder: &Path) -> ProgramFile {
        let path = folder.join("agent");
        fs::write(&path, "old").unwrap();
        let beside = |kind: &str| folder.join(format!(".agent.{}.{kind}", Uuid::nil()));
        ProgramFile { path, new: beside(NEW), previous: beside(PREVIOUS), tried: beside(TRIED) }
    }

    fn content(file: &ProgramFile) -> String {
        fs::read_to_string(&file.path).unwrap()
    }

    #[test]
    fn a_new_program_stays_after_it_connected() {
        let folder = tempfile::tempdir().unwrap();
        let file = program(folder.path());
        assert!(matches!(file.clone().start(), Start::Usual));
        file.write_new(b"new").unwrap();
        assert_eq!(content(&file), "old");
        file.replace().unwrap();
        assert_eq!(content(&file), "new");
        let Start::Trial(trial) = file.clone().start() else { panic!() };
        trial.keep_new();
        assert!(matches!(file.clone().start(), Start::Usual));
        assert_eq!(content(&file), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_second_start_without_a_connection_goes_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = program(folder.path());
        file.write_new(b"new").unwrap();
        file.replace().unwrap();
        assert!(matches!(file.clone().start(), Start::Trial(_)));
        let Start::Failed(failed) = file.clone().start() else { panic!() };
        failed.go_back().unwrap();
        assert_eq!(content(&file), "old");
        assert!(matches!(file.start(), Start::Usual));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_replacement_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = program(folder.path());
        assert!(file.replace().is_err());
        assert_eq!(content(&file), "old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_installed_program_forgets_upgrades() {
        let folder = tempfile::tempdir().unwrap();
        let file = program(folder.path());
        let other = folder.path().join(".agent.toml.tried");
        for path in [&file.new, &file.previous, &file.tried, &other] {
            fs::write(path, "").unwrap();
        }
        forget_upgrades(&file.path);
        assert!(file.path.exists() && other.exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
