//! The agent's built-ins: the commands of orders with the shell `internal` (contract 7.1,
//! agent-protocol 6.7).
//!
//! A built-in starts no process for its requester, so the order's account, environment and timeout
//! do not apply. It does not wait for other commands, because a client may use it to find out why
//! other commands do not end.

use farhand_domain::agent::wire::Fin;

use crate::host::facts;
use crate::runner::fin::NOT_FOUND;
use crate::upgrade::{Upgraded, Upgrader};

/// The `shell` of orders for built-ins.
pub const BUILTIN_SHELL: &str = "internal";
/// The built-in that replaces the agent's program. It runs only if the host's policy allows it.
pub const UPGRADE: &str = "upgrade";
/// The reason why the agent does not restart without a durable journal.
const NOT_DURABLE: &str =
    "it cannot write its state folder, so a restart would lose the state of its commands.";

/// The result of a built-in.
pub struct BuiltinResult {
    pub fin: Fin,
    /// Whether the agent restarts after the fin is queued.
    pub restarts: bool,
}

/// The name of the built-in in a line: its first word.
pub fn name(line: &str) -> &str {
    line.split_whitespace().next().unwrap_or_default()
}

/// Runs a built-in. A restart requires a durable journal (`is_durable`), so that no command is
/// lost.
pub async fn run(line: &str, upgrader: &Upgrader, is_durable: bool) -> BuiltinResult {
    let end = |exit_code, result: &str| BuiltinResult {
        fin: fin(exit_code, result.to_owned()),
        restarts: false,
    };
    let restart = |result: &str| BuiltinResult { fin: fin(0, result.to_owned()), restarts: true };
    let unchanged = |why: &str| end(1, &format!("The agent stays as it is: {why}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["ping"] => end(0, "pong"),
        ["version"] => end(0, facts::VERSION),
        ["restart" | UPGRADE] | [UPGRADE, _] if !is_durable => unchanged(NOT_DURABLE),
        ["restart"] => match upgrader.program().check().await {
            Ok(()) => restart("restarting"),
            Err(why) => end(1, &why),
        },
        [UPGRADE, ref version @ ..] if version.len() < 2 => {
            match upgrader.upgrade(version.first().copied()).await {
                Ok(Upgraded::Already(version)) => end(0, &format!("already {version}")),
                Ok(Upgraded::Replaced(version)) => {
                    restart(&format!("upgraded from {} to {version}, restarting", facts::VERSION))
                }
                Err(why) => unchanged(&format!("{why}.")),
            }
        }
        _ => end(NOT_FOUND, "This agent has no such built-in."),
    }
}

fn fin(exit_code: i64, result: String) -> Fin {
    Fin {
        success: exit_code == 0,
        result: Some(result),
        elapsed_time: Some(0.0),
        exit_code: Some(exit_code),
        chunks: Some(0),
        ..Fin::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::runner::testing::upgrader;

    async fn run_line(line: &str, is_durable: bool) -> (i64, String, bool) {
        let BuiltinResult { fin, restarts } = run(line, &upgrader(), is_durable).await;
        let code = fin.exit_code.unwrap();
        assert_eq!((fin.success, fin.chunks), (code == 0, Some(0)));
        (code, fin.result.unwrap(), restarts)
    }

    #[tokio::test]
    async fn a_builtin_must_match_exactly() {
        assert_eq!(run_line(" ping\n", false).await, (0, "pong".to_owned(), false));
        assert_eq!(run_line("version", false).await, (0, facts::VERSION.to_owned(), false));
        for other in
            ["", "Ping", "ping pong", "ping;", "restart now", "upgrade 1 2", "quit", "exec sh"]
        {
            assert_eq!(
                run_line(other, true).await,
                (127, "This agent has no such built-in.".to_owned(), false),
                "{other}"
            );
        }
    }

    #[tokio::test]
    async fn without_a_durable_journal_it_does_not_restart() {
        for line in ["restart", "upgrade", "upgrade 1.2.3"] {
            let (code, why, restarts) = run_line(line, false).await;
            assert!(code == 1 && why.contains("cannot write its state folder"), "{why}");
            assert!(!restarts);
        }
    }

    #[tokio::test]
    async fn without_a_release_key_it_does_not_upgrade() {
        if option_env!("FARHAND_RELEASE_KEY").is_some_and(|key| !key.is_empty()) {
            return;
        }
        for line in ["upgrade", "upgrade 99.0.0"] {
            let (code, why, restarts) = run_line(line, true).await;
            assert!(code == 1 && why.contains("without a release key") && !restarts, "{why}");
        }
    }
}
