//! Starts the process of an order: account, program, arguments, stdin and directory.

use std::ffi::CString;
use std::fs::File;
use std::future::pending;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;

use farhand_domain::agent::wire::{AgentCommand, Fin};
use farhand_domain::hash::sha256;
use tokio::process::Command;

use crate::host::system;
use crate::journal::writer::JournalWriter;
use crate::runner::environment::set_environment;
use crate::runner::fin::{NOT_FOUND, REFUSED, failure};
use crate::runner::gate::ExecGate;
use crate::runner::host_settings::{Admitted, HostSettings};
use crate::runner::script::ScriptFile;
use crate::runner::spawn::{CANNOT_ENTER, SpawnOptions, SpawnedCommand, spawn};

/// The `shell` of orders that run a program of the host.
const SYSTEM_SHELL: &str = "system";

/// Starts the process of a command. The process executes nothing before the journal has its
/// identity.
///
/// # Errors
/// The fin of a command that cannot be run.
pub async fn start(
    order: &AgentCommand,
    host: &HostSettings,
    journal: &JournalWriter,
) -> Result<SpawnedCommand, Fin> {
    let failed = || failure(REFUSED, "The command could not be started.");
    let (child_end, gate) = ExecGate::new(journal).map_err(|_| failed())?.unzip();
    let (for_start, host) = (order.clone(), host.clone());
    // On a blocking thread, because account databases and home directories can be on the network.
    let mut started = tokio::task::spawn_blocking(move || prepare(&for_start, &host, child_end));
    let opened = async {
        if let Some(gate) = gate {
            gate.open(order.id, journal).await;
        }
        pending().await
    };
    tokio::select! {
        biased;
        started = &mut started => started.unwrap_or_else(|_| Err(failed())),
        () = opened => Err(failed()),
    }
}

/// Checks an order and starts its process, which first waits at the gate if `gate` is given.
/// Blocks.
///
/// # Errors
/// The fin of a command that cannot be run.
fn prepare(
    order: &AgentCommand,
    host: &HostSettings,
    gate: Option<OwnedFd>,
) -> Result<SpawnedCommand, Fin> {
    let refused = |why: String| failure(REFUSED, why);
    let Admitted { account, no_new_privs } = host.admit(order).map_err(refused)?;
    if order.shell != SYSTEM_SHELL {
        return Err(refused("This agent has no such shell.".to_owned()));
    }
    let blanks = |text: &str| text.split_ascii_whitespace().map(str::to_owned).collect();
    let mut script = None;
    let words: Vec<String> = match order {
        AgentCommand { script: Some(found), .. } => {
            if !sha256(&found.body).eq_ignore_ascii_case(&found.sha256) {
                return Err(refused("The script does not match its SHA-256.".to_owned()));
            }
            let file = ScriptFile::write(order.id, found, &account)
                .map_err(|error| refused(format!("The script could not be written: {error}.")))?;
            let path = file.0.to_string_lossy().into_owned();
            script = Some(file);
            let mut words: Vec<String> = blanks(&found.interpreter);
            if !words.is_empty() {
                words.push(path);
            }
            words
        }
        AgentCommand { argv: Some(words), .. } => words.clone(),
        AgentCommand { allow_sh: true, line, .. } => {
            vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()]
        }
        AgentCommand { line, .. } => blanks(line),
    };
    let (program, arguments) =
        words.split_first().ok_or_else(|| failure(NOT_FOUND, "The command names no program."))?;
    let mut command = Command::new(program);
    command.args(arguments);
    set_environment(&mut command, &account, order).map_err(refused)?;
    let options =
        SpawnOptions {
            input: order
                .stdin
                .as_deref()
                .map(input)
                .transpose()
                .map_err(|_| refused("The input could not be prepared.".into()))?,
            cgroup: host.cgroups.create(order.id),
            directory: order.cwd.as_deref().map(CString::new).transpose().map_err(|_| {
                refused("The directory's name contains a NUL character.".to_owned())
            })?,
            gate,
            no_new_privs,
        };
    let started = spawn(command, account, options).map_err(|error| {
        match (error.raw_os_error(), &order.cwd) {
            (Some(code @ CANNOT_ENTER..), Some(cwd)) => {
                let why = io::Error::from_raw_os_error(code - CANNOT_ENTER);
                refused(format!("The directory {cwd} cannot be entered as {}: {why}.", order.user))
            }
            _ if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                failure(NOT_FOUND, format!("{program}: not found"))
            }
            _ => refused(format!("The command could not be started: {error}.")),
        }
    })?;
    Ok(SpawnedCommand { script, ..started })
}

/// An anonymous file with a command's stdin.
fn input(text: &str) -> io::Result<File> {
    let mut file = system::anonymous_file()?;
    file.write_all(text.as_bytes())?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;
    use crate::runner::testing::*;

    #[tokio::test]
    async fn without_a_shell_a_line_is_split_at_blanks() {
        let words = |line: &str| AgentCommand { allow_sh: false, ..order(line) };
        let (fin, _) = run(&words("  echo  'a b' | $HOME ")).await;
        assert_eq!(fin.result.unwrap(), "'a b' | $HOME\n");
        assert_eq!(
            refusal(&words("no-such-program-1 x")).await,
            (127, "no-such-program-1: not found".to_owned())
        );
        assert_eq!(refusal(&words("/etc/passwd")).await.0, 126);
        assert_eq!(refusal(&words(" \t")).await, (127, "The command names no program.".to_owned()));
    }

    #[tokio::test]
    async fn argv_is_not_interpreted_by_a_shell() {
        let argv = |words: &[&str]| {
            let argv = Some(words.iter().map(|word| (*word).to_owned()).collect());
            // The order also has a line, which is ignored.
            AgentCommand { argv, ..order("echo line") }
        };
        let (fin, _) = run(&argv(&["printf", "%s|", "a b", "$HOME;id", "", "*", "\"'"])).await;
        assert_eq!(fin.result.unwrap(), "a b|$HOME;id||*|\"'|");
        assert_eq!(refusal(&argv(&[])).await.0, 127);
        assert_eq!(refusal(&argv(&[""])).await.0, 127);
        assert_eq!(
            refusal(&argv(&["no such program"])).await,
            (127, "no such program: not found".to_owned())
        );
        assert_eq!(refusal(&argv(&["echo", "a\0b"])).await.0, 126);
    }

    #[tokio::test]
    async fn a_command_reads_the_stdin_of_its_order() {
        let text = "é\n\0".repeat(20_000);
        let order = AgentCommand { stdin: Some(text.clone()), ..order("cat") };
        let (fin, _) = run(&order).await;
        assert!(fin.exit_code == Some(0) && fin.result.unwrap() == text);
        let (fin, _) = run(&AgentCommand { stdin: Some(String::new()), ..order }).await;
        assert_eq!(fin.result.unwrap(), "");
    }

    #[tokio::test]
    async fn invalid_orders_are_refused() {
        assert_eq!(refusal(&AgentCommand { shell: "fish".into(), ..order("x") }).await.0, 126);
        assert_eq!(refusal(&AgentCommand { user: String::new(), ..order("id") }).await.0, 126);
        assert_eq!(
            refusal(&AgentCommand { user: "no-such-user".into(), ..order("id") }).await.0,
            126
        );
        assert_eq!(
            refusal(&AgentCommand { group: "no-such-group".into(), ..order("id") }).await.0,
            126
        );
        assert_eq!(refusal(&order("a\0b")).await.0, 126);
        for env in [json!({"A": 1}), json!({"": "x"}), json!({"A=B": "x"}), json!({"A": "\u{0}"})] {
            let env = env.as_object().cloned();
            assert_eq!(refusal(&AgentCommand { env, ..order("true") }).await.0, 126);
        }
    }
}
