//! `farhand cancel` and `farhand kill`.

use clap::Args;
use serde_json::{Value, json};

use super::typed;
use crate::client::segment;
use crate::connection::Options;
use crate::error::Result;
use crate::output::{Format, json_text, note, write};
use crate::types::Command;

/// Cancel commands that were not delivered yet
#[derive(Args)]
pub struct CancelArguments {
    /// The ids of the commands
    #[arg(required = true)]
    ids: Vec<String>,
}

/// Kill running commands, with all their processes
#[derive(Args)]
pub struct KillArguments {
    /// The ids of the commands
    #[arg(required = true)]
    ids: Vec<String>,
}

pub fn cancel(options: &Options, arguments: &CancelArguments) -> Result<()> {
    act(options, &arguments.ids, "cancel")
}

pub fn kill(options: &Options, arguments: &KillArguments) -> Result<()> {
    act(options, &arguments.ids, "kill")
}

fn act(options: &Options, ids: &[String], action: &str) -> Result<()> {
    let client = options.connect()?;
    for id in ids {
        let path = format!("/api/events/commands/{}/{action}/", segment(id));
        let json: Value = client.post(&path, &json!({}))?.json()?;
        let command: Command = typed(&json)?;
        if options.output == Format::Table {
            note(&format!("{}: {}", command.server_name, command.status.message));
        } else {
            write(&json_text(&json, options.output))?;
        }
    }
    Ok(())
}
