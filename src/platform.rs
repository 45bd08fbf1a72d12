//! What the rules take as arguments and only the platform has: the time, random bytes, configuration; and the names of
//! the bindings in `wrangler.toml`.

use std::fmt::Display;

use farhand_domain::error::Error;
use farhand_domain::host::Names;
use farhand_domain::id;
use farhand_domain::secret::{Pepper, Secret};
use farhand_domain::time::Timestamp;
use uuid::Uuid;
use worker::{Date, Env};

/// The D1 database.
pub const DB: &str = "DB";
/// The KV namespace of login tokens.
pub const LOGIN_TOKENS: &str = "LOGIN_TOKENS";
/// The Durable Objects of servers, [`crate::server_link::ServerLink`].
pub const SERVER_LINK: &str = "SERVER_LINK";
/// The Durable Object that purges deleted workspaces, [`crate::janitor::Janitor`].
pub const JANITOR: &str = "JANITOR";

/// Our own fault, with the cause for the log.
pub fn internal(cause: impl Display) -> Error {
    Error::internal(cause.to_string())
}

/// The time.
pub fn now() -> Timestamp {
    Timestamp::from_millis(Date::now().as_millis())
}

/// Fills `bytes` from the platform's cryptographic source.
pub fn fill_random(bytes: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(bytes).map_err(internal)
}

/// `N` random bytes.
pub fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    fill_random(&mut bytes)?;
    Ok(bytes)
}

/// A new id that sorts after those made before.
pub fn new_id(now: Timestamp) -> Result<Uuid, Error> {
    Ok(id::new(now, random()?))
}

/// A new token or key.
pub fn new_secret() -> Result<Secret, Error> {
    Secret::generate(fill_random)
}

/// The deployment's configuration: the vars of `wrangler.toml` and the secrets.
#[derive(Debug)]
pub struct Config {
    region: String,
    service_domain: String,
    default_workspace: String,
    /// Users log in with passwords (`DEPLOYMENT=on-prem`).
    pub on_prem: bool,
    /// Rounds for new password hashes.
    pub pbkdf2_rounds: u32,
    /// The web console's address; empty where it is the workspace's own.
    pub web_client_url: String,
}

fn var(env: &Env, name: &str) -> String {
    env.var(name).map(|value| value.to_string()).unwrap_or_default()
}

impl Config {
    /// Reads the configuration.
    pub fn of(env: &Env) -> Self {
        Self {
            region: var(env, "REGION"),
            service_domain: var(env, "SERVICE_DOMAIN"),
            default_workspace: var(env, "DEFAULT_WORKSPACE"),
            on_prem: var(env, "DEPLOYMENT") != "cloud",
            pbkdf2_rounds: var(env, "PBKDF2_ITERATIONS").parse().unwrap_or(600_000),
            web_client_url: var(env, "WEB_CLIENT_URL"),
        }
    }

    /// The names under which this region cell is reached.
    pub fn names(&self) -> Names<'_> {
        Names {
            region: &self.region,
            service_domain: &self.service_domain,
            default_workspace: Some(&self.default_workspace),
        }
    }
}

/// How often an agent is pinged, in seconds.
pub fn ping_seconds(env: &Env) -> i64 {
    var(env, "AGENT_PING_SECONDS").parse().ok().filter(|seconds| *seconds > 0).unwrap_or(600)
}

/// The key for hashing credentials.
///
/// # Errors
/// Without the secret `TOKEN_PEPPER` nothing that takes a credential works.
pub fn pepper(env: &Env) -> Result<Pepper, Error> {
    match var(env, "TOKEN_PEPPER") {
        unset if unset.is_empty() => Err(Error::internal("the secret TOKEN_PEPPER is not set")),
        pepper => Ok(Pepper::new(pepper.as_bytes())),
    }
}

/// The operator's token, where there is an operator API.
pub fn operator_token(env: &Env) -> Option<Secret> {
    Some(var(env, "OPERATOR_TOKEN")).filter(|token| !token.is_empty()).map(Secret::new)
}
