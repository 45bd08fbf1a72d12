//! The Worker's log. Each line is a JSON object with the name of the event in `event`.
//! `docs/operations.md` lists the events.

use std::fmt::Display;

use serde_json::{Value, json};
use worker::{console_error, console_log};

/// Logs an event with its fields.
pub fn event(name: &'static str, fields: Value) {
    console_log!("{}", line(name, fields));
}

/// Logs an error with its cause and fields. The platform marks the line as an error.
pub fn error(name: &'static str, fields: Value, cause: &impl Display) {
    let mut line = line(name, fields);
    line["cause"] = json!(cause.to_string());
    console_error!("{line}");
}

fn line(name: &'static str, fields: Value) -> Value {
    let mut line = json!({"event": name});
    if let (Value::Object(line), Value::Object(fields)) = (&mut line, fields) {
        line.extend(fields);
    }
    line
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::structure_tests::sources;

    #[test]
    fn the_documentation_lists_every_event() {
        let document = include_str!("../../docs/operations.md");
        let mut names = BTreeSet::new();
        for file in sources("src").into_iter().chain(sources("domain/src/link")) {
            let text = std::fs::read_to_string(&file).unwrap();
            for call in [
                concat!("log::", "event("),
                concat!("log::", "error("),
                concat!("log", "("),
                concat!("self.", "log_error("),
            ] {
                for (at, _) in text.match_indices(call) {
                    // If the name is a variable, the literal is in another call.
                    if let Some(name) = text[at + call.len()..].trim_start().strip_prefix('"') {
                        names.insert(name.split('"').next().unwrap().to_owned());
                    }
                }
            }
        }
        assert!(names.len() > 20, "{names:?}");
        let missing: Vec<_> =
            names.iter().filter(|name| !document.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
