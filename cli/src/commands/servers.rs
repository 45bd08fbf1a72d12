//! `farhand servers`: lists servers, and undeletes one.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{DEFAULT_LIMIT, note_rest, typed};
use crate::client::{Client, segment};
use crate::connection::Options;
use crate::error::{Error, Result};
use crate::output::{Format, Table, json_text, note, or_dash, print_list, write};
use crate::time;
use crate::types::Server;

const PATH: &str = "/api/servers/servers/";

/// List servers, or undelete one
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
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
    /// Deleted servers that can be undeleted, the last deleted one first. Only for staff
    #[arg(long, conflicts_with_all = ["connected", "offline"])]
    deleted: bool,
    /// How many to show
    #[arg(short = 'n', long, default_value = DEFAULT_LIMIT)]
    limit: usize,
}

#[derive(Subcommand)]
enum Action {
    Undelete(Undeletion),
}

/// Restore a deleted server
///
/// Its agent connects again by itself. Commands that the deletion cancelled stay cancelled.
#[derive(Args)]
struct Undeletion {
    /// The name or the id of the deleted server
    server: String,
    /// Another name, for example because a server has the old name now
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<()> {
    if let Some(Action::Undelete(undeletion)) = &arguments.action {
        return undelete(&options.connect()?, options.output, undeletion);
    }
    let mut filters = if arguments.deleted {
        vec![("deleted", "true".to_owned())]
    } else {
        vec![("ordering", "name".to_owned())]
    };
    if arguments.connected || arguments.offline {
        filters.push(("is_connected", arguments.connected.to_string()));
    }
    filters.extend(arguments.selector.clone().map(|selector| ("label", selector)));
    filters.extend(arguments.policy.clone().map(|mode| ("policy", mode)));
    filters.extend(arguments.search.clone().map(|words| ("search", words)));
    let (items, count) = options.connect()?.list("/api/servers/", &filters, arguments.limit)?;
    print_list(&items, options.output, if arguments.deleted { deleted_table } else { table })?;
    note_rest(items.len(), count);
    Ok(())
}

fn undelete(client: &Client, format: Format, undeletion: &Undeletion) -> Result<()> {
    let id = deleted_id(client, &undeletion.server)?;
    let body = undeletion.name.as_ref().map_or_else(|| json!({}), |name| json!({"name": name}));
    let path = format!("{PATH}{}/undelete/", segment(&id));
    let json: Value = client.post(&path, &body)?.json()?;
    if format != Format::Table {
        return write(&json_text(&json, format));
    }
    let server: Server = typed(&json)?;
    note(&format!("Undeleted {}. Its agent connects again by itself.", server.name));
    write(&format!("{}\n", server.id))
}

/// The id of the deleted server with this name. A UUID is returned unchanged.
fn deleted_id(client: &Client, server: &str) -> Result<String> {
    if uuid::Uuid::try_parse(server).is_ok() {
        return Ok(server.to_owned());
    }
    let filters = [("deleted", "true".to_owned()), ("name", server.to_owned())];
    let (found, count) = client.list(PATH, &filters, 1)?;
    match (found.first(), count) {
        (Some(found), 1) => Ok(typed::<Server>(found)?.id),
        (Some(_), count) => Err(Error::local(format!(
            "{count} deleted servers have the name {server:?}. Use the id: `farhand servers --deleted` shows the ids."
        ))),
        (None, _) => Err(Error::local(format!(
            "There is no deleted server {server:?}. `farhand servers --deleted` lists them."
        ))),
    }
}

fn deleted_table(items: &[Value]) -> Result<Table> {
    let mut table = Table::new(&["NAME", "LABELS", "DELETED", "BY", "UNTIL", "ID"]);
    for item in items {
        let server: Server = typed(item)?;
        table.row([
            server.name,
            or_dash((!server.labels.is_empty()).then(|| labels(&server.labels))),
            time::shown_or(item["deleted_at"].as_str(), "-"),
            item["deleted_by"].as_str().unwrap_or("its agent").to_owned(),
            time::shown_or(item["purge_at"].as_str(), "-"),
            server.id,
        ]);
    }
    Ok(table)
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
