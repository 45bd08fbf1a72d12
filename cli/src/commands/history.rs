//! `farhand history`: lists commands.

use clap::Args;
use serde_json::Value;

use super::{DEFAULT_LIMIT, lookup, note_rest, typed};
use crate::client::Client;
use crate::connection::Options;
use crate::error::Result;
use crate::output::{Table, or_dash, print_list};
use crate::text::shortened;
use crate::time;
use crate::types::Command;

/// Maximum length of a command line in the table, in characters.
const MAX_LINE: usize = 60;

/// List commands, the latest first
#[derive(Args)]
pub struct Arguments {
    /// Only commands of this server, by its name or id
    #[arg(short, long)]
    server: Option<String>,
    /// Only commands in these states, separated by commas: scheduled, queued, sent, acked, success,
    /// failed, cancelled, expired, stuck
    #[arg(long)]
    state: Option<String>,
    /// Only commands that ended without success
    #[arg(long)]
    failed: bool,
    /// Only commands with this exit code
    #[arg(long, value_name = "CODE")]
    exit_code: Option<i64>,
    /// Only commands that run as this account
    #[arg(long = "as", value_name = "ACCOUNT")]
    account: Option<String>,
    /// Only commands that this user requested
    #[arg(long, value_name = "USER")]
    by: Option<String>,
    /// Only commands created since a time, or in the last 30m, 2h, 7d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only commands created before a time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only commands that are scheduled for later
    #[arg(long)]
    scheduled: bool,
    /// Only commands with these words in the server's name, the line or the requester's name
    #[arg(long, value_name = "WORDS")]
    search: Option<String>,
    /// How many to show
    #[arg(short = 'n', long, default_value = DEFAULT_LIMIT)]
    limit: usize,
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<()> {
    let client = options.connect()?;
    let filters = filters(&client, arguments)?;
    let (items, count) = client.list("/api/events/commands/", &filters, arguments.limit)?;
    print_list(&items, options.output, table)?;
    note_rest(items.len(), count);
    Ok(())
}

fn filters(client: &Client, arguments: &Arguments) -> Result<Vec<(&'static str, String)>> {
    let now = time::now();
    let since = |text: &String| time::parse_past(text, now);
    let filters = [
        (
            "server",
            arguments.server.as_deref().map(|name| lookup::server_id(client, name)).transpose()?,
        ),
        ("state", arguments.state.clone()),
        ("success", arguments.failed.then(|| "false".to_owned())),
        ("exit_code", arguments.exit_code.map(|code| code.to_string())),
        ("username", arguments.account.clone()),
        (
            "requested_by",
            match &arguments.by {
                Some(name) => Some(lookup::user_id(client, name)?.to_string()),
                None => None,
            },
        ),
        ("added_at__gte", arguments.since.as_ref().map(since).transpose()?),
        ("added_at__lt", arguments.until.as_ref().map(since).transpose()?),
        ("is_scheduled", arguments.scheduled.then(|| "true".to_owned())),
        ("search", arguments.search.clone()),
    ];
    Ok(filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}

fn table(items: &[Value]) -> Result<Table> {
    let mut table =
        Table::new(&["ID", "SERVER", "STATE", "EXIT", "AS", "BY", "WHEN", "TOOK", "LINE"]);
    for item in items {
        let command: Command = typed(item)?;
        table.row([
            command.id,
            command.server_name,
            command.state,
            or_dash(command.exit_code),
            command.username,
            or_dash(command.requested_by.map(|user| user.username)),
            time::shown(&command.scheduled_at),
            or_dash(command.elapsed_time.map(|seconds| format!("{seconds:.1}s"))),
            shortened(&command.line, MAX_LINE),
        ]);
    }
    Ok(table)
}
