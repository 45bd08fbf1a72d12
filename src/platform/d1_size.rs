//! The size of D1, which each result of D1 contains. An isolate remembers the last one, so knowing
//! it costs no call.

use std::cell::Cell;

use farhand_domain::limits::fullness::Fullness;
use serde_json::json;
use worker::Env;

use crate::platform::{Config, log};

thread_local! {
    /// The bytes in the last result of D1; `None`: this isolate has not called D1 yet.
    static SIZE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Remembers the size after a statement. Logs it if the database has become fuller.
pub fn remember(env: &Env, size: u64) {
    let before = fullness(env).unwrap_or(Fullness::Ok);
    SIZE.set(Some(size));
    if fullness(env).is_some_and(|now| now > before) {
        log_if_filling(env);
    }
}

/// How full the database is; `None`: this isolate does not know.
pub fn fullness(env: &Env) -> Option<Fullness> {
    SIZE.get().map(|size| Fullness::of(size, Config::from_env(env).d1_max_bytes))
}

/// Logs the size if the database is filling or full.
pub fn log_if_filling(env: &Env) {
    let Some(fullness) = fullness(env).filter(|fullness| *fullness > Fullness::Ok) else { return };
    let fields = json!({
        "storage": fullness.as_str(), "bytes": SIZE.get(), "max_bytes": Config::from_env(env).d1_max_bytes,
    });
    log::error("cell_filling", fields, &"D1 is nearly full; see docs/how-to/full-cell.md");
}
