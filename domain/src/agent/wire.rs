//! The messages between the service and an agent (agent-protocol 3 and 4). The Worker and the agent
//! share this module.

use std::collections::BTreeMap;

use crate::agent::account::is_account;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::http::fields::as_integer;

/// The header of the WebSocket handshake in which an agent announces its features beyond Alpamon,
/// separated by commas (agent-protocol 6.1).
pub const FEATURES_HEADER: &str = "X-Agent-Features";
/// The agent kills commands, on request and at their timeout.
pub const FEATURE_KILL: &str = "kill";
/// The agent stores commands across a restart, and repeats its reports for a repeated command.
pub const FEATURE_REPLAY: &str = "replay";
/// The agent runs a program with any arguments, without a shell: [`AgentCommand::argv`].
pub const FEATURE_ARGV: &str = "argv";
/// The agent runs a script: [`AgentCommand::script`].
pub const FEATURE_SCRIPT: &str = "script";
/// The agent writes to the standard input of a command: [`AgentCommand::stdin`].
pub const FEATURE_STDIN: &str = "stdin";
/// The agent runs a command in a given directory: [`AgentCommand::cwd`].
pub const FEATURE_CWD: &str = "cwd";

/// A message from the service on the backhaul WebSocket.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "query", rename_all = "snake_case")]
pub enum MessageToAgent {
    /// Reply with [`MessageFromAgent::Pong`].
    Ping,
    /// Run a command.
    Command {
        /// The command to run.
        command: Box<AgentCommand>,
    },
    /// Kill a command with all processes that it started, or do not start it (agent-protocol 6.2).
    /// Only for agents that announce [`FEATURE_KILL`].
    Kill {
        /// The command's id.
        id: Uuid,
    },
    /// Close the WebSocket with 1000, and dial again immediately.
    Reconnect,
    /// Exit the agent's process.
    Quit,
    /// A message that this version does not support. An agent ignores it.
    #[serde(other)]
    Unknown,
}

/// A message from an agent on the backhaul WebSocket.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "query", rename_all = "snake_case")]
pub enum MessageFromAgent {
    /// The reply to [`MessageToAgent::Ping`].
    Pong,
    /// A message that this version does not support. The service ignores it.
    #[serde(other)]
    Unknown,
}

/// A command in the form that an agent gets.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct AgentCommand {
    /// The command's id, which the agent's reports name.
    pub id: Uuid,
    /// `system`: a line for the host's shell. `internal`: a built-in command of the agent.
    pub shell: String,
    /// The command line.
    pub line: String,
    /// The account to run as. It is always set, because an agent reads an empty account as root.
    pub user: String,
    /// The group to run as; empty: the account's own group.
    #[serde(default)]
    pub group: String,
    /// Additional environment variables.
    #[serde(default)]
    pub env: Option<Map<String, Value>>,
    /// True: run `/bin/sh -c line`. False: split the line at blanks, and run it without a shell.
    #[serde(default)]
    pub allow_sh: bool,
    /// Unused. Alpamon needs a string or null.
    #[serde(default)]
    pub data: Option<String>,
    /// Seconds after which the agent kills the command. Only for agents that announce
    /// [`FEATURE_KILL`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// The requester's username, for the host's journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// The program and its arguments, to run without a shell. `line` repeats them for agents
    /// without [`FEATURE_ARGV`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// A script to run instead of the line. Only for agents that announce [`FEATURE_SCRIPT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Script>,
    /// The standard input of the command. Only for agents that announce [`FEATURE_STDIN`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// The working directory instead of the account's home. Only for agents that announce
    /// [`FEATURE_CWD`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// A script in the form that an agent gets.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Script {
    /// The program that reads the script, such as `/bin/sh`, and its arguments, separated by
    /// blanks.
    pub interpreter: String,
    /// The script's text.
    pub body: String,
    /// The SHA-256 of the body, in lower-case hexadecimal. An agent refuses a body with another
    /// hash.
    pub sha256: String,
}

/// Reads a whole number. As in JSON Schema, `7.0` is a whole number.
fn whole<'de, D: Deserializer<'de>, T: TryFrom<i128>>(number: D) -> Result<T, D::Error> {
    let value = Value::deserialize(number)?;
    // u64 covers numbers above the range of i64.
    let number = value.as_u64().map(i128::from).or_else(|| as_integer(&value).map(i128::from));
    number
        .and_then(|number| number.try_into().ok())
        .ok_or_else(|| D::Error::custom("expected a whole number in range"))
}

/// Like [`whole`], for a number that may be missing or null.
fn optional_whole<'de, D: Deserializer<'de>, T: TryFrom<i128>>(
    number: D,
) -> Result<Option<T>, D::Error> {
    match Value::deserialize(number)? {
        Value::Null => Ok(None),
        value => whole(value).map(Some).map_err(D::Error::custom),
    }
}

/// A piece of a running command's output: the body of `POST …/chunk/`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Chunk {
    /// The number of the chunk. The agent counts from 0 without gaps. Chunks can arrive out of
    /// order.
    #[serde(deserialize_with = "whole")]
    pub seq: u32,
    /// The text of this piece.
    pub content: String,
}

/// The end of a command: the body of `POST …/fin/`. The default value reports a failure without
/// details.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Fin {
    /// Whether the command succeeded.
    pub success: bool,
    /// The whole output. Agents cut it.
    #[serde(default)]
    pub result: Option<String>,
    /// How long the command ran, in seconds.
    #[serde(default)]
    pub elapsed_time: Option<f64>,
    /// The exit code. Older agents do not send it.
    #[serde(default, deserialize_with = "optional_whole")]
    pub exit_code: Option<i64>,
    /// The number of chunks, so that a follower knows when the output is complete. Only Farhand's
    /// agent sends it.
    #[serde(default, deserialize_with = "optional_whole", skip_serializing_if = "Option::is_none")]
    pub chunks: Option<u32>,
    /// The bytes of the whole output. Agents send only the output that the service keeps. Only
    /// Farhand's agent sends this.
    #[serde(default, deserialize_with = "optional_whole", skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// Why the agent did not run the command: one sentence. In this case `result` is empty. Only
    /// Farhand's agent sends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Facts that an agent reports about itself and its host: the used part of the body of
/// `PUT …/commit/` and `PATCH …/sync/` (agent-protocol 2.2).
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct HostFacts {
    /// The agent's version.
    pub version: Option<String>,
    /// The host's load average.
    pub load: Option<f64>,
    /// The family of the host's operating system, such as `debian`.
    pub platform: Option<String>,
    /// The name of the host's operating system.
    pub os_name: Option<String>,
    /// The version of the host's operating system.
    pub os_version: Option<String>,
    /// The number of logical processors.
    pub cpu_logical_cores: Option<i64>,
    /// The memory in bytes.
    pub physical_memory: Option<i64>,
    /// The agent's account, if the agent is not root and can run commands only as this account.
    #[serde(default)]
    pub default_username: Option<String>,
    /// The policy of the host. Only Farhand's agent sends it.
    #[serde(default)]
    pub policy: Option<HostPolicy>,
}

/// The kind of a host's policy (contract 6.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyMode {
    /// No rule limits commands.
    Open,
    /// No command runs as root.
    Accounts,
    /// Only listed words run.
    Argv,
    /// Other rules, or a policy that refuses every command.
    Custom,
    /// The host has no policy.
    None,
}

impl PolicyMode {
    /// All modes.
    pub const ALL: [Self; 5] = [Self::Open, Self::Accounts, Self::Argv, Self::Custom, Self::None];

    /// The name in requests, responses and D1.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Accounts => "accounts",
            Self::Argv => "argv",
            Self::Custom => "custom",
            Self::None => "none",
        }
    }
}

/// The policy of a host, as its agent reports it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostPolicy {
    /// The kind of the policy.
    pub mode: PolicyMode,
    /// The SHA-256 of the policy file. `None`: no file, or a policy that refuses every command.
    pub sha256: Option<String>,
}

impl HostPolicy {
    /// Whether the hash has the form of a SHA-256, if there is one.
    fn is_valid(&self) -> bool {
        let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        self.sha256.as_ref().is_none_or(|hash| hash.len() == 64 && hash.bytes().all(is_digit))
    }
}

/// Maximum length of a text in [`HostFacts`], in characters. A longer text is cut.
const MAX_FACT: usize = 200;

/// The members of a JSON object by name, as text. Members that are not used are not parsed.
type Members<'a> = BTreeMap<String, &'a RawValue>;

/// Reads a member. A member of another type is treated as absent, because agents differ.
fn member<'a, T: Deserialize<'a>>(members: &Members<'a>, name: &str) -> Option<T> {
    serde_json::from_str(members.get(name)?.get()).ok()
}

/// Reads a text, without null characters and cut to [`MAX_FACT`].
fn text(members: &Members<'_>, name: &str) -> Option<String> {
    let text: String = member(members, name)?;
    Some(text.replace('\0', "").chars().take(MAX_FACT).collect())
}

impl HostFacts {
    /// Reads the body of a report.
    ///
    /// # Errors
    /// The body is not a JSON object.
    pub fn read(body: &str) -> Result<Self, serde_json::Error> {
        let members: Members<'_> = serde_json::from_str(body)?;
        let info = Self::from_info(&member(&members, "info").unwrap_or_default());
        let os = Self::from_os(&member(&members, "os").unwrap_or_default());
        Ok(Self {
            version: text(&members, "version"),
            default_username: text(&members, "default_username")
                .filter(|name| name != "root" && !name.is_empty() && is_account(name)),
            load: member(&members, "load"),
            platform: os.platform,
            os_name: os.os_name,
            os_version: os.os_version,
            cpu_logical_cores: info.cpu_logical_cores,
            physical_memory: info.physical_memory,
            policy: member(&members, "policy").filter(HostPolicy::is_valid),
        })
    }

    /// Reads the body of a report about one category, `info` or `os` (agent-protocol 2.2). Returns
    /// `None` if it is another category, or the body is not a JSON object.
    pub fn read_category(category: &str, body: &str) -> Option<Self> {
        let members: Members<'_> = serde_json::from_str(body).ok()?;
        match category {
            "info" => Some(Self::from_info(&members)),
            "os" => Some(Self::from_os(&members)),
            _ => None,
        }
    }

    fn from_info(info: &Members<'_>) -> Self {
        let count =
            |name: &str| member::<i64>(info, name).filter(|number| (0..=1 << 53).contains(number));
        Self {
            cpu_logical_cores: count("cpu_logical_cores"),
            physical_memory: count("physical_memory"),
            ..Self::default()
        }
    }

    fn from_os(os: &Members<'_>) -> Self {
        Self {
            platform: text(os, "platform_like").or_else(|| text(os, "platform")),
            os_name: text(os, "name"),
            os_version: text(os, "version"),
            ..Self::default()
        }
    }
}

/// The load in the body of a heartbeat, `PATCH …/-/status/`. Alpamon does not send it.
pub fn heartbeat_load(body: &str) -> Option<f64> {
    let members: Members<'_> = serde_json::from_str(body).ok()?;
    member(&members, "load").filter(|load: &f64| load.is_finite() && *load >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn alpamon_can_read_the_messages() {
        let order = AgentCommand {
            id: Uuid::nil(),
            shell: "system".into(),
            line: "id".into(),
            user: "deploy".into(),
            group: String::new(),
            allow_sh: true,
            ..AgentCommand::default()
        };
        let sent =
            serde_json::to_value(MessageToAgent::Command { command: Box::new(order) }).unwrap();
        let expected = json!({"query": "command", "command": {
            "id": "00000000-0000-0000-0000-000000000000", "shell": "system", "line": "id", "user": "deploy",
            "group": "", "env": null, "allow_sh": true, "data": null,
        }});
        assert_eq!(sent, expected);
        assert_eq!(serde_json::to_value(MessageToAgent::Ping).unwrap(), json!({"query": "ping"}));
    }

    #[test]
    fn unknown_messages_are_read_as_unknown() {
        assert_eq!(
            serde_json::from_str::<MessageToAgent>(r#"{"query":"dance","tempo":3}"#).unwrap(),
            MessageToAgent::Unknown
        );
        assert_eq!(
            serde_json::from_str::<MessageFromAgent>(r#"{"query":"pong","timestamp":1.5}"#)
                .unwrap(),
            MessageFromAgent::Pong
        );
    }

    #[test]
    fn reports_may_lack_fields_and_have_whole_floats() {
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
    fn a_heartbeat_may_have_a_load() {
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
    fn malformed_facts_are_treated_as_absent() {
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

    #[test]
    fn a_policy_has_a_known_mode_and_a_hash_or_null() {
        let policy = |policy: Value| {
            HostFacts::read(&json!({"version": "0.3.0", "policy": policy}).to_string())
                .unwrap()
                .policy
        };
        for mode in PolicyMode::ALL {
            assert_eq!(json!(mode), mode.as_str());
            let read = policy(json!({"mode": mode.as_str(), "sha256": null, "more": 1}));
            assert_eq!(read, Some(HostPolicy { mode, sha256: None }));
        }
        let hash = "0f".repeat(32);
        let read = policy(json!({"mode": "argv", "sha256": hash}));
        assert_eq!(read.unwrap().sha256.as_deref(), Some(&*hash));
        for bad in [
            json!(null),
            json!("open"),
            json!({}),
            json!({"mode": "lax", "sha256": null}),
            json!({"mode": "open", "sha256": 7}),
            json!({"mode": "open", "sha256": hash[1..]}),
            json!({"mode": "open", "sha256": hash.to_uppercase()}),
        ] {
            assert_eq!(policy(bad.clone()), None, "{bad}");
        }
    }
}
