//! The agent's own program: its path and arguments, and how a restart replaces this process.
//!
//! `/proc/self/exe` is not used, because it still names the old file after the binary was replaced.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::time::timeout;

/// The time limit for `--version`.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// How this process was started.
#[derive(Clone, Debug)]
pub struct Program {
    path: OsString,
    arguments: Vec<OsString>,
}

impl Program {
    /// The program of this process. Call it at the start, while the binary certainly exists.
    pub fn current() -> Self {
        let mut words = std::env::args_os();
        let named = words.next().map(PathBuf::from);
        // If the first argument contains a slash, it is the path of the binary, and links in it are
        // not resolved. Without a slash, the shell found the binary in PATH.
        let named = named
            .filter(|name| name.components().count() > 1)
            .and_then(|name| std::path::absolute(name).ok());
        let is_file = |path: &PathBuf| path.is_file();
        let path =
            named.filter(is_file).or_else(|| std::env::current_exe().ok()).unwrap_or_default();
        Self { path: path.into(), arguments: words.collect() }
    }

    /// The path of the binary. Links in it are not resolved.
    pub fn path(&self) -> &Path {
        Path::new(&self.path)
    }

    /// The arguments of this process, without the program's name.
    pub fn arguments(&self) -> &[OsString] {
        &self.arguments
    }

    /// Checks that the file at the path is a program that starts, by running it with `--version`.
    ///
    /// # Errors
    /// The reason why it does not start, as a sentence for the requester of the restart.
    pub async fn check(&self) -> Result<(), String> {
        let shown = self.path.display();
        let mut command = tokio::process::Command::new(&self.path);
        command
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        match timeout(VERSION_TIMEOUT, command.status()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => {
                Err(format!("The agent stays as it is: {shown} --version ends with {status}."))
            }
            Ok(Err(error)) => {
                Err(format!("The agent stays as it is: {shown} cannot be started: {error}."))
            }
            Err(_) => Err(format!("The agent stays as it is: {shown} --version does not end.")),
        }
    }

    /// Replaces this process with the program, which keeps the process number, arguments and
    /// environment. Returns only if that fails.
    pub fn replace(&self) -> io::Error {
        Command::new(&self.path).args(&self.arguments).exec()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn a_program_that_does_not_start_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent");
        let program = Program { path: path.clone().into(), arguments: Vec::new() };
        assert!(program.check().await.unwrap_err().contains("cannot be started"));
        // A separate process writes the file. If this process wrote the file, a child that another
        // test forks could hold the file open for writing. Then the file could not be executed.
        let write_program = |text: &str| {
            let written = directory.path().join("text");
            std::fs::write(&written, text).unwrap();
            assert!(
                Command::new("install")
                    .args(["-m", "755"])
                    .args([&written, &path])
                    .status()
                    .unwrap()
                    .success()
            );
        };
        write_program("garbage");
        assert!(program.check().await.unwrap_err().contains("cannot be started"));
        for (end, is_good) in [("exit 0", true), ("exit 1", false), ("kill -9 $$", false)] {
            write_program(&format!("#!/bin/sh\n[ \"$1\" = --version ] && {end}\n"));
            assert_eq!(program.check().await.is_ok(), is_good, "{end}");
        }
    }

    #[test]
    fn the_program_is_the_running_binary() {
        let program = Program::current();
        assert_eq!(std::fs::canonicalize(&program.path).unwrap(), std::env::current_exe().unwrap());
    }
}
