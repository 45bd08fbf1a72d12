//! `farhand profiles`: lists the saved logins, and chooses one.

use clap::Args;

use crate::error::{Error, Result};
use crate::output::{Table, write};
use crate::profile::ProfileFile;

/// List the profiles, or choose the current one
#[derive(Args)]
pub struct Arguments {
    /// The profile to use from now on
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

pub fn execute(arguments: &Arguments) -> Result<()> {
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
    let mut table = Table::new(&["CURRENT", "NAME", "USER", "URL"]);
    for (name, profile) in &profiles.profiles {
        let mark = if profiles.current.as_ref() == Some(name) { "*" } else { "" };
        table.row([mark.into(), name.clone(), profile.username.clone(), profile.url.clone()]);
    }
    write(&table.text())
}
