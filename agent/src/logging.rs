//! The agent's log: one line per event, on standard error.
//!
//! Only the agent's own events are logged, because libraries may log HTTP headers. The log never
//! contains output or the key. It contains a command's line only if the system log is not
//! available.

use std::io::Write;

use chrono::{SecondsFormat, Utc};
use log::{LevelFilter, Log, Metadata, Record};

struct StderrLog {
    /// Whether a line starts with the time. False under journald, which adds the time itself.
    has_time: bool,
}

impl Log for StderrLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("farhand_agent")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let line = line(
                record,
                self.has_time.then(|| Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)),
            );
            // If stderr is closed, the line is lost.
            let _ = std::io::stderr().lock().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}

/// Formats an event as one line. Replaces control characters, which can come from outside.
fn line(record: &Record<'_>, time: Option<String>) -> String {
    let message = record.args().to_string().replace(char::is_control, " ");
    let time = time.map(|time| time + " ").unwrap_or_default();
    format!("{time}{:<5} {message}\n", record.level())
}

pub fn init(is_verbose: bool) {
    log::set_max_level(if is_verbose { LevelFilter::Debug } else { LevelFilter::Info });
    let lines = StderrLog { has_time: std::env::var_os("JOURNAL_STREAM").is_none() };
    // Fails if a logger is already set. Then the existing logger is used.
    let _ = log::set_boxed_logger(Box::new(lines));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let record =
            Record::builder().args(format_args!("a\nb\x1b[0m")).level(log::Level::Warn).build();
        assert_eq!(line(&record, None), "WARN  a b [0m\n");
        assert_eq!(
            line(&record, Some("2026-01-01T00:00:00.000Z".to_owned())),
            "2026-01-01T00:00:00.000Z WARN  a b [0m\n"
        );
    }
}
