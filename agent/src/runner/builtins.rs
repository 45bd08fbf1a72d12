//! The agent's built-ins: the commands of orders with the shell `internal` (contract 7.1,
//! agent-protocol 6.7).
//!
//! A built-in starts no process, so the order's account, environment and timeout do not apply. It
//! does not wait for other commands, because a client may use it to find out why other commands do
//! not end.

use farhand_domain::wire::Fin;

use crate::host::facts;
use crate::host::program::Program;
use crate::runner::fin::NOT_FOUND;

/// The `shell` of orders for built-ins.
pub const BUILTIN_SHELL: &str = "internal";

/// The result of a built-in.
pub struct BuiltinResult {
    pub fin: Fin,
    /// Whether the agent restarts after the fin is queued.
    pub restarts: bool,
}

/// Runs a built-in. A restart requires a durable journal (`is_durable`), so that no command is
/// lost.
pub async fn run(line: &str, program: &Program, is_durable: bool) -> BuiltinResult {
    let plain = |exit_code, result: &str| BuiltinResult {
        fin: fin(exit_code, result.to_owned()),
        restarts: false,
    };
    match line.trim() {
        "ping" => plain(0, "pong"),
        "version" => plain(0, facts::VERSION),
        "restart" if !is_durable => plain(
            1,
            "The agent stays as it is: it cannot write its state folder, so a restart would lose the state of \
             its commands.",
        ),
        "restart" => match program.check().await {
            Ok(()) => BuiltinResult { fin: fin(0, "restarting".to_owned()), restarts: true },
            Err(why) => plain(1, &why),
        },
        "upgrade" => plain(
            NOT_FOUND,
            "This agent does not upgrade itself. Replace its binary on the server, then send the internal command restart.",
        ),
        _ => plain(NOT_FOUND, "This agent has no such built-in."),
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

    async fn run_line(line: &str, is_durable: bool) -> (i64, String, bool) {
        let BuiltinResult { fin, restarts } = run(line, &Program::current(), is_durable).await;
        let code = fin.exit_code.unwrap();
        assert_eq!((fin.success, fin.chunks), (code == 0, Some(0)));
        (code, fin.result.unwrap(), restarts)
    }

    #[tokio::test]
    async fn a_builtin_must_match_exactly() {
        assert_eq!(run_line(" ping\n", false).await, (0, "pong".to_owned(), false));
        assert_eq!(run_line("version", false).await, (0, facts::VERSION.to_owned(), false));
        for other in ["", "Ping", "ping pong", "ping;", "restart now", "quit", "exec sh"] {
            assert_eq!(
                run_line(other, true).await,
                (127, "This agent has no such built-in.".to_owned(), false),
                "{other}"
            );
        }
        let (code, why, restarts) = run_line("upgrade", true).await;
        assert!(code == 127 && why.contains("Replace its binary") && !restarts, "{why}");
    }

    #[tokio::test]
    async fn without_a_durable_journal_it_does_not_restart() {
        let (code, why, restarts) = run_line("restart", false).await;
        assert!(code == 1 && why.contains("stays as it is") && !restarts, "{why}");
    }
}
