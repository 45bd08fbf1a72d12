//! `farhand profiles`: lists the saved logins, and chooses one.

use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};

use super::typed;
use crate::connection::Options;
use crate::error::{Error, Result};
use crate::output::{Table, print_list};
use crate::profile::ProfileFile;

/// List the profiles, or choose the current one
#[derive(Args)]
pub struct Arguments {
    /// The profile to use from now on
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<()> {
    let file = ProfileFile::of_user()?;
    let mut profiles = file.read()?;
    if let Some(name) = &arguments.name {
        if !profiles.profiles.contains_key(name) {
            return Err(Error::local(format!(
                "There is no profile {name:?}. `farhand profiles` lists them."
            )));
        }
        profiles.current = Some(name.clone());
        return file.write(&profiles);
    }
    // The tokens are left out.
    let items: Vec<Value> = profiles
        .profiles
        .iter()
        .map(|(name, profile)| {
            json!({
                "name": name,
                "current": profiles.current.as_ref() == Some(name),
                "username": profile.username,
                "url": profile.url,
                "kind": profile.kind,
            })
        })
        .collect();
    print_list(&items, options.output, table)
}

fn table(items: &[Value]) -> Result<Table> {
    #[derive(Deserialize)]
    struct Item {
        name: String,
        current: bool,
        username: String,
        url: String,
    }
    let mut table = Table::new(&["CURRENT", "NAME", "USER", "URL"]);
    for item in items {
        let item: Item = typed(item)?;
        let mark = if item.current { "*" } else { "" };
        table.row([mark.into(), item.name, item.username, item.url]);
    }
    Ok(table)
}
