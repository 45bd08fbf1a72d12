//! The ends of commands that did not run to their own end, and the exit codes for them.

use farhand_domain::wire::Fin;

/// The exit code of a command that the agent would not run, or that could not be executed; as of a shell.
pub const REFUSED: i64 = 126;
/// The exit code of a command that is not there; as of a shell.
pub const NOT_FOUND: i64 = 127;
/// The exit code of a command whose time was over; as of `timeout`.
pub const TIMED_OUT: i64 = 124;
/// The exit codes of a command that was ended by TERM and by KILL; as of a shell.
pub const TERMINATED: (i64, i64) = (143, 137);

/// The end of a command that was never run, and why.
pub fn failure(exit_code: i64, reason: impl Into<String>) -> Fin {
    Fin {
        success: false,
        result: Some(String::new()),
        elapsed_time: Some(0.0),
        exit_code: Some(exit_code),
        chunks: Some(0),
        output_bytes: None,
        reason: Some(reason.into()),
    }
}

pub fn stopped_before() -> Fin {
    failure(TERMINATED.0, "The agent was stopped before the command ran.")
}

/// The end of a command that ran when the agent died. How long it ran, and what of its output was sent, nobody knows.
pub fn lost(was_there: bool) -> Fin {
    let rest = if was_there { "What was left of it was killed." } else { "How it ended is not known." };
    let result = Some(format!("The agent died while the command ran. {rest}"));
    Fin {
        success: false,
        result,
        elapsed_time: None,
        exit_code: Some(TERMINATED.1),
        chunks: None,
        output_bytes: None,
        reason: None,
    }
}
