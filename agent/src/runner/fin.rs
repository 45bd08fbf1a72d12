//! Fins of commands that did not run or did not end by themselves, and their exit codes.

use farhand_domain::wire::Fin;

/// Refused, or not executable. The same number as a shell's.
pub const REFUSED: i64 = 126;
/// The program was not found. The same number as a shell's.
pub const NOT_FOUND: i64 = 127;
/// The timeout was over. The same number as that of `timeout`.
pub const TIMED_OUT: i64 = 124;
/// Ended by TERM. The same number as a shell's.
pub const TERMINATED: i64 = 143;
/// Ended by KILL. The same number as a shell's.
pub const KILLED: i64 = 137;

/// The fin of a command that was never run, and why.
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

/// The fin of a command that was killed while it waited.
pub fn killed_before() -> Fin {
    failure(TERMINATED, "The command was killed before it ran.")
}

/// The fin of a command that still waited when the agent was stopped.
pub fn stopped_before() -> Fin {
    failure(TERMINATED, "The agent was stopped before the command ran.")
}

/// The fin of a command that ran when the agent died. Its duration and its number of chunks are not
/// known.
pub fn lost(was_there: bool) -> Fin {
    let rest =
        if was_there { "What was left of it was killed." } else { "How it ended is not known." };
    let result = Some(format!("The agent died while the command ran. {rest}"));
    Fin { result, exit_code: Some(KILLED), ..Fin::default() }
}
