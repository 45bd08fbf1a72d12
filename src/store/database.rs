//! Which D1 database has the rows of a workspace.
//!
//! A cell has one D1 database, with the binding `DB`, so each [`Database`] stands for this one. Its
//! callers nevertheless say whose rows they read or write. Only this file and `d1.js` choose a
//! binding, so only they change if a cell gets more databases.

use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;
use worker::Env;

use crate::platform::d1_size;

#[wasm_bindgen(module = "/src/store/d1.js", wasm_bindgen_futures = worker::wasm_bindgen_futures)]
extern "C" {
    #[wasm_bindgen(catch, js_name = run)]
    async fn run(env: &Env, texts: &str, parameters: &str) -> Result<JsValue, JsValue>;

    #[wasm_bindgen(catch, js_name = runList)]
    async fn run_list(env: &Env, text: &JsValue, parameters: &str) -> Result<JsValue, JsValue>;
}

/// A D1 database. Creating and cloning one calls no JavaScript: `d1.js` looks the binding up in
/// each round trip.
#[derive(Clone)]
pub struct Database {
    env: Env,
}

impl Database {
    /// The database of a workspace, by its slug. For requests, which learn the id from D1. The
    /// workspace may not exist.
    pub fn of_slug(env: &Env, _slug: &str) -> Self {
        Self { env: env.clone() }
    }

    /// The database of a workspace, by its id. For objects. The id
    /// [`CELL`](farhand_domain::audit::event::CELL) stands for the cell.
    pub fn of(env: &Env, _workspace_id: i64) -> Self {
        Self { env: env.clone() }
    }

    /// The database of the cell: the list of its workspaces, and rows of all of them. For the
    /// operator API, the janitor and the cron trigger.
    pub fn cell(env: &Env) -> Self {
        Self { env: env.clone() }
    }

    /// Runs the statements of a round trip: see `run` in `d1.js`.
    pub(super) async fn run(&self, texts: &str, parameters: &str) -> Result<JsValue, JsValue> {
        run(&self.env, texts, parameters).await
    }

    /// Runs the statement of a list's page: see `runList` in `d1.js`.
    pub(super) async fn run_list(
        &self,
        text: &JsValue,
        parameters: &str,
    ) -> Result<JsValue, JsValue> {
        run_list(&self.env, text, parameters).await
    }

    /// Remembers the size of the database in bytes, which each result contains.
    pub(super) fn remember_size(&self, size: u64) {
        d1_size::remember(&self.env, size);
    }
}
