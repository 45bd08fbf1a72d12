//! Login tokens in KV: what a token's hash stands for, with the sliding expiry.
//!
//! KV remembers, D1 decides (contract 4.3): an entry here neither grants nor refuses anything, so a
//! stale or missing one does no harm and is put right on the way.

use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use worker::Env;
use worker::kv::KvStore;

use crate::platform;
use crate::platform::cost;

/// How long an entry outlives its token, in seconds: KV's own expiry only clears away.
const SLACK: i64 = 3_600;

/// What KV holds of a login token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The session in D1.
    pub session: Uuid,
    /// When the token expires, if it is not used before.
    pub expires_at: Timestamp,
}

fn store(env: &Env) -> Result<KvStore, Error> {
    Ok(env.kv(platform::LOGIN_TOKENS)?)
}

fn prefix(workspace: &str) -> String {
    format!("{workspace}/")
}

/// The key of a token's entry.
pub fn key(workspace: &str, token_hash: &str) -> String {
    format!("{}{token_hash}", prefix(workspace))
}

/// The entry of a token. An entry that cannot be read is as good as none.
pub async fn get(env: &Env, workspace: &str, token_hash: &str) -> Option<Entry> {
    let store = store(env).ok()?;
    cost::add_kv_read();
    let text = store.get(&key(workspace, token_hash)).text().await.ok().flatten()?;
    serde_json::from_str(&text).ok()
}

/// Writes the entry of a token.
pub async fn put(env: &Env, workspace: &str, token_hash: &str, entry: Entry) -> Result<(), Error> {
    let value = serde_json::to_string(&entry)?;
    let expiration = entry.expires_at.plus_seconds(SLACK).as_millis() / 1000;
    let put = store(env)?.put(&key(workspace, token_hash), value)?;
    Ok(put.expiration(expiration).execute().await?)
}

/// Removes the entry of a token.
pub async fn delete(env: &Env, workspace: &str, token_hash: &str) -> Result<(), Error> {
    Ok(store(env)?.delete(&key(workspace, token_hash)).await?)
}

/// Removes some of a workspace's entries. True: none is left.
pub async fn purge_some(env: &Env, workspace: &str) -> Result<bool, Error> {
    let store = store(env)?;
    let listed = store.list().prefix(prefix(workspace)).limit(100).execute().await?;
    for key in &listed.keys {
        store.delete(&key.name).await?;
    }
    Ok(listed.list_complete)
}
