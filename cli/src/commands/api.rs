//! `farhand api`: any request of the API.

use std::io::{self, Read};

use clap::Args;
use serde_json::Value;

use crate::connection::Options;
use crate::error::{Error, Result};
use crate::output::{Format, json_text, write};
use crate::text::visible_lines;

/// Send a request to the API, and print the response
#[derive(Args)]
pub struct Arguments {
    /// GET, HEAD, POST, PUT, PATCH or DELETE
    method: String,
    /// The path with its query, such as '/api/servers/?is_connected=true'
    path: String,
    /// The body: JSON, @FILE, or - for the standard input
    #[arg(short, long, value_name = "JSON")]
    data: Option<String>,
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<()> {
    let method = arguments.method.to_ascii_uppercase();
    if !["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"].contains(&method.as_str()) {
        return Err(Error::local(format!("{method:?} is not a method of the API.")));
    }
    if !arguments.path.starts_with('/') {
        return Err(Error::local("The path begins with a slash, such as /api/status/."));
    }
    let body = arguments.data.as_deref().map(read_body).transpose()?;
    let reply = options.connect()?.send(&method, &arguments.path, body.as_deref(), None)?;
    if reply.body.is_empty() {
        return Ok(());
    }
    if reply.is_json {
        let format = if options.output == Format::Table { Format::Json } else { options.output };
        return write(&json_text(&reply.json::<Value>()?, format));
    }
    write(&visible_lines(&String::from_utf8_lossy(&reply.body)))
}

/// Reads a body: JSON, `@FILE`, or `-` for the standard input.
pub fn read_body(data: &str) -> Result<Vec<u8>> {
    let (what, read) = match data.strip_prefix('@') {
        _ if data == "-" || data == "@-" => {
            let mut body = Vec::new();
            ("the standard input", io::stdin().lock().read_to_end(&mut body).map(|_| body))
        }
        Some(file) => (file, std::fs::read(file)),
        None => return Ok(data.as_bytes().to_vec()),
    };
    read.map_err(|error| Error::local(format!("Cannot read {what}: {error}.")))
}
