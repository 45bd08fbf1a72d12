//! Commands: the fields of a request for a command (contract 7.2), and the message for the agent.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::agent::account::read_account;
use crate::agent::features::{Feature, Features};
use crate::agent::wire::{AgentCommand, Script};
pub use crate::command::inputs::Inputs;
use crate::command::inputs::{Environment, read_cwd, read_environment, read_stdin};
use crate::command::script::carrier::{MAX_CARRIED_BODY, carrier_line};
use crate::command::script::parameters::PREFIX;
use crate::command::script::{ScriptCall, ScriptRef};
use crate::error::Error;
use crate::http::fields::{BLANK, Fields, REQUIRED};
use crate::id;
use crate::limits::quota;
use crate::shell_words;
use crate::time::Timestamp;

/// Maximum length of `line`, in characters.
pub const MAX_LINE: usize = 16_384;
/// Maximum number of targets of a batch, which runs one command on all of them.
pub const MAX_TARGETS: usize = 5_000;
/// Maximum number of words in `argv`.
pub const MAX_ARGV_WORDS: usize = 256;
/// The default of `timeout`, in seconds.
const DEFAULT_TIMEOUT: i64 = 1_800;
/// Maximum `timeout`, in seconds.
const MAX_TIMEOUT: i64 = 86_400;

/// What runs the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shell {
    /// The host's `/bin/sh`.
    System,
    /// The agent itself: the line is one of its built-in commands. For staff only.
    #[serde(rename = "internal")]
    Builtin,
}

impl Shell {
    /// The name in requests, responses and D1.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Builtin => "internal",
        }
    }
}

/// The server that a request names. In JSON: a text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ServerRef {
    /// By its id.
    Id(Uuid),
    /// By its name in the workspace.
    Name(String),
}

/// Seconds for which the response for an Idempotency-Key is replayed (contract 3.11).
pub const IDEMPOTENCY_KEY_TTL: i64 = 24 * 60 * 60;

/// What happens to an immediate command if the agent is not connected (contract 7.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OnOffline {
    /// The command is refused, and nothing is stored.
    Reject,
    /// The command waits for the agent until `expires_at`.
    Queue,
}

/// What runs, as which account and for how long: the fields that requests for commands and for
/// batches share (contract 7.2).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandSpec {
    /// What runs the line.
    pub shell: Shell,
    /// What to run. With `argv`: the words, quoted as a shell would read them.
    pub line: String,
    /// The program and its arguments, to run without a shell.
    pub argv: Option<Vec<String>>,
    /// The script to run instead of the line. Until its version is frozen, `line` is empty.
    pub script: Option<ScriptCall>,
    /// The remote account; `None`: the default of each server.
    pub username: Option<String>,
    /// The remote group; empty: the account's own group.
    pub groupname: String,
    /// How long it may run, in seconds.
    pub timeout: i64,
    /// Environment, standard input and working directory.
    pub inputs: Option<Inputs>,
}

/// A valid request for a command. Server, account and permission are not checked yet.
#[derive(Clone, Debug)]
pub struct NewCommand {
    /// Where to run it.
    pub server: ServerRef,
    /// What to run.
    pub spec: CommandSpec,
    /// When to run it; `None` or a past time: now.
    pub scheduled_at: Option<Timestamp>,
    /// The latest time of its delivery; `None`: the default of
    /// [`crate::command::lifecycle::Lifecycle::new`].
    pub expires_at: Option<Timestamp>,
    /// What happens if it is immediate and the agent is not connected.
    pub on_offline: OnOffline,
}

/// Reads `server`: an id or a name.
pub(crate) fn read_server(fields: &mut Fields) -> Option<ServerRef> {
    fields
        .text("server", 1..=64)
        .map(|text| id::parse(&text).map_or(ServerRef::Name(text), ServerRef::Id))
}

/// Reads a time that may be missing or null.
fn read_time(fields: &mut Fields, name: &'static str) -> Option<Timestamp> {
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

/// Reads `line`, or its alias `command`.
fn read_line(fields: &mut Fields) -> Option<String> {
    let (has_line, has_command) =
        (fields.value("line").is_some(), fields.value("command").is_some());
    let name = if has_command && !has_line { "command" } else { "line" };
    if has_line && has_command && fields.value("line") != fields.value("command") {
        fields.reject("command", "line and command differ. Send one of them.");
        return None;
    }
    let message: Cow<'static, str> = match fields.value(name) {
        None => {
            fields.reject("line", REQUIRED);
            return None;
        }
        Some(Value::String(line)) if line.trim().is_empty() => BLANK.into(),
        Some(Value::String(line)) if line.contains('\0') => {
            "Null characters are not allowed.".into()
        }
        Some(Value::String(line)) if line.chars().count() > MAX_LINE => {
            format!("Ensure this field has no more than {MAX_LINE} characters.").into()
        }
        Some(Value::String(line)) => return Some(line.clone()),
        Some(_) => {
            fields.reject(name, "Not a valid string.");
            return None;
        }
    };
    fields.reject(name, message);
    None
}

/// Reads `argv`.
fn read_words(fields: &mut Fields) -> Option<Vec<String>> {
    if fields.value("line").is_some() || fields.value("command").is_some() {
        fields.reject("argv", "Give either line or argv.");
        return None;
    }
    let words = match fields.value("argv") {
        Some(Value::Array(words)) => words
            .iter()
            .map(|word| word.as_str().map(ToOwned::to_owned))
            .collect::<Option<Vec<_>>>(),
        _ => None,
    };
    let Some(words) = words else {
        fields.reject("argv", "Not a valid list of strings.");
        return None;
    };
    let problem: Cow<'static, str> = if words.is_empty() || words.len() > MAX_ARGV_WORDS {
        format!("Ensure there are 1 to {MAX_ARGV_WORDS} strings.").into()
    } else if words.iter().any(|word| word.contains('\0')) {
        "Null characters are not allowed.".into()
    } else if words.iter().map(|word| word.chars().count()).sum::<usize>() > MAX_LINE {
        format!("Ensure the strings have no more than {MAX_LINE} characters together.").into()
    } else if words[0].trim().is_empty() {
        "The first string names the program and may not be blank.".into()
    } else {
        return Some(words);
    };
    fields.reject("argv", problem);
    None
}

/// What a request runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WhatToRun {
    /// The line; for `argv` its words, quoted as a shell would read them; for a script empty.
    pub line: String,
    /// The program and its arguments, to run without a shell.
    pub argv: Option<Vec<String>>,
    /// The script to run.
    pub script: Option<ScriptCall>,
}

/// Reads what to run: a line, `argv` or a script.
pub(crate) fn read_what_to_run(fields: &mut Fields) -> Option<WhatToRun> {
    let script = ScriptCall::read(fields);
    if fields.value("script").is_some() {
        if ["line", "command", "argv"].iter().any(|name| fields.value(name).is_some()) {
            fields.reject("script", "Give one of line, argv and script.");
            return None;
        }
        return script.map(|call| WhatToRun {
            line: String::new(),
            argv: None,
            script: Some(call),
        });
    }
    if fields.value("argv").is_some() {
        let words = read_words(fields)?;
        let line = shell_words::quoted(&words);
        return Some(WhatToRun { line, argv: Some(words), script: None });
    }
    read_line(fields).map(|line| WhatToRun { line, argv: None, script: None })
}

impl CommandSpec {
    /// Reads the fields. Returns `None` if one of them was rejected.
    pub(crate) fn read(fields: &mut Fields) -> Option<Self> {
        let run = read_what_to_run(fields);
        let shell = match fields.value("shell").map(Value::as_str) {
            None | Some(Some("system")) => Some(Shell::System),
            Some(Some("internal")) => Some(Shell::Builtin),
            Some(_) => {
                fields.reject("shell", "Choose system or internal.");
                None
            }
        };
        let username = read_account(fields, "username", 1);
        let groupname = read_account(fields, "groupname", 0).unwrap_or_default();
        let timeout =
            fields.optional_integer("timeout", 1..=MAX_TIMEOUT).unwrap_or(DEFAULT_TIMEOUT);
        if shell == Some(Shell::Builtin) {
            for name in ["argv", "script", "stdin", "cwd"] {
                if fields.value(name).is_some() {
                    fields.reject(name, "The agent's built-ins take only a line.");
                }
            }
        }
        let env = read_environment(fields);
        let is_param = |name: &String| name.starts_with(PREFIX);
        if fields.value("script").is_some() && env.iter().flat_map(Environment::keys).any(is_param)
        {
            fields.reject("env", "With script, names may not begin with PARAM_. Use params.");
        }
        let (stdin, cwd) = (read_stdin(fields), read_cwd(fields));
        let inputs = Inputs { env, stdin, cwd, params: Environment::new() }.non_empty();
        let (WhatToRun { line, argv, script }, shell) = run.zip(shell)?;
        Some(Self { shell, line, argv, script, username, groupname, timeout, inputs })
    }

    /// Whether the request has an environment, standard input or a working directory. See
    /// [`Origin::has_inputs`].
    pub fn has_inputs(&self) -> bool {
        let inputs = self.inputs.as_ref();
        inputs.is_some_and(|i| i.env.is_some() || i.stdin.is_some() || i.cwd.is_some())
    }

    /// The bytes that one command of this kind counts for the quotas of bytes.
    pub fn stored_bytes(&self) -> u64 {
        quota::COMMAND_BYTES + self.text_bytes()
    }

    /// The bytes of the line and the inputs.
    pub fn text_bytes(&self) -> u64 {
        text_bytes(&self.line, self.inputs.as_ref())
    }
}

/// The bytes of a line and its inputs.
fn text_bytes(line: &str, inputs: Option<&Inputs>) -> u64 {
    (line.len() + inputs.map_or(0, |inputs| json!(inputs).to_string().len())) as u64
}

/// Reads `scheduled_at` and `expires_at`. `now` is the time of the request. `max_days_ahead` limits
/// `scheduled_at`.
pub(crate) fn read_times(
    fields: &mut Fields,
    now: Timestamp,
    max_days_ahead: i64,
) -> (Option<Timestamp>, Option<Timestamp>) {
    let scheduled_at = read_time(fields, "scheduled_at");
    if scheduled_at
        .is_some_and(|at| at > now.plus_seconds(max_days_ahead.saturating_mul(24 * 60 * 60)))
    {
        fields.reject("scheduled_at", format!("Must be at most {max_days_ahead} days ahead."));
    }
    let expires_at = read_time(fields, "expires_at");
    let earliest = scheduled_at.map_or(now, |scheduled| scheduled.max(now));
    if expires_at.is_some_and(|expires| expires <= earliest) {
        fields.reject("expires_at", "Ensure this is in the future, and later than scheduled_at.");
    }
    (scheduled_at, expires_at)
}

impl NewCommand {
    /// Reads a request for a command. `now` is the time of the request. `max_days_ahead` limits
    /// `scheduled_at`.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(mut fields: Fields, now: Timestamp, max_days_ahead: i64) -> Result<Self, Error> {
        let server = read_server(&mut fields);
        let spec = CommandSpec::read(&mut fields);
        let (scheduled_at, expires_at) = read_times(&mut fields, now, max_days_ahead);
        let on_offline = match fields.value("on_offline").map(Value::as_str) {
            None | Some(Some("reject")) => OnOffline::Reject,
            Some(Some("queue")) => OnOffline::Queue,
            Some(_) => {
                fields.reject("on_offline", "Choose reject or queue.");
                OnOffline::Reject
            }
        };
        let (server, spec) = fields.finish_with(server.zip(spec))?;
        Ok(Self { server, spec, scheduled_at, expires_at, on_offline })
    }
}

/// The credential of a command's request. The permission is checked again with it before a waiting
/// command is delivered (contract 7.5).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// The id of the API token, if the request had one.
    pub api_token: Option<Uuid>,
    /// The id of the login session, if the request had one. A revocation of the session cancels the
    /// waiting command. A logout or the session's expiry does not.
    #[serde(default)]
    pub session: Option<Uuid>,
    /// The client's address.
    pub remote_ip: String,
    /// Whether the command has [`Inputs`]. Some access control lists do not allow them.
    pub has_inputs: bool,
}

/// The user who requested a command (contract 7.1).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Requester {
    /// The user's id.
    pub id: i64,
    /// The user's name.
    pub username: String,
    /// The user's e-mail address.
    pub email: String,
}

/// The part of a command that never changes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Command {
    /// The command's id.
    pub id: Uuid,
    /// What runs the line.
    pub shell: Shell,
    /// What to run. With `argv`: the words, quoted as a shell would read them.
    pub line: String,
    /// The program and its arguments, to run without a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// The script that runs instead of the line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<ScriptRef>,
    /// The remote account.
    pub username: String,
    /// The remote group; empty: the account's own group.
    pub groupname: String,
    /// The server's id.
    pub server: Uuid,
    /// The server's name when the command was created.
    pub server_name: String,
    /// The user who requested it; `None`: the user was deleted.
    pub requested_by: Option<Requester>,
    /// The batch that it belongs to (contract 13).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Uuid>,
}

impl Command {
    /// The bytes that count for the quotas of bytes.
    pub fn stored_bytes(&self, inputs: Option<&Inputs>) -> u64 {
        quota::COMMAND_BYTES + text_bytes(&self.line, inputs)
    }

    /// A feature that the command needs and an agent with these features lacks. `script`: the
    /// script that the command runs, if it is loaded.
    pub fn lacks(
        &self,
        inputs: Option<&Inputs>,
        script: Option<&Script>,
        features: Features,
    ) -> Option<Feature> {
        let needs_script = script.is_some_and(|script| script.body.len() > MAX_CARRIED_BODY);
        let needs_words = self.argv.as_ref().is_some_and(|words| !shell_words::fit_a_line(words));
        let has = |is_set: fn(&Inputs) -> bool| inputs.is_some_and(is_set);
        let lacking = [
            (needs_words && !features.argv, Feature::Argv),
            (needs_script && !features.script, Feature::Script),
            (has(|inputs| inputs.stdin.is_some()) && !features.stdin, Feature::Stdin),
            (has(|inputs| inputs.cwd.is_some()) && !features.cwd, Feature::Cwd),
        ];
        lacking.into_iter().find_map(|(is_lacking, feature)| is_lacking.then_some(feature))
    }

    /// The message for the agent. The agent must have all features that the command needs
    /// ([`Command::lacks`]). `script`: the script, if the command runs one.
    pub fn order(
        &self,
        inputs: Option<&Inputs>,
        script: Option<Script>,
        timeout: i64,
        features: Features,
    ) -> AgentCommand {
        let inputs = inputs.cloned().unwrap_or_default();
        // An agent without the feature `argv` splits the line at blanks.
        let line = match (&self.argv, &script) {
            (Some(words), _) => words.join(" "),
            (None, Some(script)) if !features.script => carrier_line(script),
            _ => self.line.clone(),
        };
        let env: Map<String, Value> = inputs
            .env
            .iter()
            .flatten()
            .chain(&inputs.params)
            .map(|(name, value)| (name.clone(), json!(value)))
            .collect();
        AgentCommand {
            id: self.id,
            shell: self.shell.as_str().to_owned(),
            line,
            user: self.username.clone(),
            group: self.groupname.clone(),
            env: (inputs.env.is_some() || !env.is_empty()).then_some(env),
            // The line of a script is a label. A shell must never read it.
            allow_sh: self.shell == Shell::System
                && self.argv.is_none()
                && (self.script.is_none() || script.is_some()),
            timeout: features.kill.then_some(timeout),
            requested_by: self.requested_by.as_ref().map(|requester| requester.username.clone()),
            argv: self.argv.clone().filter(|_| features.argv),
            script: script.filter(|_| features.script),
            stdin: inputs.stdin,
            cwd: inputs.cwd,
            ..AgentCommand::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::error::Code;
    use crate::secret::SecretKey;

    const SERVER: &str = "01936d3e-7a00-7000-8000-000000000000";

    fn now() -> Timestamp {
        Timestamp::parse("2026-11-21T12:00:00Z").unwrap()
    }

    fn read(body: &Value) -> Result<NewCommand, Error> {
        NewCommand::read(Fields::from_json(body.to_string().as_bytes()).unwrap(), now(), 400)
    }

    #[track_caller]
    fn refused(body: &Value, fields: &[&str]) {
        let error = read(body).expect_err(&body.to_string());
        assert_eq!(error.fields.keys().map(AsRef::as_ref).collect::<Vec<_>>(), fields, "{body}");
    }

    #[test]
    fn a_request_names_server_and_line_in_either_form() {
        let command = read(&json!({"server": SERVER, "line": "id", "username": "deploy"})).unwrap();
        assert_eq!(
            (command.server, command.spec.line.as_str()),
            (ServerRef::Id(id::parse(SERVER).unwrap()), "id")
        );
        let command = read(&json!({"server": "web-1", "command": "id"})).unwrap();
        assert_eq!(
            (command.server, command.spec.line.as_str(), command.spec.username),
            (ServerRef::Name("web-1".into()), "id", None)
        );
        assert_eq!(
            (command.spec.shell, command.spec.timeout, command.spec.groupname.as_str()),
            (Shell::System, 1_800, "")
        );
        assert!(read(&json!({"server": "web-1", "command": "id", "line": "id"})).is_ok());
        assert!(
            read(&json!({"server": "web-1", "command": null, "line": "id", "groupname": "", "shell": "internal"}))
                .is_ok()
        );
    }

    #[test]
    fn blank_and_too_long_lines_are_refused() {
        let longest = "é".repeat(MAX_LINE);
        assert!(read(&json!({"server": "a", "line": longest})).is_ok());
        for bad in ["", " \t\n", "a\0b", &format!("{longest}x")] {
            refused(&json!({"server": "a", "line": bad}), &["line"]);
            refused(&json!({"server": "a", "command": bad}), &["command"]);
        }
        for shell in [json!("bash"), json!("SYSTEM"), json!(""), json!(1)] {
            refused(&json!({"server": "a", "line": "id", "shell": shell}), &["shell"]);
        }
        refused(&json!({"line": ""}), &["line", "server"]);
    }

    #[test]
    fn malformed_fields_are_refused() {
        refused(&json!({}), &["line", "server"]);
        refused(&json!({"server": "a", "line": "id", "command": "ls"}), &["command"]);
        refused(&json!({"server": "a", "line": 7}), &["line"]);
        refused(&json!({"server": 7, "line": "id"}), &["server"]);
        for bad in ["", " ", "a b", "a:b", "../x", "-x", "a\nb"] {
            refused(&json!({"server": "a", "line": "id", "username": bad}), &["username"]);
        }
        refused(&json!({"server": "a", "line": "id", "groupname": "a b"}), &["groupname"]);
        for bad in [json!(0), json!(86_401), json!(1.5), json!("60")] {
            refused(&json!({"server": "a", "line": "id", "timeout": bad}), &["timeout"]);
        }
    }

    #[test]
    fn unknown_fields_are_refused() {
        for name in ["scheduled_for", "run_after", "data", "cmd", "id", "Line"] {
            refused(&json!({"server": "a", "line": "id", name: []}), &[name]);
        }
        assert!(read(&json!({"server": "a", "line": "id", "env": {"ANY": "name"}})).is_ok());
        let error = read(&json!({"line": "id", "data": ""})).unwrap_err().invalid_command();
        assert_eq!(
            (error.code, error.detail.as_ref()),
            (Some(Code::InvalidCommand), "Invalid input: data, server.")
        );
    }

    #[test]
    fn times_and_on_offline_are_read() {
        let with = |more: Value| {
            let mut body = json!({"server": "a", "line": "id"});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let command = read(&with(json!({}))).unwrap();
        assert_eq!(
            (command.scheduled_at, command.expires_at, command.on_offline),
            (None, None, OnOffline::Reject)
        );
        let nulls = json!({"scheduled_at": null, "expires_at": null, "on_offline": null, "env": null, "timeout": null});
        assert!(read(&with(nulls)).is_ok());
        let command = read(&with(json!({
            "scheduled_at": "2026-11-21T14:00:00+01:00", "expires_at": "2026-11-21T13:00:01Z", "on_offline": "queue"
        })))
        .unwrap();
        assert_eq!(command.scheduled_at, Some(now().plus_seconds(3_600)));
        assert_eq!(
            (command.expires_at, command.on_offline),
            (Some(now().plus_seconds(3_601)), OnOffline::Queue)
        );
        assert!(
            read(&with(json!({"scheduled_at": "2020-01-01T00:00:00Z"}))).is_ok(),
            "the past means now"
        );
        assert!(read(&with(json!({"scheduled_at": now().plus_seconds(400 * 86_400)}))).is_ok());
        refused(
            &with(json!({"scheduled_at": now().plus_seconds(400 * 86_400 + 1)})),
            &["scheduled_at"],
        );
        for bad in [
            json!("2026-11-21T13:00:00"),
            json!("tomorrow"),
            json!(""),
            json!(1_700_000_000),
            json!({}),
        ] {
            refused(&with(json!({"scheduled_at": bad})), &["scheduled_at"]);
            refused(&with(json!({"expires_at": bad})), &["expires_at"]);
        }
        for (scheduled_at, expires_at) in [
            (json!(null), "2026-11-21T12:00:00Z"),
            (json!("2020-01-01T00:00:00Z"), "2020-01-01T00:00:01Z"),
            (json!("2026-11-21T13:00:00Z"), "2026-11-21T13:00:00Z"),
        ] {
            refused(
                &with(json!({"scheduled_at": scheduled_at, "expires_at": expires_at})),
                &["expires_at"],
            );
        }
        for bad in [json!("drop"), json!("Queue"), json!(true), json!("")] {
            refused(&with(json!({"on_offline": bad})), &["on_offline"]);
        }
    }

    #[test]
    fn env_is_an_object_of_strings() {
        let with = |env: Value| json!({"server": "a", "line": "id", "env": env});
        let command = read(&with(json!({"A_1": "b", "_": "", "a": "ü\n"}))).unwrap();
        assert_eq!(command.spec.inputs.unwrap().env.unwrap().len(), 3);
        assert_eq!(
            read(&with(json!({}))).unwrap().spec.inputs.unwrap().env,
            Some(Environment::new())
        );
        assert_eq!(read(&with(json!(null))).unwrap().spec.inputs, None);
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
            refused(&with(bad), &["env"]);
        }
        assert!(read(&with(json!({"A".repeat(128): "x".repeat(32 * 1024 - 128)}))).is_ok());
    }

    #[test]
    fn argv_is_a_list_of_words() {
        let with = |argv: Value| json!({"server": "a", "argv": argv});
        let command = read(&with(json!(["echo", "a b", "", "$(id)\n'"]))).unwrap();
        assert_eq!(command.spec.argv.as_deref().map(<[String]>::len), Some(4));
        assert_eq!(command.spec.line, "echo 'a b' '' '$(id)\n'\\'".to_owned() + "''");
        assert!(
            read(&json!({"server": "a", "line": "id", "argv": null})).unwrap().spec.argv.is_none()
        );
        assert!(read(&with(json!(vec!["x".repeat(64); 256]))).is_ok());
        assert!(read(&with(json!(["é".repeat(16_384)]))).is_ok());
        for bad in [
            json!([]),
            json!(vec!["x"; 257]),
            json!(["a\0"]),
            json!(["x".repeat(16_384), "y"]),
            json!([""]),
            json!([" \n", "x"]),
        ] {
            refused(&with(bad), &["argv"]);
        }
        for bad in [json!("id"), json!({}), json!([1]), json!([["id"]]), json!([null])] {
            refused(&with(bad), &["argv"]);
        }
        refused(&json!({"server": "a", "argv": ["id"], "line": "id"}), &["argv"]);
        refused(&json!({"server": "a", "argv": ["id"], "command": "id"}), &["argv"]);
        refused(&json!({"server": "a", "argv": ["id"], "shell": "internal"}), &["argv"]);
    }

    #[test]
    fn stdin_is_a_text_and_cwd_an_absolute_path() {
        let with = |name: &str, value: Value| json!({"server": "a", "line": "id", name: value});
        let inputs = |name: &str, value: Value| read(&with(name, value)).unwrap().spec.inputs;
        assert_eq!(
            inputs("stdin", json!("")),
            Some(Inputs { stdin: Some(String::new()), ..Inputs::default() })
        );
        assert!(
            inputs("stdin", json!("\0é\n")).is_some() && inputs("stdin", json!(null)).is_none()
        );
        assert!(inputs("stdin", json!("x".repeat(65_536))).is_some());
        for bad in
            [json!(1), json!([]), json!({}), json!("x".repeat(65_537)), json!("é".repeat(32_769))]
        {
            refused(&with("stdin", bad), &["stdin"]);
        }
        assert_eq!(
            inputs("cwd", json!("/srv/a b")),
            Some(Inputs { cwd: Some("/srv/a b".into()), ..Inputs::default() })
        );
        for bad in [
            json!(""),
            json!("srv"),
            json!("./x"),
            json!("~"),
            json!(" /x"),
            json!("/a\0"),
            json!(1),
        ] {
            refused(&with("cwd", bad), &["cwd"]);
        }
        refused(&with("cwd", json!(format!("/{}", "x".repeat(4_095)))), &["cwd"]);
        let internal =
            json!({"server": "a", "line": "id", "shell": "internal", "stdin": "x", "cwd": "/"});
        refused(&internal, &["cwd", "stdin"]);
    }

    #[test]
    fn an_order_has_what_the_agent_understands() {
        let command = Command {
            id: Uuid::nil(),
            shell: Shell::System,
            line: "echo 'A=a'".into(),
            argv: Some(vec!["echo".into(), "A=a".into()]),
            script: None,
            username: "alice".into(),
            groupname: String::new(),
            server: id::parse(SERVER).unwrap(),
            server_name: "web-1".into(),
            requested_by: None,
            batch: None,
        };
        let all = Features { kill: true, argv: true, script: true, stdin: true, cwd: true };
        let none = Features::default();
        let order = command.order(None, None, 60, all);
        assert_eq!(
            (order.line.as_str(), order.allow_sh, order.timeout),
            ("echo A=a", false, Some(60))
        );
        assert_eq!(order.argv.as_deref(), command.argv.as_deref());
        let order = command.order(None, None, 60, none);
        assert_eq!(
            (order.line.as_str(), order.allow_sh, order.timeout, order.argv),
            ("echo A=a", false, None, None)
        );
        assert_eq!(command.lacks(None, None, none), None);
        let blank = Command { argv: Some(vec!["echo".into(), String::new()]), ..command.clone() };
        assert_eq!(
            (blank.lacks(None, None, none), blank.lacks(None, None, all)),
            (Some(Feature::Argv), None)
        );
        let inputs = Inputs { stdin: Some("x".into()), cwd: Some("/".into()), ..Inputs::default() };
        assert_eq!(
            command.lacks(Some(&inputs), None, Features { stdin: false, ..all }),
            Some(Feature::Stdin)
        );
        assert_eq!(
            command.lacks(Some(&inputs), None, Features { cwd: false, ..all }),
            Some(Feature::Cwd)
        );
        assert_eq!(command.lacks(Some(&inputs), None, all), None);
        let order = command.order(Some(&inputs), None, 60, all);
        assert_eq!((order.stdin.as_deref(), order.cwd.as_deref()), (Some("x"), Some("/")));
        let line = Command { argv: None, ..command };
        let order = line.order(None, None, 60, all);
        assert_eq!((order.line.as_str(), order.allow_sh, order.argv), ("echo 'A=a'", true, None));
        assert_eq!(line.lacks(None, None, none), None);
    }

    #[test]
    fn a_script_is_sent_as_such_or_in_a_line() {
        let reference = ScriptRef { id: Uuid::max(), version: 7 };
        let command = Command {
            id: Uuid::nil(),
            shell: Shell::System,
            line: "script:x@7".into(),
            argv: None,
            script: Some(reference),
            username: "alice".into(),
            groupname: String::new(),
            server: id::parse(SERVER).unwrap(),
            server_name: "web-1".into(),
            requested_by: None,
            batch: None,
        };
        let body = |length: usize| Script {
            interpreter: "sh".into(),
            body: "x".repeat(length),
            ..Script::default()
        };
        let (short, long) = (body(MAX_CARRIED_BODY), body(MAX_CARRIED_BODY + 1));
        let (all, none) = (Features { script: true, ..Features::default() }, Features::default());
        let order = command.order(None, Some(short.clone()), 60, all);
        assert_eq!((order.line.as_str(), order.script.as_ref()), ("script:x@7", Some(&short)));
        assert!(order.allow_sh && order.env.is_none());
        let order = command.order(None, Some(short.clone()), 60, none);
        assert_eq!((order.line, order.script), (carrier_line(&short), None));
        assert!(order.allow_sh);
        let lacks = |script, features| command.lacks(None, Some(script), features);
        assert_eq!((lacks(&short, none), lacks(&long, all)), (None, None));
        assert_eq!(lacks(&long, none), Some(Feature::Script));
        let params = Environment::from([("PARAM_A".to_owned(), "1".to_owned())]);
        let env = Environment::from([("B".to_owned(), "2".to_owned())]);
        let inputs = Inputs { env: Some(env), params, ..Inputs::default() };
        let order = command.order(Some(&inputs), Some(short), 60, all);
        assert_eq!(json!(order.env), json!({"B": "2", "PARAM_A": "1"}));
        let text = json!(command);
        assert_eq!(text["script"], format!("{}@7", Uuid::max()));
        assert_eq!(serde_json::from_value::<Command>(text).unwrap(), command);
    }

    #[test]
    fn a_script_runs_instead_of_a_line() {
        let with = |more: Value| {
            let mut body = json!({"server": "a", "script": SERVER});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let spec = read(&with(json!({"params": {"A": 1}, "cwd": "/"}))).unwrap().spec;
        let call = spec.script.as_ref().unwrap();
        assert_eq!(
            (call.version, call.params["A"].clone(), spec.line.as_str()),
            (None, json!(1), "")
        );
        for name in ["line", "command"] {
            refused(&with(json!({name: "id"})), &["script"]);
        }
        refused(&with(json!({"argv": ["id"]})), &["script"]);
        refused(&with(json!({"shell": "internal"})), &["script"]);
        refused(&with(json!({"env": {"PARAM_A": "1"}})), &["env"]);
        assert!(read(&json!({"server": "a", "line": "id", "env": {"PARAM_A": "1"}})).is_ok());
        refused(&json!({"server": "a", "params": {}}), &["line", "params"]);
        refused(&json!({"server": "a", "line": "id", "script_version": 1}), &["script_version"]);
    }

    #[test]
    fn a_frozen_script_has_a_version_and_variables() {
        let version: crate::command::script::ScriptVersion = serde_json::from_value(json!({
            "id": SERVER, "version": 4, "name": "a b", "interpreter": "sh", "body": "id", "sha256": "x",
            "params": [{"name": "A", "type": "integer", "required": true}],
        }))
        .unwrap();
        let spec = |body: Value| read(&body).unwrap().spec;
        let frozen = spec(json!({"server": "a", "script": SERVER, "params": {"A": 1}}));
        assert_eq!((frozen.script_ref(), frozen.inputs.clone()), (None, None));
        let missing = frozen.frozen(None).1.unwrap_err();
        assert!(missing.fields.contains_key("script"));
        let (frozen, valid) = frozen.frozen(Some(&version));
        valid.unwrap();
        assert_eq!(frozen.line, "script:a b@4");
        assert_eq!(frozen.script_ref().unwrap().to_string(), format!("{SERVER}@4"));
        let inputs = frozen.inputs.as_ref().unwrap();
        assert_eq!(json!(inputs), json!({"params": {"PARAM_A": "1"}}));
        assert!(!frozen.has_inputs(), "parameters are not inputs");
        let details = frozen.audit_details(&SecretKey::new(&"x".repeat(32), "").unwrap()).unwrap();
        assert_eq!(details["script"], json!({"id": SERVER, "version": 4, "sha256": "x"}));
        assert_eq!(details["params"], json!(["PARAM_A"]));
        let with_env = spec(json!({"server": "a", "script": SERVER, "env": {"B": ""}}));
        assert!(with_env.has_inputs());
        assert!(with_env.frozen(Some(&version)).1.unwrap_err().fields.contains_key("params"));
        let line = spec(json!({"server": "a", "line": "id"}));
        assert_eq!(line.frozen(None), (line.clone(), Ok(())));
    }
}
