//! The Worker's log: every line is a JSON object whose `event` names what it tells of. `docs/operations.md` lists them.

use std::fmt::Display;

use serde_json::{Value, json};
use worker::{console_error, console_log};

/// A line about what happened, with more of it in `fields`.
pub fn event(name: &'static str, fields: Value) {
    console_log!("{}", line(name, fields));
}

/// A line about what went wrong, and why; the platform marks it as an error.
pub fn trouble(name: &'static str, fields: Value, cause: &impl Display) {
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
