//! The messages between the service and an agent (agent-protocol 3 and 4), shared by both.

use std::collections::BTreeMap;

use crate::account::is_account;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::fields::as_integer;

/// The header of a WebSocket's handshake in which an agent announces what it can beyond Alpamon,
/// separated by commas (agent-protocol 6.1).
pub const FEATURES_HEADER: &str = "X-Agent-Features";
/// It kills commands: on demand, and when their timeout is over.
pub const FEATURE_KILL: &str = "kill";
/// It remembers commands over a restart, and answers a repeated one with what it reported before.
pub const FEATURE_REPLAY: &str = "replay";
/// It runs a program with its arguments as they are, without a shell: [`Order::argv`].
pub const FEATURE_ARGV: &str = "argv";
/// It runs a script whose body it gets: [`Order::script`].
pub const FEATURE_SCRIPT: &str = "script";
/// It gives a command some input: [`Order::stdin`].
pub const FEATURE_STDIN: &str = "stdin";
/// It runs a command in a named directory: [`Order::cwd`].
pub const FEATURE_CWD: &str = "cwd";

/// What the service sends on the backhaul WebSocket.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "query", rename_all = "snake_case")]
pub enum ToAgent {
    /// Asks for a [`FromAgent::Pong`].
    Ping,
    /// Asks to run a command.
    Command {
        /// The command.
        command: Box<Order>,
    },
    /// Asks to kill a command with all that it started, or not to start it (agent-protocol 6.2):
    /// only for agents that announce [`FEATURE_KILL`].
    Kill {
        /// The command.
        id: Uuid,
    },
    /// Asks to close with 1000 and to dial again at once.
    Reconnect,
    /// Asks the agent's process to exit.
    Quit,
    /// A message that this version does not know: an agent ignores it.
    #[serde(other)]
    Unknown,
}

/// What an agent sends on the backhaul WebSocket.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "query", rename_all = "snake_case")]
pub enum FromAgent {
    /// The answer to [`ToAgent::Ping`].
    Pong,
    /// A message that this version does not know: the service ignores it.
    #[serde(other)]
    Unknown,
}

/// A command as the agent gets it.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The command's id; reports name it.
    pub id: Uuid,
    /// `system` (a line for the host's shell) or `internal` (an agent's built-in).
    pub shell: String,
    /// The command line.
    pub line: String,
    /// The account to run as. An empty one means root, so it is always set.
    pub user: String,
    /// The group to run as; empty means the account's own.
    #[serde(default)]
    pub group: String,
    /// More environment variables.
    #[serde(default)]
    pub env: Option<Map<String, Value>>,
    /// True: `/bin/sh -c line`. False: the line is split at blanks and run without a shell.
    #[serde(default)]
    pub allow_sh: bool,
    /// Unused; Alpamon wants a string or null.
    #[serde(default)]
    pub data: Option<String>,
    /// Seconds after which the agent kills it: only for agents that announce [`FEATURE_KILL`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// The requester's username, for the host's own journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// The program and its arguments, which no shell reads; `line` then repeats them for agents
    /// without [`FEATURE_ARGV`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// A script to run in place of the line: only for agents that announce [`FEATURE_SCRIPT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Script>,
    /// What the command can read on its standard input: only for agents that announce
    /// [`FEATURE_STDIN`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// The directory to run in, in place of the account's home: only for agents that announce
    /// [`FEATURE_CWD`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// A script as the agent gets it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Script {
    /// The program that reads the script, such as `/bin/sh`, with arguments of its own separated by
    /// blanks.
    pub interpreter: String,
    /// The script's text.
    pub body: String,
    /// SHA-256 of the body, in lower-case hexadecimal. An agent does not run a body with another
    /// one.
    pub sha256: String,
}

/// Reads a whole number, also one written as `7.0`, which is an integer to JSON Schema.
fn whole<'de, D: Deserializer<'de>, T: TryFrom<i128>>(number: D) -> Result<T, D::Error> {
    let value = Value::deserialize(number)?;
    // Also above the range of i64.
    let number = value.as_u64().map(i128::from).or_else(|| as_integer(&value).map(i128::from));
    number
        .and_then(|number| number.try_into().ok())
        .ok_or_else(|| D::Error::custom("expected a whole number in range"))
}

/// The same for a number that may be missing or null.
fn optional_whole<'de, D: Deserializer<'de>, T: TryFrom<i128>>(
    number: D,
) -> Result<Option<T>, D::Error> {
    match Value::deserialize(number)? {
        Value::Null => Ok(None),
        value => whole(value).map(Some).map_err(D::Error::custom),
    }
}

/// A piece of output while a command runs: `POST …/chunk/`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Chunk {
    /// From 0, without gaps; chunks can arrive out of order.
    #[serde(deserialize_with = "whole")]
    pub seq: u32,
    /// The text.
    pub content: String,
}

/// The end of a command: `POST …/fin/`. The default one reports a failure, and nothing else.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Fin {
    /// Whether it ended well.
    pub success: bool,
    /// The output again; agents cut it.
    #[serde(default)]
    pub result: Option<String>,
    /// Seconds.
    #[serde(default)]
    pub elapsed_time: Option<f64>,
    /// The exit code; older agents leave it out.
    #[serde(default, deserialize_with = "optional_whole")]
    pub exit_code: Option<i64>,
    /// How many chunks there were, so that a follower knows when the output is complete: from the
    /// project's own agent.
    #[serde(default, deserialize_with = "optional_whole", skip_serializing_if = "Option::is_none")]
    pub chunks: Option<u32>,
    /// Bytes of the output before any cut, as agents send no more of it than is kept: from the
    /// project's own agent.
    #[serde(default, deserialize_with = "optional_whole", skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// Why the agent did not run the command, in one sentence; `result` is then empty. From the
    /// project's own agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What an agent tells of itself and its host: the body of `PUT …/commit/` and `PATCH …/sync/`
/// (agent-protocol 2.2), as far as it is of use.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct HostFacts {
    /// The agent's version.
    pub version: Option<String>,
    /// The load average.
    pub load: Option<f64>,
    /// The family of the host's system, such as `debian`.
    pub platform: Option<String>,
    /// The name of the host's system.
    pub os_name: Option<String>,
    /// Its version.
    pub os_version: Option<String>,
    /// Processors, as the system counts them.
    pub cpu_logical_cores: Option<i64>,
    /// Bytes.
    pub physical_memory: Option<i64>,
    /// The account of an agent that is not root and can run commands as nothing else.
    #[serde(default)]
    pub default_username: Option<String>,
}

/// The most characters of a text in [`HostFacts`].
const MAX_FACT: usize = 200;

/// An object's members by name, as text, so that what is of no use costs no more than its length.
type Members<'a> = BTreeMap<String, &'a RawValue>;

/// A member of the type that is wanted; one of another type is as good as none, as agents differ.
fn member<'a, T: Deserialize<'a>>(members: &Members<'a>, name: &str) -> Option<T> {
    serde_json::from_str(members.get(name)?.get()).ok()
}

/// A text as it is kept.
fn text(members: &Members<'_>, name: &str) -> Option<String> {
    let text: String = member(members, name)?;
    Some(text.replace('\0', "").chars().take(MAX_FACT).collect())
}

impl HostFacts {
    /// Reads a body.
    ///
    /// # Errors
    /// It is not a JSON object.
    pub fn read(body: &str) -> Result<Self, serde_json::Error> {
        let told: Members<'_> = serde_json::from_str(body)?;
        let info = Self::of_info(&member(&told, "info").unwrap_or_default());
        let os = Self::of_os(&member(&told, "os").unwrap_or_default());
        Ok(Self {
            version: text(&told, "version"),
            default_username: text(&told, "default_username")
                .filter(|name| name != "root" && !name.is_empty() && is_account(name)),
            load: member(&told, "load"),
            platform: os.platform,
            os_name: os.os_name,
            os_version: os.os_version,
            cpu_logical_cores: info.cpu_logical_cores,
            physical_memory: info.physical_memory,
        })
    }

    /// Reads what an agent that is commissioned tells of one category, `info` or `os`
    /// (agent-protocol 2.2); `None` of another one, or of a body of another form.
    pub fn read_category(category: &str, body: &str) -> Option<Self> {
        let told: Members<'_> = serde_json::from_str(body).ok()?;
        match category {
            "info" => Some(Self::of_info(&told)),
            "os" => Some(Self::of_os(&told)),
            _ => None,
        }
    }

    fn of_info(info: &Members<'_>) -> Self {
        let count =
            |name: &str| member::<i64>(info, name).filter(|number| (0..=1 << 53).contains(number));
        Self {
            cpu_logical_cores: count("cpu_logical_cores"),
            physical_memory: count("physical_memory"),
            ..Self::default()
        }
    }

    fn of_os(os: &Members<'_>) -> Self {
        Self {
            platform: text(os, "platform_like").or_else(|| text(os, "platform")),
            os_name: text(os, "name"),
            os_version: text(os, "version"),
            ..Self::default()
        }
    }
}

/// The load in the body of a heartbeat, `PATCH …/-/status/`. Alpamon sends none.
pub fn heartbeat_load(body: &str) -> Option<f64> {
    let members: Members<'_> = serde_json::from_str(body).ok()?;
    member(&members, "load").filter(|load: &f64| load.is_finite() && *load >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_have_the_form_that_alpamon_reads() {
        let order = Order {
            id: Uuid::nil(),
            shell: "system".into(),
            line: "id".into(),
            user: "deploy".into(),
            group: String::new(),
            allow_sh: true,
            ..Order::default()
        };
        let sent = serde_json::to_value(ToAgent::Command { command: Box::new(order) }).unwrap();
        let expected = json!({"query": "command", "command": {
            "id": "00000000-0000-0000-0000-000000000000", "shell": "system", "line": "id", "user": "deploy",
            "group": "", "env": null, "allow_sh": true, "data": null,
        }});
        assert_eq!(sent, expected);
        assert_eq!(serde_json::to_value(ToAgent::Ping).unwrap(), json!({"query": "ping"}));
    }

    #[test]
    fn unknown_messages_are_read_as_unknown() {
        assert_eq!(
            serde_json::from_str::<ToAgent>(r#"{"query":"dance","tempo":3}"#).unwrap(),
            ToAgent::Unknown
        );
        assert_eq!(
            serde_json::from_str::<FromAgent>(r#"{"query":"pong","timestamp":1.5}"#).unwrap(),
            FromAgent::Pong
        );
    }

    #[test]
    fn older_agents_leave_fields_out() {
        let chunk: Chunk = serde_json::from_str(r#"{"seq":4294967295.0,"content":""}"#).unwrap();
        assert_eq!(chunk.seq, u32::MAX);
        let fin = r#"{"success":false,"exit_code":-1.0,"chunks":2.0,"output_bytes":2509.0}"#;
        let fin: Fin = serde_json::from_str(fin).unwrap();
        assert_eq!((fin.exit_code, fin.chunks, fin.output_bytes), (Some(-1), Some(2), Some(2_509)));
        let fin: Fin =
            serde_json::from_str(r#"{"success":true,"output_bytes":18446744073709551615}"#)
                .unwrap();
        assert_eq!(fin.output_bytes, Some(u64::MAX));
        assert!(
            serde_json::from_str::<Fin>(r#"{"success":true,"exit_code":9223372036854775808}"#)
                .is_err()
        );
        for bad in [
            r#"{"seq":1.5,"content":""}"#,
            r#"{"seq":-1,"content":""}"#,
            r#"{"seq":"1","content":""}"#,
            r#"{"content":""}"#,
        ] {
            assert!(serde_json::from_str::<Chunk>(bad).is_err(), "{bad}");
        }
        let fin: Fin =
            serde_json::from_str(r#"{"success":true,"result":"x","elapsed_time":0.1}"#).unwrap();
        assert_eq!((fin.exit_code, fin.elapsed_time), (None, Some(0.1)));
    }

    #[test]
    fn a_heartbeat_has_a_load_or_nothing() {
        assert_eq!(heartbeat_load(r#"{"load":0.25}"#), Some(0.25));
        assert_eq!(heartbeat_load(r#"{"load":3,"x":1}"#), Some(3.0));
        for other in [
            "",
            "{}",
            "[]",
            r#"{"load":"1"}"#,
            r#"{"load":-1}"#,
            r#"{"load":1e999}"#,
            r#"{"load":null}"#,
        ] {
            assert_eq!(heartbeat_load(other), None, "{other}");
        }
    }

    #[test]
    fn facts_of_another_form_are_left_out() {
        let odd = r#"{"version":7,"load":"high","info":[1],"os":{"name":"x\u0000y","version":null},"more":{"a":[]}}"#;
        let facts = HostFacts::read(odd).unwrap();
        assert_eq!(facts, HostFacts { os_name: Some("xy".into()), ..HostFacts::default() });
        let usual = r#"{"version":"2.1.0","load":0.5,"info":{"cpu_logical_cores":4,"physical_memory":-1},"os":{"platform":"ubuntu","platform_like":"debian"}}"#;
        let facts = HostFacts::read(usual).unwrap();
        assert_eq!(
            (facts.platform.as_deref(), facts.cpu_logical_cores, facts.physical_memory),
            (Some("debian"), Some(4), None)
        );
        assert!(HostFacts::read("[]").is_err() && HostFacts::read("{").is_err());
    }
}
