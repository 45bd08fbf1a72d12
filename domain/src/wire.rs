//! The messages between the service and an agent (agent-protocol 3 and 4), shared by both.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

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
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
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
}

/// A piece of output while a command runs: `POST …/chunk/`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Chunk {
    /// From 0, without gaps; chunks can arrive out of order.
    pub seq: u32,
    /// The text.
    pub content: String,
}

/// The end of a command: `POST …/fin/`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
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
    #[serde(default)]
    pub exit_code: Option<i64>,
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
            env: None,
            allow_sh: true,
            data: None,
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
        assert_eq!(serde_json::from_str::<ToAgent>(r#"{"query":"dance","tempo":3}"#).unwrap(), ToAgent::Unknown);
        assert_eq!(serde_json::from_str::<FromAgent>(r#"{"query":"pong","timestamp":1.5}"#).unwrap(), FromAgent::Pong);
    }

    #[test]
    fn older_agents_leave_fields_out() {
        let fin: Fin = serde_json::from_str(r#"{"success":true,"result":"x","elapsed_time":0.1}"#).unwrap();
        assert_eq!((fin.exit_code, fin.elapsed_time), (None, Some(0.1)));
    }
}
