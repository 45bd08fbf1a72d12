//! Fins of commands that did not run or whose end is unknown, and the exit codes of fins.

use farhand_domain::agent::wire::Fin;

/// The command was refused, or its program is not executable. A shell uses the same code.
pub const REFUSED: i64 = 126;
/// The program was not found. A shell uses the same code.
pub const NOT_FOUND: i64 = 127;
/// The timeout has passed. `timeout(1)` uses the same code.
pub const TIMED_OUT: i64 = 124;
/// TERM ended the command. A shell uses the same code.
pub const TERMINATED: i64 = 143;
/// KILL ended the command. A shell uses the same code.
pub const KILLED: i64 = 137;

/// The fin of a command that was not run. `reason` is one sentence.
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

/// The fin of a command that was killed before it ran.
pub fn killed_before_start() -> Fin {
    failure(TERMINATED, "The command was killed before it ran.")
}

/// The fin of a command that had not run when the agent was stopped.
pub fn stopped_before_start() -> Fin {
    failure(TERMINATED, "The agent was stopped before the command ran.")
}

/// The fin of a command that ran when the agent died. Its duration and its number of chunks are
/// unknown. `was_killed` is true if this agent found processes of the command and killed them.
pub fn lost(was_killed: bool) -> Fin {
    let rest = if was_killed {
        "Its remaining processes were killed."
    } else {
        "How it ended is not known."
    };
    let result = Some(format!("The agent died while the command ran. {rest}"));
    Fin { result, exit_code: Some(KILLED), ..Fin::default() }
}
