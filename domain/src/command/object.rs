//! The command object of the API (contract 7.1): its JSON, and the SQL for its computed fields.

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::command::lifecycle::{Label, Lifecycle, SCHEDULED, State};
use crate::command::output::{self, OutputLoss};
use crate::command::request::Command;
use crate::time::Timestamp;

/// The output of a command that has arrived so far.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Output {
    /// The output, cut by [`output::result`]; `None` before the command has ended.
    pub result: Option<String>,
    /// Whether `result` was cut.
    pub truncated: bool,
    /// The bytes of the whole output.
    pub bytes: u64,
}

/// The fields of a command object that change during the command's life.
///
/// If the server's object has a newer state than D1, the Worker replaces D1's fields with these.
pub fn live_fields(
    life: &Lifecycle,
    output: &Output,
    loss: OutputLoss,
    now: Timestamp,
) -> Map<String, Value> {
    let outcome = life.outcome();
    let mut status = life.status(now);
    status.message = loss.explain(status.message);
    let fields = json!({
        "success": life.success(),
        "exit_code": outcome.and_then(|outcome| outcome.exit_code),
        "result": output.result,
        "result_truncated": output.truncated,
        "output_bytes": output.bytes,
        "output_truncated": loss.skipped > 0,
        "output_skipped": loss.skipped,
        "state": life.state().shown(life.scheduled_at <= now),
        "status": status,
        "response_delay": life.response_delay(),
        "elapsed_time": outcome.and_then(|outcome| outcome.elapsed_time),
        "added_at": life.added_at,
        "scheduled_at": life.scheduled_at,
        "expires_at": life.expires_at,
        "timeout": life.timeout,
        "delivered_at": life.delivered_at,
        "acked_at": life.acked_at,
        "handled_at": life.handled_at,
    });
    members(fields)
}

/// The members of a JSON object.
fn members(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// The whole command object (contract 7.1).
pub fn command_json(command: &Command, live: Map<String, Value>) -> Map<String, Value> {
    let mut object = members(json!({
        "id": command.id,
        "shell": command.shell,
        "line": command.line,
        "username": command.username,
        "groupname": command.groupname,
        "server": command.server,
        "server_name": command.server_name,
        "requested_by": command.requested_by,
        "batch": command.batch,
    }));
    object.extend(live);
    object
}

/// The order of the fields in a command object, and in the objects inside it.
const ORDER: [&str; 32] = [
    "id",
    "shell",
    "line",
    "username",
    "groupname",
    "server",
    "server_name",
    "requested_by",
    "batch",
    "success",
    "exit_code",
    "result",
    "result_truncated",
    "output_bytes",
    "output_truncated",
    "output_skipped",
    "state",
    "status",
    "text",
    "color",
    "cancellable",
    "message",
    "response_delay",
    "elapsed_time",
    "added_at",
    "scheduled_at",
    "expires_at",
    "timeout",
    "delivered_at",
    "acked_at",
    "handled_at",
    "email",
];

/// Serializes a command object with its fields in the order of `ORDER`. Other fields follow.
#[derive(Debug)]
pub struct OrderedCommand<'a>(pub &'a Map<String, Value>);

impl Serialize for OrderedCommand<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let place =
            |name: &str| ORDER.iter().position(|field| *field == name).unwrap_or(ORDER.len());
        let mut members: Vec<_> = self.0.iter().collect();
        members.sort_by_cached_key(|(name, _)| place(name));
        let mut map = serializer.serialize_map(Some(members.len()))?;
        for (name, value) in members {
            match value {
                Value::Object(inner) => map.serialize_entry(name, &OrderedCommand(inner))?,
                value => map.serialize_entry(name, value)?,
            }
        }
        map.end()
    }
}

/// SQL for the `state` field of a row of `commands c`. `now` is the SQL of the current time.
pub fn state_sql(now: &str) -> String {
    let waiting = State::Waiting;
    format!(
        "iif(c.state <> '{}', c.state, iif(c.scheduled_at <= {now}, '{}', '{}'))",
        waiting.as_str(),
        waiting.shown(true),
        waiting.shown(false)
    )
}

/// SQL for the status object of a row of `commands c`, as JSON. `now` is the SQL of the current
/// time.
///
/// It uses the same labels as [`Lifecycle::status`]. The Worker's tests compare both for each
/// command.
pub fn status_sql(now: &str) -> String {
    let json = |label: Label, message: &str| {
        let Label { text, color, cancellable } = label;
        format!(
            "json_object('text','{text}','color','{color}','cancellable',json('{cancellable}'),'message',{message})"
        )
    };
    let waiting = State::Waiting.as_str();
    let scheduled = json(SCHEDULED, "'Scheduled for ' || c.scheduled_at || '.'");
    let queued =
        json(State::Waiting.label(), "'Waiting for the agent since ' || c.scheduled_at || '.'");
    let others: String = State::ALL
        .into_iter()
        .filter(|state| *state != State::Waiting)
        .map(|state| {
            format!(
                " WHEN c.state = '{}' THEN {}",
                state.as_str(),
                json(state.label(), "c.status_message")
            )
        })
        .collect();
    format!(
        "CASE WHEN c.state = '{waiting}' AND c.scheduled_at > {now} THEN {scheduled} WHEN c.state = '{waiting}' THEN {queued}{others} END"
    )
}

/// Returns the part of a result that lists show, and the whole result if it is longer.
pub fn split_result(result: Option<&str>) -> (Option<&str>, Option<&str>) {
    match result {
        None => (None, None),
        Some(whole) => {
            output::in_list(whole).map_or((Some(whole), None), |head| (Some(head), Some(whole)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_command_object_have_a_fixed_order() {
        let object = members(
            json!({"zzz": 1, "status": {"message": "m", "text": "t"}, "line": "id", "id": 7,
            "requested_by": {"email": "e", "id": 1, "username": "u"}}),
        );
        let shown = r#"{"id":7,"line":"id","requested_by":{"id":1,"username":"u","email":"e"},"status":{"text":"t","message":"m"},"zzz":1}"#;
        assert_eq!(serde_json::to_string(&OrderedCommand(&object)).unwrap(), shown);
    }

    #[test]
    fn a_long_result_is_split_for_lists() {
        let long = "x".repeat(output::MAX_RESULT_IN_LIST + 1);
        assert_eq!(split_result(None), (None, None));
        assert_eq!(split_result(Some("abc")), (Some("abc"), None));
        assert_eq!(split_result(Some(&long)), (Some(&long[1..]), Some(long.as_str())));
    }
}
