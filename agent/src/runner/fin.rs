//! The ends of commands that did not run to their own end, and the exit codes for them.

use farhand_domain::wire::Fin;

/// The exit code of a command that the agent would not run, or that could not be executed; as of a shell.
pub const REFUSED: i64 = 126;
/// The exit code of a command that is not there; as of a shell.
pub const NOT_FOUND: i64 = 127;
/// The exit code of a command whose time was over; as of `timeout`.
pub const TIMED_OUT: i64 = 124;
/// The exit code of a command that was ended by TERM; as of a shell.
pub const TERMINATED: i64 = 143;
/// The exit code of a command that was ended by KILL; as of a shell.
pub const KILLED: i64 = 137;

/// The end of a command that was never run, and why.
pub fn failure(exit_code: i64, reason: impl Into<String>) -> Fin {
    Fin {
        result: Some(String::new()),
        elapsed_time: Some(0.0),
        exit_code: Some(exit_code),
        chunks: Some(0),
        reason: Some(reason.into()),
        ..Fin::default()
    }
}

/// The end of a command that still waited when the agent was stopped.
pub fn stopped_before() -> Fin {
    failure(TERMINATED, "The agent was stopped before the command ran.")
}

/// The end of a command that ran when the agent died. How long it ran, and what of its output was sent, nobody knows.
pub fn lost(was_there: bool) -> Fin {
    let rest = if was_there { "What was left of it was killed." } else { "How it ended is not known." };
    let result = Some(format!("The agent died while the command ran. {rest}"));
    Fin { result, exit_code: Some(KILLED), ..Fin::default() }
}
