//! `farhand whoami`: the user and the workspace of the credential.

use serde_json::Value;

use super::typed;
use crate::connection::Options;
use crate::error::Result;
use crate::output::{Format, json_text, write};
use crate::text::visible;
use crate::types::User;

pub fn execute(options: &Options) -> Result<()> {
    let client = options.connect()?;
    let json: Value = client.get_json("/api/iam/users/-/")?;
    if options.output != Format::Table {
        return write(&json_text(&json, options.output));
    }
    let user: User = typed(&json)?;
    let text = format!("{} ({}) at {}", user.username, user.rank(), client.address().origin);
    write(&(visible(&text) + "\n"))
}
