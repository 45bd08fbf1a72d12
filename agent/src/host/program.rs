//! The agent's own program: how it was started, and how another process of it takes this one's
//! place.
//!
//! `/proc/self/exe` is not used: after the file was replaced, it still names the old one.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::time::timeout;

/// How long `--version` may take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// How this process was started.
#[derive(Clone, Debug)]
pub struct Program {
    path: OsString,
    arguments: Vec<OsString>,
}

impl Program {
    /// Of this process. For its beginning, as long as the file is certainly there.
    pub fn current() -> Self {
        let mut words = std::env::args_os();
        let named = words.next().map(PathBuf::from);
        // With a slash in it, it is the path that was started, links included. Else who started it
        // searched for it.
        let named = named
            .filter(|name| name.components().count() > 1)
            .and_then(|name| std::path::absolute(name).ok());
        let is_file = |path: &PathBuf| path.is_file();
        let path =
            named.filter(is_file).or_else(|| std::env::current_exe().ok()).unwrap_or_default();
        Self { path: path.into(), arguments: words.collect() }
    }

    /// Checks that what is at the path now is a program that starts.
    ///
    /// # Errors
    /// Why it is not, in a sentence for the one who sent the command.
    pub async fn check(&self) -> Result<(), String> {
        let shown = self.path.display();
        let mut command = tokio::process::Command::new(&self.path);
        command
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        match timeout(ANSWERS_WITHIN, command.status()).await {
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

    /// Replaces this process by the program, with the same pid, arguments and environment. Returns
    /// only if that fails.
    pub fn replace(&self) -> io::Error {
        Command::new(&self.path).args(&self.arguments).exec()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn what_does_not_start_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent");
        let program = Program { path: path.clone().into(), arguments: Vec::new() };
        assert!(program.check().await.unwrap_err().contains("cannot be started"));
        // Written by a process of its own: what this one writes could be open in what another test
        // just starts.
        let place = |text: &str| {
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
        place("garbage");
        assert!(program.check().await.unwrap_err().contains("cannot be started"));
        for (end, is_good) in [("exit 0", true), ("exit 1", false), ("kill -9 $$", false)] {
            place(&format!("#!/bin/sh\n[ \"$1\" = --version ] && {end}\n"));
            assert_eq!(program.check().await.is_ok(), is_good, "{end}");
        }
    }

    #[test]
    fn it_knows_its_own_path() {
        let program = Program::current();
        assert_eq!(std::fs::canonicalize(&program.path).unwrap(), std::env::current_exe().unwrap());
    }
}
