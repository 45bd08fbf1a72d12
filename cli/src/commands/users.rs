//! `farhand users`: lists users.

use clap::Args;
use serde_json::Value;

use super::{DEFAULT_LIMIT, note_rest, typed};
use crate::connection::Options;
use crate::error::Result;
use crate::output::{Table, print_list, yes};
use crate::time;
use crate::types::User;

/// List the users of the workspace
#[derive(Args)]
pub struct Arguments {
    /// Only users with these words in the username, the email address or the name
    #[arg(long, value_name = "WORDS")]
    search: Option<String>,
    /// How many to show
    #[arg(short = 'n', long, default_value = DEFAULT_LIMIT)]
    limit: usize,
}

impl User {
    pub fn rank(&self) -> &'static str {
        match (self.is_superuser, self.is_staff) {
            (true, _) => "superuser",
            (false, true) => "staff",
            (false, false) => "user",
        }
    }
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<()> {
    let filters: Vec<_> =
        arguments.search.clone().map(|words| ("search", words)).into_iter().collect();
    let (items, count) = options.connect()?.list("/api/iam/users/", &filters, arguments.limit)?;
    print_list(&items, options.output, table)?;
    note_rest(items.len(), count);
    Ok(())
}

fn table(items: &[Value]) -> Result<Table> {
    let mut table = Table::new(&["ID", "USERNAME", "RANK", "ACTIVE", "LAST LOGIN", "EMAIL"]);
    for item in items {
        let user: User = typed(item)?;
        let rank = user.rank().to_owned();
        let last_login = time::shown_or(user.last_login.as_deref(), "never");
        table.row([
            user.id.to_string(),
            user.username,
            rank,
            yes(user.is_active),
            last_login,
            user.email,
        ]);
    }
    Ok(table)
}
