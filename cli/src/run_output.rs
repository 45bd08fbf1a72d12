//! What `run` and `logs` print for a command: its output as it arrives, and how it ended.

use std::io::{self, Write};
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::error::{EXIT_FAILURE, Result};
use crate::output::{Format, has_colours, json_text, note, write};
use crate::stream::EndedCommand;
use crate::text::visible;
use crate::types::Command;

/// The colours of server names, as parameters of escape sequences.
const COLOURS: [u8; 6] = [36, 33, 35, 32, 34, 31];
/// Maximum size of an incomplete line that is held back until its end arrives.
const MAX_PENDING_BYTES: usize = 64 * 1024;

/// How the output of one command is shown.
pub enum View {
    /// The output, unchanged.
    Raw,
    /// Each line after a prefix with the server's name. `pending` is a line whose end has not
    /// arrived.
    Prefixed { prefix: String, pending: String },
    /// Nothing. The JSON is printed after all commands have ended.
    Silent,
    /// A JSON object for each chunk of output, and one for the end.
    Events { id: String, server: String },
}

/// Locked during a write, so that the lines of concurrent commands do not mix.
static STDOUT: Mutex<()> = Mutex::new(());

fn write_alone(text: &str) -> Result<()> {
    let _alone = STDOUT.lock();
    write(text)
}

impl View {
    /// The view of one of several servers. Pads the server's name to `width` characters.
    pub fn prefixed(server: &str, position: usize, width: usize) -> Self {
        let name = format!("{:width$}", visible(server));
        let prefix = if has_colours(&io::stdout()) {
            format!("\x1b[{}m{name} |\x1b[0m ", COLOURS[position % COLOURS.len()])
        } else {
            format!("{name} | ")
        };
        Self::Prefixed { prefix, pending: String::new() }
    }

    /// The view of a command if there is only one, or if the format is JSON.
    pub fn single(format: Format, id: &str, server: &str) -> Self {
        match format {
            Format::Table => Self::Raw,
            Format::Json => Self::Silent,
            Format::Ndjson => Self::Events { id: id.to_owned(), server: server.to_owned() },
        }
    }

    /// Shows a piece of output.
    pub fn chunk(&mut self, content: &str) -> Result<()> {
        match self {
            Self::Raw => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(content.as_bytes())?;
                Ok(stdout.flush()?)
            }
            Self::Prefixed { prefix, pending } => {
                pending.push_str(content);
                let lines = take_lines(prefix, pending);
                if lines.is_empty() { Ok(()) } else { write_alone(&lines) }
            }
            Self::Silent => Ok(()),
            Self::Events { id, server } => {
                let event =
                    json!({"event": "chunk", "id": id, "server": server, "content": content});
                write_alone(&json_text(&event, Format::Ndjson))
            }
        }
    }

    /// Shows the end of the command.
    pub fn end(&mut self, end: &EndedCommand) -> Result<()> {
        match self {
            Self::Prefixed { prefix, pending } if !pending.is_empty() => {
                write_alone(&format!("{prefix}{pending}\n"))?;
            }
            Self::Events { .. } => {
                let event = json!({"event": "end", "command": end.json});
                write_alone(&json_text(&event, Format::Ndjson))?;
            }
            _ => {}
        }
        let server = &end.command.server_name;
        match skipped_note(&end.json) {
            Some(skipped) => note(&format!("{server}: {skipped}")),
            None if end.output_truncated => {
                note(&format!("{server}: Some of the output was not kept."));
            }
            None => {}
        }
        if let Some(reason) = reason(&end.command) {
            note(&format!("{server}: {reason}"));
        }
        Ok(())
    }
}

/// Removes the complete lines from `pending`, and returns them with the prefix before each. Also
/// removes an incomplete line of more than [`MAX_PENDING_BYTES`].
fn take_lines(prefix: &str, pending: &mut String) -> String {
    let mut lines = String::new();
    while let Some(end) = pending.find('\n') {
        lines.push_str(prefix);
        lines.extend(pending.drain(..=end));
    }
    if pending.len() > MAX_PENDING_BYTES {
        lines.push_str(prefix);
        lines.push_str(pending);
        lines.push('\n');
        pending.clear();
    }
    lines
}

/// The line about output that the service left out of a command, as JSON. `None`: nothing was left
/// out, or the service is older than the field.
pub fn skipped_note(command: &Value) -> Option<String> {
    let skipped = command["output_skipped"].as_u64().filter(|skipped| *skipped > 0)?;
    Some(format!("{skipped} bytes of the output were left out."))
}

/// The status message, if it says more than the exit code.
fn reason(command: &Command) -> Option<&str> {
    let message = command.status.message.as_str();
    let is_plain =
        command.exit_code.is_some() && !message.contains(". ") && !message.contains("; killed by ");
    (command.success != Some(true) && !is_plain).then_some(message)
}

/// The exit code of farhand for a command that has ended.
pub fn exit_code(command: &Command) -> u8 {
    exit_code_of(command.success == Some(true), command.exit_code)
}

/// The exit code of farhand for a command with this result.
pub fn exit_code_of(is_success: bool, exit_code: Option<i64>) -> u8 {
    match (is_success, exit_code.and_then(|code| u8::try_from(code).ok())) {
        (true, None) => 0,
        (true, Some(code)) => code,
        (false, None | Some(0)) => EXIT_FAILURE,
        (false, Some(code)) => code,
    }
}

/// Prints commands: as one JSON value on each line for `ndjson`, else as one object if `is_single`,
/// or as an array.
pub fn print_json(commands: &[Value], is_single: bool, format: Format) -> Result<()> {
    match commands {
        _ if format == Format::Ndjson => {
            commands.iter().try_for_each(|command| write(&json_text(command, format)))
        }
        [command] if is_single => write(&json_text(command, format)),
        _ => write(&json_text(&Value::from(commands), format)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(state: &str, success: Value, exit_code: Value, message: &str) -> Command {
        let value = json!({"id": "1", "line": "x", "username": "u", "server_name": "web-1",
            "requested_by": null, "state": state, "status": {"text": "", "message": message},
            "success": success, "exit_code": exit_code, "output_bytes": 0, "elapsed_time": null,
            "scheduled_at": ""});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_exit_code_is_the_commands_own_or_125() {
        let code = |success: Value, code: Value| exit_code(&command("", success, code, ""));
        assert_eq!(code(json!(true), json!(0)), 0);
        assert_eq!(code(json!(false), json!(3)), 3);
        assert_eq!(code(json!(false), json!(255)), 255);
        assert_eq!(code(json!(false), Value::Null), 125);
        assert_eq!(code(json!(false), json!(0)), 125);
        assert_eq!(code(json!(false), json!(-1)), 125);
        assert_eq!(code(json!(false), json!(256)), 125);
    }

    #[test]
    fn output_that_was_left_out_is_noted() {
        let note = |value: Value| skipped_note(&json!({"output_skipped": value}));
        assert_eq!(note(json!(7)).as_deref(), Some("7 bytes of the output were left out."));
        assert_eq!((note(json!(0)), skipped_note(&json!({}))), (None, None));
    }

    #[test]
    fn a_reason_is_shown_and_a_plain_exit_code_is_not() {
        let at = "at 2026-11-21T01:23:45.678901+00:00";
        let shown = |success: bool, code: Value, message: &str| {
            reason(&command("", json!(success), code, message)).is_some()
        };
        assert!(!shown(false, json!(3), &format!("Failed with exit code 3 {at}.")));
        assert!(!shown(true, json!(0), &format!("Succeeded with exit code 0 {at}.")));
        assert!(shown(
            false,
            json!(126),
            &format!("Failed with exit code 126 {at}. No account x.")
        ));
        assert!(shown(
            false,
            json!(137),
            &format!("Failed with exit code 137 {at}; killed by ann.")
        ));
        assert!(shown(false, Value::Null, "Not delivered by 2026, its latest time."));
    }

    #[test]
    fn lines_stand_behind_the_name_of_their_server() {
        let mut pending = "a\nb\nc".to_owned();
        assert_eq!(take_lines("web-1 | ", &mut pending), "web-1 | a\nweb-1 | b\n");
        assert_eq!(pending, "c");
        pending = "x".repeat(MAX_PENDING_BYTES + 1);
        assert_eq!(take_lines("> ", &mut pending).len(), MAX_PENDING_BYTES + 4);
        assert_eq!(pending, "");
    }
}
