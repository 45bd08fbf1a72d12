//! Commands: what a request for one must look like (contract 7), and how one is shown.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::acl::Acl;
use crate::error::{Code, Error};
use crate::fields::{BLANK, Fields, REQUIRED};
use crate::id;
use crate::lifecycle::{Denial, Label, Lifecycle, SCHEDULED, State};
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
/// The most environment variables of a command.
const MAX_VARIABLES: usize = 100;
/// The longest name of an environment variable, in characters.
const MAX_VARIABLE_NAME: usize = 128;
/// The most bytes that the names and values of a command's environment have together.
const MAX_ENVIRONMENT: usize = 32 * 1024;

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

/// How long an Idempotency-Key gives the first answer again, in seconds (contract 7).
pub const KEY_LASTS: i64 = 24 * 60 * 60;

/// Environment variables by name.
pub type Environment = BTreeMap<String, String>;

/// What becomes of an immediate command whose agent is not connected (contract 7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OnOffline {
    /// It is refused, and nothing is stored.
    Reject,
    /// It waits for the agent until its latest delivery.
    Queue,
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
    /// More environment variables; never shown again.
    pub env: Option<Environment>,
    /// When to run it; `None` or a past time means now.
    pub scheduled_at: Option<Timestamp>,
    /// When to deliver it at the latest.
    pub expires_at: Option<Timestamp>,
    /// What becomes of it where it is immediate and the agent is not connected.
    pub on_offline: OnOffline,
}

/// A moment that may be missing or null.
fn read_moment(fields: &mut Fields, name: &'static str) -> Option<Timestamp> {
    let text = match fields.value(name)? {
        Value::String(text) => text.clone(),
        _ => {
            fields.reject(name, "Not a valid string.");
            return None;
        }
    };
    match Timestamp::parse(&text) {
        Ok(moment) => Some(moment),
        Err(error) => {
            fields.reject(name, error.to_string());
            None
        }
    }
}

/// The environment: an object of strings, with names as a shell takes them.
fn read_environment(fields: &mut Fields) -> Option<Environment> {
    let is_name = |name: &str| {
        let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        first && name.len() <= MAX_VARIABLE_NAME && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let problem: Cow<'static, str> = match fields.value("env")? {
        Value::Object(variables) if variables.len() > MAX_VARIABLES => {
            format!("Ensure there are no more than {MAX_VARIABLES} variables.").into()
        }
        Value::Object(variables) => {
            let texts = variables.iter().map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
            match texts.collect::<Option<Environment>>() {
                None => "Ensure all values are strings.".into(),
                Some(env) if !env.keys().all(|name| is_name(name)) => {
                    "Ensure all names are letters, digits and underscores, and begin with no digit.".into()
                }
                Some(env) if env.values().any(|value| value.contains('\0')) => {
                    "Null characters are not allowed.".into()
                }
                Some(env)
                    if env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_ENVIRONMENT =>
                {
                    format!("Ensure names and values have no more than {MAX_ENVIRONMENT} bytes together.").into()
                }
                Some(env) => return Some(env),
            }
        }
        _ => "Not a valid object.".into(),
    };
    fields.reject("env", problem);
    None
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
    /// Reads a request for a command that came in at `now`.
    ///
    /// # Errors
    /// All bad fields together; with [`Code::InvalidCommand`] where the line or the shell is what is wrong.
    pub fn read(mut fields: Fields, now: Timestamp) -> Result<Self, Error> {
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
        let env = read_environment(&mut fields);
        let scheduled_at = read_moment(&mut fields, "scheduled_at");
        let expires_at = read_moment(&mut fields, "expires_at");
        if expires_at.is_some_and(|expires| expires <= scheduled_at.map_or(now, |scheduled| scheduled.max(now))) {
            fields.reject("expires_at", "Ensure this is in the future, and later than scheduled_at.");
        }
        let on_offline = match fields.value("on_offline").map(Value::as_str) {
            None | Some(Some("reject")) => OnOffline::Reject,
            Some(Some("queue")) => OnOffline::Queue,
            Some(_) => {
                fields.reject("on_offline", "Choose reject or queue.");
                OnOffline::Reject
            }
        };
        let invalid_command = bad_line || shell.is_none();
        let finished = fields.finish_with(server.zip(line).zip(shell));
        let ((server, line), shell) =
            finished.map_err(|error| if invalid_command { error.code(Code::InvalidCommand) } else { error })?;
        Ok(Self { server, shell, line, username, groupname, timeout, env, scheduled_at, expires_at, on_offline })
    }
}

/// What a command was asked for with: its right is checked against that again when it goes out (contract 7).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// The API token, where it was one. An ended login session changes nothing.
    pub api_token: Option<Uuid>,
    /// The client's address.
    pub remote_ip: String,
    /// Whether it has environment variables of its own.
    pub has_env: bool,
}

/// What a user may do on a server, as far as it matters to a command there.
#[derive(Clone, Debug, Deserialize)]
pub struct Rights {
    /// The user's name.
    pub username: String,
    /// Staff and superusers may use the agent's built-ins.
    pub is_staff: bool,
    /// Whether the user may name any remote account there (contract 5, Run-as).
    pub any_account: bool,
    /// The list of the API token, where it has one.
    pub acl: Option<Acl>,
}

impl Rights {
    /// Tells whether a user with these rights may run a command (contract 5, Run-as; contract 4, Token ACL).
    ///
    /// # Errors
    /// What does not allow it.
    pub fn allow(&self, command: &Command, origin: &Origin) -> Result<(), Denial> {
        let as_self = command.username == self.username && command.groupname.is_empty();
        if !self.any_account && !as_self {
            return Err(Denial::Account);
        }
        if command.shell == Shell::Internal && !self.is_staff {
            return Err(Denial::Internal);
        }
        let allows = |acl: &Acl| acl.allows_command(command, origin.has_env) && acl.allows_address(&origin.remote_ip);
        if self.acl.as_ref().is_none_or(allows) { Ok(()) } else { Err(Denial::Acl) }
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
    /// What the agent is sent. The timeout is for agents that can kill.
    pub fn order(&self, env: Option<&Environment>, timeout: Option<i64>) -> Order {
        Order {
            id: self.id,
            shell: self.shell.as_str().to_owned(),
            line: self.line.clone(),
            user: self.username.clone(),
            group: self.groupname.clone(),
            env: env.map(|env| env.iter().map(|(name, value)| (name.clone(), json!(value))).collect()),
            allow_sh: self.shell == Shell::System,
            data: None,
            timeout,
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
    members(fields)
}

/// The members of what is an object by the way it was made.
fn members(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// The whole command object (spec.md, Command; contract 7).
pub fn object(command: &Command, live: Map<String, Value>) -> Map<String, Value> {
    let mut object = members(json!({
        "id": command.id,
        "shell": command.shell,
        "line": command.line,
        "username": command.username,
        "groupname": command.groupname,
        "server": command.server,
        "server_name": command.server_name,
        "requested_by": command.requested_by,
    }));
    object.extend(live);
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

    fn now() -> Timestamp {
        Timestamp::parse("2026-11-21T12:00:00Z").unwrap()
    }

    fn read(body: &Value) -> Result<NewCommand, Error> {
        NewCommand::read(Fields::from_json(body.to_string().as_bytes()).unwrap(), now())
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
    fn times_and_being_offline() {
        let with = |more: Value| {
            let mut body = json!({"server": "a", "line": "id"});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let command = read(&with(json!({}))).unwrap();
        assert_eq!((command.scheduled_at, command.expires_at, command.on_offline), (None, None, OnOffline::Reject));
        let nulls = json!({"scheduled_at": null, "expires_at": null, "on_offline": null, "env": null, "timeout": null});
        assert!(read(&with(nulls)).is_ok());
        let command = read(&with(json!({
            "scheduled_at": "2026-11-21T14:00:00+01:00", "expires_at": "2026-11-21T13:00:01Z", "on_offline": "queue"
        })))
        .unwrap();
        assert_eq!(command.scheduled_at, Some(now().plus_seconds(3_600)));
        assert_eq!((command.expires_at, command.on_offline), (Some(now().plus_seconds(3_601)), OnOffline::Queue));
        assert!(read(&with(json!({"scheduled_at": "2020-01-01T00:00:00Z"}))).is_ok(), "the past means now");
        for bad in [json!("2026-11-21T13:00:00"), json!("tomorrow"), json!(""), json!(1_700_000_000), json!({})] {
            refused(&with(json!({"scheduled_at": bad})), &["scheduled_at"], None);
            refused(&with(json!({"expires_at": bad})), &["expires_at"], None);
        }
        for (scheduled_at, expires_at) in [
            (json!(null), "2026-11-21T12:00:00Z"),
            (json!("2020-01-01T00:00:00Z"), "2020-01-01T00:00:01Z"),
            (json!("2026-11-21T13:00:00Z"), "2026-11-21T13:00:00Z"),
        ] {
            refused(&with(json!({"scheduled_at": scheduled_at, "expires_at": expires_at})), &["expires_at"], None);
        }
        for bad in [json!("drop"), json!("Queue"), json!(true), json!("")] {
            refused(&with(json!({"on_offline": bad})), &["on_offline"], None);
        }
    }

    #[test]
    fn environments() {
        let with = |env: Value| json!({"server": "a", "line": "id", "env": env});
        let command = read(&with(json!({"A_1": "b", "_": "", "a": "ü\n"}))).unwrap();
        assert_eq!(command.env.unwrap().len(), 3);
        assert_eq!(read(&with(json!({}))).unwrap().env, Some(Environment::new()));
        let many: Map<String, Value> = (0..101).map(|n| (format!("A{n}"), json!(""))).collect();
        for bad in [
            json!([]),
            json!("A=b"),
            json!({"A": 1}),
            json!({"A": null}),
            json!({"": "x"}),
            json!({"A=B": "x"}),
            json!({"1A": "x"}),
            json!({"A B": "x"}),
            json!({"Ä": "x"}),
            json!({"A\0": "x"}),
            json!({"A": "x\0"}),
            json!({"A".repeat(129): "x"}),
            json!({"A": "x".repeat(32 * 1024)}),
            json!(many),
        ] {
            refused(&with(bad), &["env"], None);
        }
        assert!(read(&with(json!({"A".repeat(128): "x".repeat(32 * 1024 - 128)}))).is_ok());
    }

    #[test]
    fn who_may_run_what() {
        let command = Command {
            id: Uuid::nil(),
            shell: Shell::System,
            line: "id".into(),
            username: "alice".into(),
            groupname: String::new(),
            server: id::parse(SERVER).unwrap(),
            server_name: "web-1".into(),
            requested_by: None,
        };
        let origin = Origin { api_token: None, remote_ip: "192.0.2.1".into(), has_env: false };
        let rights = Rights { username: "alice".into(), is_staff: false, any_account: false, acl: None };
        assert_eq!(rights.allow(&command, &origin), Ok(()));
        let as_other = Command { username: "root".into(), ..command.clone() };
        let as_group = Command { groupname: "www".into(), ..command.clone() };
        let internal = Command { shell: Shell::Internal, ..command.clone() };
        assert_eq!(rights.allow(&as_other, &origin), Err(Denial::Account));
        assert_eq!(rights.allow(&as_group, &origin), Err(Denial::Account));
        assert_eq!(rights.allow(&internal, &origin), Err(Denial::Internal));
        let free = Rights { any_account: true, is_staff: true, ..rights.clone() };
        for command in [&as_other, &as_group, &internal] {
            assert_eq!(free.allow(command, &origin), Ok(()));
        }
        let limited = |acl: Value| Rights { acl: Some(Acl::read(&acl).unwrap()), ..free.clone() };
        let denied = |acl: Value, command: &Command, origin: &Origin| {
            assert_eq!(limited(acl.clone()).allow(command, origin), Err(Denial::Acl), "{acl}");
        };
        assert_eq!(
            limited(json!({"usernames": ["alice"], "networks": ["192.0.2.0/24"]})).allow(&command, &origin),
            Ok(())
        );
        denied(json!({"usernames": ["bob"]}), &command, &origin);
        denied(json!({"usernames": ["alice"]}), &as_group, &origin);
        denied(json!({"networks": ["198.51.100.0/24"]}), &command, &origin);
        denied(json!({"commands": ["id"]}), &command, &Origin { has_env: true, ..origin.clone() });
        denied(json!({"commands": ["ls"]}), &command, &origin);
        denied(json!({"servers": []}), &command, &origin);
        denied(json!({"read_only": true}), &command, &origin);
    }

    #[test]
    fn a_long_result_is_split_for_lists() {
        let long = "x".repeat(output::MAX_RESULT_IN_LIST + 1);
        assert_eq!(split_result(None), (None, None));
        assert_eq!(split_result(Some("abc")), (Some("abc"), None));
        assert_eq!(split_result(Some(&long)), (Some(&long[1..]), Some(long.as_str())));
    }
}
