//! The subcommands, one file each.

pub mod api;
pub mod audit;
pub mod end;
pub mod groups;
pub mod history;
pub mod login;
pub mod logout;
pub mod logs;
pub mod lookup;
pub mod manual;
pub mod profiles;
pub mod run;
pub mod servers;
pub mod tokens;
pub mod users;
pub mod whoami;

use std::io::{self, IsTerminal};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::output::note;

/// The default of `--limit`.
const LIMIT: &str = "50";

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
