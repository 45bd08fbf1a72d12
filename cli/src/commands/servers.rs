//! `farhand servers`: lists servers.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::Value;

use super::{DEFAULT_LIMIT, note_rest, typed};
use crate::connection::Options;
use crate::error::Result;
use crate::output::{Table, or_dash, print_list};
use crate::time;
use crate::types::Server;

/// List servers
#[derive(Args)]
pub struct Arguments {
    /// Only servers with these words in the name, the address, the system or the agent's version
    #[arg(long, value_name = "WORDS")]
    search: Option<String>,
    /// Only servers whose labels match, such as env=prod,role=web
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Only servers whose agent is connected
    #[arg(long)]
    connected: bool,
    /// Only servers whose agent is not connected
    #[arg(long, conflicts_with = "connected")]
    offline: bool,
    /// Only servers whose host has this policy
    #[arg(long, value_name = "MODE", value_parser = ["open", "accounts", "argv", "custom", "none"])]
    policy: Option<String>,
    /// How many to show
    #[arg(short = 'n', long, default_value = DEFAULT_LIMIT)]
    limit: usize,
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<()> {
    let mut filters = vec![("ordering", "name".to_owned())];
    if arguments.connected || arguments.offline {
        filters.push(("is_connected", arguments.connected.to_string()));
    }
    filters.extend(arguments.selector.clone().map(|selector| ("label", selector)));
    filters.extend(arguments.policy.clone().map(|mode| ("policy", mode)));
    filters.extend(arguments.search.clone().map(|words| ("search", words)));
    let (items, count) = options.connect()?.list("/api/servers/", &filters, arguments.limit)?;
    print_list(&items, options.output, table)?;
    note_rest(items.len(), count);
    Ok(())
}

fn table(items: &[Value]) -> Result<Table> {
    let mut table = Table::new(&[
        "NAME",
        "STATE",
        "LABELS",
        "SYSTEM",
        "AGENT",
        "POLICY",
        "LOAD",
        "ADDRESS",
        "LAST SEEN",
        "ID",
    ]);
    for item in items {
        let server: Server = typed(item)?;
        let state = match (server.registration.as_str(), server.is_connected) {
            ("pending", _) => "pending",
            (_, true) => "connected",
            (_, false) => "offline",
        };
        let system: Vec<String> =
            [server.os_name, server.os_version].into_iter().flatten().collect();
        table.row([
            server.name,
            state.to_owned(),
            or_dash((!server.labels.is_empty()).then(|| labels(&server.labels))),
            or_dash((!system.is_empty()).then(|| system.join(" "))),
            or_dash(server.agent_version),
            or_dash(server.policy.map(|policy| policy.mode)),
            or_dash(server.load.map(|load| format!("{load:.2}"))),
            or_dash(server.remote_ip),
            time::shown_or(server.last_seen_at.as_deref(), "never"),
            server.id,
        ]);
    }
    Ok(table)
}

/// The labels as a selector that matches them.
fn labels(labels: &BTreeMap<String, String>) -> String {
    let terms = labels.iter().map(|(key, value)| format!("{key}={value}"));
    terms.collect::<Vec<_>>().join(",")
}
