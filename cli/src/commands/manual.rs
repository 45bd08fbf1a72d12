//! `farhand completions` and `farhand man`.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::error::{Error, Result};
use crate::output::write;

/// Print the completions of a shell
#[derive(Args)]
pub struct CompletionArguments {
    shell: Shell,
}

/// Print the manual page, or write the pages of all commands to a folder
#[derive(Args)]
pub struct ManArguments {
    /// The folder for the pages of all commands
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

pub fn completions(mut command: Command, arguments: &CompletionArguments) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "farhand", &mut script);
    write(&String::from_utf8_lossy(&script))
}

pub fn man(command: Command, arguments: &ManArguments) -> Result<()> {
    if let Some(folder) = &arguments.dir {
        return clap_mangen::generate_to(command, folder)
            .map_err(|error| Error::file("write to", folder, &error));
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    write(&String::from_utf8_lossy(&page))
}
