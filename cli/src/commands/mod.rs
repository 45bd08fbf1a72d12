//! The subcommands, one file each.

pub mod api;
pub mod audit;
pub mod batch;
pub mod end;
pub mod fleet;
pub mod groups;
pub mod history;
pub mod login;
pub mod logout;
pub mod logs;
pub mod lookup;
pub mod manual;
pub mod profiles;
pub mod run;
pub mod run_batch;
pub mod schedules;
pub mod scripts;
pub mod servers;
pub mod task;
pub mod token_check;
pub mod tokens;
pub mod users;
pub mod whoami;

use std::io::{self, IsTerminal};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::output::{Format, json_text, note, write};

/// The default of `--limit`.
const DEFAULT_LIMIT: &str = "50";

/// Maximum number of commands that are followed concurrently.
const MAX_PARALLEL: usize = 32;

/// Converts JSON of the API to a type.
fn typed<T: DeserializeOwned>(item: &Value) -> Result<T> {
    T::deserialize(item).map_err(|error| Error::unexpected_response(&error))
}

/// If the user sees only a part of a list, prints how many items there are.
fn note_rest(shown: usize, count: usize) {
    if shown < count && io::stdout().is_terminal() {
        note(&format!("{shown} of {count} shown. `--limit` shows more."));
    }
}

/// Reports that a resource was deleted: as a message, or as JSON with its id.
fn report_deleted(format: Format, what: &str, name: &str, id: &str) -> Result<()> {
    if format == Format::Table {
        note(&format!("Deleted the {what} {name}."));
        return Ok(());
    }
    write(&json_text(&json!({"id": id, "deleted": true}), format))
}
