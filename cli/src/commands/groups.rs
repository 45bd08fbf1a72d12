//! `farhand groups`: lists groups.

use clap::Args;
use serde_json::Value;

use super::{DEFAULT_LIMIT, note_rest, typed};
use crate::connection::Options;
use crate::error::Result;
use crate::output::{Table, print_list};
use crate::types::Group;

/// List the groups
#[derive(Args)]
pub struct Arguments {
    /// How many to show
    #[arg(short = 'n', long, default_value = DEFAULT_LIMIT)]
    limit: usize,
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<()> {
    let (items, count) = options.connect()?.list("/api/iam/groups/", &[], arguments.limit)?;
    print_list(&items, options.output, table)?;
    note_rest(items.len(), count);
    Ok(())
}

fn table(items: &[Value]) -> Result<Table> {
    let mut table = Table::new(&["ID", "NAME", "MEMBERS", "SERVERS", "DISPLAY NAME"]);
    for item in items {
        let group: Group = typed(item)?;
        table.row([
            group.id.to_string(),
            group.name,
            group.num_members.to_string(),
            group.servers.len().to_string(),
            group.display_name,
        ]);
    }
    Ok(table)
}
