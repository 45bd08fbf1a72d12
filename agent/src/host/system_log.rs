//! Records each command in the host's system log before it runs, and each refused command
//! (agent-protocol 7.4). A record has the account, the requester, and the line, the words, or the
//! script's hash. The service cannot change these records.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::Utc;
use farhand_domain::agent::wire::AgentCommand;
use farhand_domain::hash::sha256;

/// The priority of a record: facility `authpriv` and severity `info`.
const PRIORITY: u8 = 10 << 3 | 6;
/// The maximum recorded part of a command's line or words, in bytes. Common syslog daemons cut
/// messages at 8 KiB.
const MAX_LINE_BYTES: usize = 4 * 1024;
/// The maximum recorded part of the names of environment variables, in bytes.
const MAX_NAMES_BYTES: usize = 1024;
/// The time limit for sending a record.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The system log of this host.
#[derive(Clone, Debug)]
pub struct SystemLog {
    socket: PathBuf,
}

impl SystemLog {
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Records that a command is about to run, or that it is refused and why. If the system log is
    /// not available, writes the record to the agent's own log.
    pub fn write(&self, order: &AgentCommand, refusal: Option<&str>) {
        let record = record(order, refusal);
        if let Err(error) = send(&self.socket, &record) {
            log::warn!("{}: {error}; written here instead: {record}", self.socket.display());
        }
    }
}

fn send(socket: &Path, record: &str) -> io::Result<()> {
    let log = UnixDatagram::unbound()?;
    log.set_write_timeout(Some(SEND_TIMEOUT))?;
    log.connect(socket)?;
    let (time, pid) = (Utc::now().format("%b %e %H:%M:%S"), std::process::id());
    log.send(format!("<{PRIORITY}>{time} farhand-agent[{pid}]: {record}").as_bytes())?;
    Ok(())
}

/// One line of text that describes a command.
fn record(order: &AgentCommand, refusal: Option<&str>) -> String {
    let AgentCommand { id, user, group, shell, requested_by, .. } = order;
    let (user, group) = (escape(user), escape(group));
    let group = if group.is_empty() { group } else { format!(" group={group}") };
    let requester = requested_by.as_deref().map_or_else(|| "-".to_owned(), escape);
    let quoted = |text: &str| format!("\"{}\"", escape(text));
    let cwd = order.cwd.as_deref().map(|cwd| format!(" cwd={}", quoted(cwd))).unwrap_or_default();
    let stdin = order
        .stdin
        .as_deref()
        .map(|text| format!(" stdin_sha256={}", sha256(text)))
        .unwrap_or_default();
    let names: Vec<_> = order.env.iter().flatten().map(|(name, _)| escape(name)).collect();
    let env = if names.is_empty() {
        String::new()
    } else {
        format!(" env={}", quoted(&shorten(&names.join(","), MAX_NAMES_BYTES)))
    };
    let what = match (&order.script, &order.argv) {
        (Some(script), _) => {
            format!(
                "script interpreter={} sha256={}",
                quoted(&script.interpreter),
                sha256(&script.body)
            )
        }
        (None, Some(words)) => {
            let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
            format!("argv={}", shorten(&words.join(" "), MAX_LINE_BYTES))
        }
        (None, None) => format!("line={}", shorten(&escape(&order.line), MAX_LINE_BYTES)),
    };
    let outcome = refusal.map(|why| format!("refused: {} ", escape(why))).unwrap_or_default();
    format!(
        "{outcome}command={id} shell={} account={user}{group} requested_by={requester}{cwd}{env}{stdin} {what}",
        escape(shell)
    )
}

/// Escapes control characters, quotes and backslashes, so that a text is one line and cannot forge
/// another record.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' | '"' => escaped.extend(['\\', character]),
            // Line separators and text direction marks.
            '\u{2028}'
            | '\u{2029}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => {
                escaped.extend(character.escape_unicode());
            }
            character if character.is_control() => escaped.extend(character.escape_default()),
            character => escaped.push(character),
        }
    }
    escaped
}

/// Cuts a text that is longer than `limit` bytes, and adds the SHA-256 of the whole text.
fn shorten(line: &str, limit: usize) -> String {
    if line.len() <= limit {
        return line.to_owned();
    }
    let kept = &line[..line.floor_char_boundary(limit)];
    format!("{kept} [{} bytes cut, sha256 of all {}]", line.len() - kept.len(), sha256(line))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use farhand_domain::agent::wire::Script;
    use uuid::Uuid;

    use super::*;

    fn order(line: &str) -> AgentCommand {
        AgentCommand {
            id: Uuid::nil(),
            shell: "system".into(),
            user: "deploy".into(),
            line: line.into(),
            requested_by: Some("alice".into()),
            ..AgentCommand::default()
        }
    }

    #[test]
    fn a_record_reaches_the_system_log() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("log");
        let log = UnixDatagram::bind(&socket).unwrap();
        log.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        SystemLog::new(socket).write(&order("echo hello"), None);
        let mut bytes = [0; 1_024];
        let length = log.recv(&mut bytes).unwrap();
        let message = str::from_utf8(&bytes[..length]).unwrap();
        assert!(message.starts_with("<86>") && message.contains(" farhand-agent["), "{message}");
        let record = "command=00000000-0000-0000-0000-000000000000 shell=system account=deploy requested_by=alice \
             line=echo hello";
        assert!(message.ends_with(record), "{message}");
    }

    #[test]
    fn a_line_cannot_forge_another_record() {
        let forged = order("a\nNov 1 root: b\r\u{1b}[2J\u{7f}\u{9b}\u{2028}\u{202e}\\n\0");
        let record = record(&forged, None);
        assert!(
            !record.contains(|character: char| character.is_control() || character == '\u{2028}'),
            "{record}"
        );
        let escaped = r"line=a\nNov 1 root: b\r\u{1b}[2J\u{7f}\u{9b}\u{2028}\u{202e}\\n\u{0}";
        assert!(record.ends_with(escaped), "{record}");
    }

    #[test]
    fn each_form_of_a_command_is_recorded() {
        let words = AgentCommand {
            argv: Some(vec!["a b".into(), "\"".into()]),
            cwd: Some("/srv".into()),
            ..order("x")
        };
        assert!(
            record(&words, None).ends_with("cwd=\"/srv\" argv=\"a b\" \"\\\"\""),
            "{}",
            record(&words, None)
        );
        let env = serde_json::from_str(r#"{"PATH": "/tmp", "BASH_ENV": "x"}"#).unwrap();
        let fed = AgentCommand { stdin: Some("x".into()), env: Some(env), ..order("sh") };
        let expected = "env=\"BASH_ENV,PATH\" stdin_sha256=2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881 line=sh";
        assert!(record(&fed, None).ends_with(expected), "{}", record(&fed, None));
        let script =
            Script { interpreter: "/bin/sh".into(), body: "x".into(), sha256: "not this".into() };
        let script =
            record(&AgentCommand { script: Some(script), requested_by: None, ..order("x") }, None);
        let digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";
        assert!(
            script.ends_with(&format!(
                "requested_by=- script interpreter=\"/bin/sh\" sha256={digest}"
            )),
            "{script}"
        );
        assert!(record(&order("x"), Some("why.")).starts_with("refused: why. command="));
        let long = record(&order(&"é".repeat(MAX_LINE_BYTES)), None);
        assert!(
            long.len() < MAX_LINE_BYTES + 400 && long.contains("[4096 bytes cut, sha256 of all "),
            "{long}"
        );
    }
}
