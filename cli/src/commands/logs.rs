//! `farhand logs`: prints the output of a command, or follows it.

use std::io::{self, Write};

use clap::Args;
use serde_json::Value;

use crate::client::segment;
use crate::connection::Options;
use crate::error::Result;
use crate::output::{Format, note};
use crate::run_output::{View, exit_code, print_json, skipped_note};
use crate::stream::follow;

/// Print the output of a command
///
/// Writes the bytes of the output as they are, so escape sequences in it reach the terminal.
#[derive(Args)]
pub struct Arguments {
    /// Follow the output to the end of the command, and exit with its exit code
    #[arg(short, long)]
    follow: bool,
    /// The id of the command
    id: String,
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<u8> {
    let client = options.connect()?;
    let path = format!("/api/events/commands/{}/", segment(&arguments.id));
    if arguments.follow {
        let mut view = View::single(options.output, &arguments.id, "");
        if let View::Events { server, .. } = &mut view {
            let command: crate::types::Command = client.get_json(&path)?;
            *server = command.server_name;
        }
        let end = follow(&client, &arguments.id, |content| view.chunk(content))?;
        view.end(&end)?;
        if options.output == Format::Json {
            print_json(&[end.json], true, options.output)?;
        }
        return Ok(exit_code(&end.command));
    }
    if options.output == Format::Table {
        let output = client.get(&format!("{path}output/"))?;
        let mut stdout = io::stdout().lock();
        stdout.write_all(&output.body)?;
        stdout.flush()?;
        if let Some(skipped) = skipped_note(&client.get_json::<Value>(&path)?) {
            note(&skipped);
        }
    } else {
        print_json(&[client.get_json::<Value>(&path)?], true, options.output)?;
    }
    Ok(0)
}
