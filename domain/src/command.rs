//! Commands: what a request for one must look like (contract 7), and how one is shown.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::error::{Code, Error};
use crate::fields::{BLANK, Fields, REQUIRED};
use crate::id;
use crate::lifecycle::{Label, Lifecycle, SCHEDULED, State};
use crate::output;
use crate::time::Timestamp;
use crate::wire::Order;

/// The longest line, in characters.
pub const MAX_LINE: usize = 16_384;
/// The longest name of a remote account or group, in characters.
const MAX_ACCOUNT: usize = 64;
/// Seconds that a command may run where the caller does not say.
const DEFAULT_TIMEOUT: i64 = 1_800;
/// Seconds that a command may run at most.
const MAX_TIMEOUT: i64 = 86_400;

/// What a line is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shell {
    /// The host's `/bin/sh`.
    System,
    /// The agent's built-ins; for staff only.
    Internal,
}

impl Shell {
    /// The name in requests, answers and D1.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Internal => "internal",
        }
    }
}

/// The server that a request names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerRef {
    /// By its id.
    Id(Uuid),
    /// By its name in the workspace.
    Name(String),
}

/// A request for a command, checked as far as can be told without looking anything up.
#[derive(Clone, Debug)]
pub struct NewCommand {
    /// Where to run it.
    pub server: ServerRef,
    /// What the line is for.
    pub shell: Shell,
    /// What to run.
    pub line: String,
    /// The remote account; `None` means the caller's own name.
    pub username: Option<String>,
    /// The remote group; empty means the account's own.
    pub groupname: String,
    /// Seconds that it may run.
    pub timeout: i64,
}

/// A name of an account or group on a host.
fn read_account(fields: &mut Fields, name: &'static str, fewest: usize) -> Option<String> {
    let account = fields.optional_text(name, fewest..=MAX_ACCOUNT)?;
    let odd = |c: char| c.is_control() || c.is_whitespace() || matches!(c, ':' | '/');
    if account.starts_with('-') || account.contains(odd) {
        fields.reject(name, "Not a valid account name.");
        return None;
    }
    Some(account)
}

/// Reads the line from `line` or its alias `command`. The flag tells that what is wrong is the line itself
/// (`INVALID_COMMAND`), not the form of the request.
fn read_line(fields: &mut Fields) -> (Option<String>, bool) {
    let mut given = ["line", "command"].into_iter().filter(|name| fields.value(name).is_some());
    let name = given.next().unwrap_or("line");
    if given.next().is_some() && fields.value("line") != fields.value("command") {
        fields.reject("command", "Give the line in line or in command, or the same in both.");
        return (None, false);
    }
    let message: Cow<'static, str> = match fields.value(name) {
        None => {
            fields.reject("line", REQUIRED);
            return (None, false);
        }
        Some(Value::String(line)) if line.trim().is_empty() => BLANK.into(),
        Some(Value::String(line)) if line.contains('\0') => "Null characters are not allowed.".into(),
        Some(Value::String(line)) if line.chars().count() > MAX_LINE => {
            format!("Ensure this field has no more than {MAX_LINE} characters.").into()
        }
        Some(Value::String(line)) => return (Some(line.clone()), false),
        Some(_) => {
            fields.reject(name, "Not a valid string.");
            return (None, false);
        }
    };
    fields.reject(name, message);
    (None, true)
}

impl NewCommand {
    /// Reads a request for a command.
    ///
    /// # Errors
    /// All bad fields together; with [`Code::InvalidCommand`] where the line or the shell is what is wrong.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        let server =
            fields.text("server", 1..=64).map(|text| id::parse(&text).map_or(ServerRef::Name(text), ServerRef::Id));
        let (line, bad_line) = read_line(&mut fields);
        let shell = match fields.value("shell").map(Value::as_str) {
            None | Some(Some("system")) => Some(Shell::System),
            Some(Some("internal")) => Some(Shell::Internal),
            Some(_) => {
                fields.reject("shell", "Choose system or internal.");
                None
            }
        };
        let username = read_account(&mut fields, "username", 1);
        let groupname = read_account(&mut fields, "groupname", 0).unwrap_or_default();
        let timeout = fields.optional_integer("timeout", 1..=MAX_TIMEOUT).unwrap_or(DEFAULT_TIMEOUT);
        refuse_what_is_not_served_yet(&mut fields);
        let invalid_command = bad_line || shell.is_none();
        let finished = fields.finish_with(server.zip(line).zip(shell));
        let ((server, line), shell) =
            finished.map_err(|error| if invalid_command { error.code(Code::InvalidCommand) } else { error })?;
        Ok(Self { server, shell, line, username, groupname, timeout })
    }
}

/// Later work serves these. Until then a request that needs one is refused, rather than run at once or without it.
fn refuse_what_is_not_served_yet(fields: &mut Fields) {
    for name in ["scheduled_at", "expires_at", "env"] {
        if fields.value(name).is_some() {
            fields.reject(name, "Not supported yet.");
        }
    }
    if fields.value("on_offline").is_some_and(|value| value != "reject") {
        fields.reject("on_offline", "Only reject is supported yet.");
    }
}

/// Who asked for a command (spec.md, Command).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Requester {
    /// The user's id.
    pub id: i64,
    /// The user's name.
    pub username: String,
    /// The user's e-mail address.
    pub email: String,
}

/// What a command is, which never changes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Command {
    /// Its id.
    pub id: Uuid,
    /// What the line is for.
    pub shell: Shell,
    /// What to run.
    pub line: String,
    /// The remote account.
    pub username: String,
    /// The remote group; empty means the account's own.
    pub groupname: String,
    /// Where to run it.
    pub server: Uuid,
    /// The server's name when the command was made.
    pub server_name: String,
    /// Who asked for it.
    pub requested_by: Option<Requester>,
}

impl Command {
    /// What the agent is sent.
    pub fn order(&self) -> Order {
        Order {
            id: self.id,
            shell: self.shell.as_str().to_owned(),
            line: self.line.clone(),
            user: self.username.clone(),
            group: self.groupname.clone(),
            env: None,
            allow_sh: self.shell == Shell::System,
            data: None,
            timeout: None,
        }
    }
}

/// What is known of a command's output.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Output {
    /// The output, cut as [`output::result`] does; null until the command has ended.
    pub result: Option<String>,
    /// Whether it was cut.
    pub truncated: bool,
    /// Bytes before any cut.
    pub bytes: u64,
}

/// The part of a command object that changes during its life, as JSON fields.
///
/// The Worker lays it over what D1 tells of a command whose object knows more.
pub fn live_fields(life: &Lifecycle, output: &Output, now: Timestamp) -> Map<String, Value> {
    let outcome = life.outcome();
    let fields = json!({
        "success": life.success(),
        "exit_code": outcome.and_then(|outcome| outcome.exit_code),
        "result": output.result,
        "result_truncated": output.truncated,
        "output_bytes": output.bytes,
        "status": life.status(now),
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
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// The whole command object (spec.md, Command; contract 7).
pub fn object(command: &Command, live: Map<String, Value>) -> Value {
    let mut object = json!({
        "id": command.id,
        "shell": command.shell,
        "line": command.line,
        "username": command.username,
        "groupname": command.groupname,
        "server": command.server,
        "server_name": command.server_name,
        "requested_by": command.requested_by,
    });
    if let Value::Object(fields) = &mut object {
        fields.extend(live);
    }
    object
}

/// SQL for the status object of a row of `commands c`, as JSON, at the moment in the parameter `now`.
///
/// It is made from the same table as [`Lifecycle::status`], so that the two cannot differ; the Worker's tests compare
/// what both say of each command.
pub fn status_sql(now: &str) -> String {
    let json = |label: Label, message: &str| {
        let Label { text, color, cancellable } = label;
        format!(
            "json_object('text','{text}','color','{color}','cancellable',json('{cancellable}'),'message',{message})"
        )
    };
    let waiting = State::Waiting.as_str();
    let scheduled = json(SCHEDULED, "'Scheduled for ' || c.scheduled_at || '.'");
    let queued = json(State::Waiting.label(), "'Waiting for the agent since ' || c.scheduled_at || '.'");
    let others: String = State::ALL
        .into_iter()
        .filter(|state| *state != State::Waiting)
        .map(|state| format!(" WHEN c.state = '{}' THEN {}", state.as_str(), json(state.label(), "c.status_message")))
        .collect();
    format!(
        "CASE WHEN c.state = '{waiting}' AND c.scheduled_at > {now} THEN {scheduled} WHEN c.state = '{waiting}' THEN {queued}{others} END"
    )
}

/// Cuts a result into what lists show and, where that is not all of it, the whole.
pub fn split_result(result: Option<&str>) -> (Option<&str>, Option<&str>) {
    match result {
        None => (None, None),
        Some(whole) => output::in_list(whole).map_or((Some(whole), None), |head| (Some(head), Some(whole))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "01936d3e-7a00-7000-8000-000000000000";

    fn read(body: &Value) -> Result<NewCommand, Error> {
        NewCommand::read(Fields::from_json(body.to_string().as_bytes()).unwrap())
    }

    #[track_caller]
    fn refused(body: &Value, fields: &[&str], code: Option<Code>) {
        let error = read(body).expect_err(&body.to_string());
        assert_eq!(
            (error.fields.keys().map(AsRef::as_ref).collect::<Vec<_>>(), error.code),
            (fields.to_vec(), code),
            "{body}"
        );
    }

    #[test]
    fn both_forms_of_the_payload() {
        let command = read(&json!({"server": SERVER, "line": "id", "username": "deploy"})).unwrap();
        assert_eq!((command.server, command.line.as_str()), (ServerRef::Id(id::parse(SERVER).unwrap()), "id"));
        let command = read(&json!({"server": "web-1", "command": "id"})).unwrap();
        assert_eq!(
            (command.server, command.line.as_str(), command.username),
            (ServerRef::Name("web-1".into()), "id", None)
        );
        assert_eq!((command.shell, command.timeout, command.groupname.as_str()), (Shell::System, 1_800, ""));
        assert!(read(&json!({"server": "web-1", "command": "id", "line": "id"})).is_ok());
        assert!(
            read(&json!({"server": "web-1", "command": null, "line": "id", "groupname": "", "shell": "internal"}))
                .is_ok()
        );
    }

    #[test]
    fn lines_that_cannot_be_run() {
        let invalid = Some(Code::InvalidCommand);
        let longest = "é".repeat(MAX_LINE);
        assert!(read(&json!({"server": "a", "line": longest})).is_ok());
        for bad in ["", " \t\n", "a\0b", &format!("{longest}x")] {
            refused(&json!({"server": "a", "line": bad}), &["line"], invalid);
            refused(&json!({"server": "a", "command": bad}), &["command"], invalid);
        }
        for shell in [json!("bash"), json!("SYSTEM"), json!(""), json!(1)] {
            refused(&json!({"server": "a", "line": "id", "shell": shell}), &["shell"], invalid);
        }
        refused(&json!({"line": ""}), &["line", "server"], invalid);
    }

    #[test]
    fn fields_of_the_wrong_form() {
        refused(&json!({}), &["line", "server"], None);
        refused(&json!({"server": "a", "line": "id", "command": "ls"}), &["command"], None);
        refused(&json!({"server": "a", "line": 7}), &["line"], None);
        refused(&json!({"server": 7, "line": "id"}), &["server"], None);
        for bad in ["", " ", "a b", "a:b", "../x", "-x", "a\nb"] {
            refused(&json!({"server": "a", "line": "id", "username": bad}), &["username"], None);
        }
        refused(&json!({"server": "a", "line": "id", "groupname": "a b"}), &["groupname"], None);
        for bad in [json!(0), json!(86_401), json!(1.5), json!("60")] {
            refused(&json!({"server": "a", "line": "id", "timeout": bad}), &["timeout"], None);
        }
    }

    #[test]
    fn what_is_not_served_yet_is_refused() {
        let later = json!({"server": "a", "line": "id", "scheduled_at": "2030-01-01T00:00:00Z", "expires_at": "2030-01-01T00:00:00Z", "env": {"A": "b"}, "on_offline": "queue"});
        refused(&later, &["env", "expires_at", "on_offline", "scheduled_at"], None);
        assert!(read(&json!({"server": "a", "line": "id", "on_offline": "reject", "env": null})).is_ok());
    }

    #[test]
    fn a_long_result_is_split_for_lists() {
        let long = "x".repeat(output::MAX_RESULT_IN_LIST + 1);
        assert_eq!(split_result(None), (None, None));
        assert_eq!(split_result(Some("abc")), (Some("abc"), None));
        assert_eq!(split_result(Some(&long)), (Some(&long[1..]), Some(long.as_str())));
    }
}
