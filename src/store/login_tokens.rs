//! The entries of login tokens in KV. An entry contains the token's session and expiry.
//!
//! An entry is only a cached hint (contract 4.3): D1 decides whether a token is valid. So a stale
//! or missing entry is harmless. A later request with the token corrects it.

use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use worker::Env;
use worker::kv::KvStore;

use super::Progress;
use crate::platform;
use crate::platform::cost;

/// The maximum number of entries that one call of [`purge`] deletes.
const MAX_PURGED: u64 = 100;

/// The seconds for which KV keeps an entry after its token expired. KV's expiry only frees space.
const EXPIRY_SLACK_SECONDS: i64 = 3_600;

/// The entry of a login token. Stored as JSON.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The session in D1.
    pub session: Uuid,
    /// When the token expires, unless a request extends the session.
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

/// Reads the entry of a token. An entry that cannot be read is treated as absent.
pub async fn get(env: &Env, workspace: &str, token_hash: &str) -> Option<Entry> {
    let store = store(env).ok()?;
    cost::add_kv_read();
    let text = store.get(&key(workspace, token_hash)).text().await.ok().flatten()?;
    serde_json::from_str(&text).ok()
}

/// Writes the entry of a token.
pub async fn put(env: &Env, workspace: &str, token_hash: &str, entry: Entry) -> Result<(), Error> {
    let value = serde_json::to_string(&entry)?;
    let expiration = entry.expires_at.plus_seconds(EXPIRY_SLACK_SECONDS).as_millis() / 1000;
    let put = store(env)?.put(&key(workspace, token_hash), value)?;
    Ok(put.expiration(expiration).execute().await?)
}

/// Deletes the entry of a token.
pub async fn delete(env: &Env, workspace: &str, token_hash: &str) -> Result<(), Error> {
    Ok(store(env)?.delete(&key(workspace, token_hash)).await?)
}

/// Deletes some of a workspace's entries.
pub async fn purge(env: &Env, workspace: &str) -> Result<Progress, Error> {
    let store = store(env)?;
    let listed = store.list().prefix(prefix(workspace)).limit(MAX_PURGED).execute().await?;
    for key in &listed.keys {
        store.delete(&key.name).await?;
    }
    Ok(if listed.list_complete { Progress::Done } else { Progress::More })
}
