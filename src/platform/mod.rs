//! What the rules take as arguments and only the platform has: the time, random bytes,
//! configuration; and the names of the bindings in `wrangler.toml`.

pub mod cost;
pub mod hints;
pub mod log;

use std::cell::OnceCell;
use std::fmt::Display;
use std::rc::Rc;

use farhand_domain::address::TrustedProxies;
use farhand_domain::error::Error;
use farhand_domain::host::Names;
use farhand_domain::id;
use farhand_domain::retention;
use farhand_domain::secret::{BadKey, SHORTEST_SECRET, Secret, SecretKey};
use farhand_domain::smtp::Server;
use farhand_domain::smtp::{Login, Security};
use farhand_domain::throttle::Settings;
use farhand_domain::time::Timestamp;
use serde_json::json;
use uuid::Uuid;
use worker::Env;

/// The KV namespace of login tokens.
pub const LOGIN_TOKENS: &str = "LOGIN_TOKENS";
/// The Durable Objects of servers.
pub const SERVER_LINK: &str = "SERVER_LINK";
/// The Durable Object that purges deleted workspaces.
pub const JANITOR: &str = "JANITOR";
/// The Durable Objects that count guesses.
pub const THROTTLE: &str = "THROTTLE";
/// The Durable Object that sends mails.
pub const MAILER: &str = "MAILER";
/// The Durable Objects that seal audit events.
pub const SEALER: &str = "SEALER";
/// Cloudflare's binding for sending mail.
pub const EMAIL: &str = "EMAIL";

/// Our own fault, with the cause for the log.
pub fn internal(cause: impl Display) -> Error {
    Error::internal(cause.to_string())
}

/// The time.
pub fn now() -> Timestamp {
    Timestamp::from_millis(js_sys::Date::now() as u64)
}

/// Fills `bytes` from the platform's cryptographic source.
pub fn fill_random(bytes: &mut [u8]) -> Result<(), Error> {
    Ok(getrandom::fill(bytes)?)
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

thread_local! {
    static CONFIG: OnceCell<Rc<Config>> = const { OnceCell::new() };
    static SECRET_KEY: OnceCell<SecretKey> = const { OnceCell::new() };
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
    /// The web client's address; empty if it is the workspace's own.
    web_client_url: String,
    /// The workspaces' addresses, with `{workspace}` for the slug; empty where it is made of the
    /// names.
    base_url: String,
    /// How many days ahead a command may be scheduled.
    pub schedule_max_days: i64,
    /// What the throttles allow.
    pub throttles: Settings,
    /// What users and workspaces may have.
    pub quotas: Quotas,
    /// Where the address of a request's peer comes from.
    pub peer: PeerSource,
    /// The proxies whose forwarding headers count.
    pub trusted_proxies: TrustedProxies,
    /// Plain http is answered for every host (`ALLOW_HTTP=1`).
    pub allow_http: bool,
}

/// How much of what a user or a workspace may have (contract 11.4).
#[derive(Clone, Copy, Debug)]
pub struct Quotas {
    /// Commands of a user that wait.
    pub waiting_of_user: i64,
    /// Commands of a workspace that wait.
    pub waiting_of_workspace: i64,
    /// API tokens of a user.
    pub tokens_of_user: i64,
    /// Login sessions of a user: a new one ends the oldest.
    pub sessions_of_user: i64,
    /// Bytes that a workspace stores in a day: lines, environments and output.
    pub bytes_of_day: i64,
}

/// What the Worker believes about the address at the other end of a request's connection.
#[derive(Debug)]
pub enum PeerSource {
    /// The header `Farhand-Peer`, if it begins with this key, which `scripts/serve.mjs` draws at
    /// each start.
    Local(Secret),
    /// Cloudflare's header `CF-Connecting-IP` (`EDGE=cloudflare`).
    Cloudflare,
    /// Nothing: the address is unknown.
    Unknown,
}

impl PeerSource {
    fn read(env: &Env) -> Self {
        match var(env, "PEER_KEY") {
            key if !key.is_empty() => Self::Local(Secret::new(key)),
            _ if var(env, "EDGE") == "cloudflare" => Self::Cloudflare,
            _ => Self::Unknown,
        }
    }
}

fn var(env: &Env, name: &str) -> String {
    env.var(name).map(|value| value.to_string()).unwrap_or_default()
}

/// A var that is a whole number from 1 on, or what stands for it where it is none.
fn positive(env: &Env, name: &str, otherwise: i64) -> i64 {
    var(env, name).parse().ok().filter(|number| *number > 0).unwrap_or(otherwise)
}

/// The trusted proxies. An invalid setting trusts none of them: a misspelled network must not trust
/// another one.
fn trusted_proxies(env: &Env) -> TrustedProxies {
    TrustedProxies::parse(&var(env, "TRUSTED_PROXIES")).unwrap_or_else(|entry| {
        log::trouble(
            "invalid_setting",
            json!({"setting": "TRUSTED_PROXIES"}),
            &format!("not a network: {entry}"),
        );
        TrustedProxies::default()
    })
}

impl Config {
    /// The configuration, which is read once in an isolate: another one needs another deployment.
    pub fn of(env: &Env) -> Rc<Self> {
        CONFIG.with(|config| config.get_or_init(|| Rc::new(Self::read(env))).clone())
    }

    fn read(env: &Env) -> Self {
        Self {
            region: var(env, "REGION"),
            service_domain: var(env, "SERVICE_DOMAIN"),
            default_workspace: var(env, "DEFAULT_WORKSPACE"),
            on_prem: var(env, "DEPLOYMENT") != "cloud",
            pbkdf2_rounds: var(env, "PBKDF2_ITERATIONS").parse().unwrap_or(600_000),
            web_client_url: var(env, "WEB_CLIENT_URL").trim_end_matches('/').to_owned(),
            base_url: var(env, "BASE_URL"),
            schedule_max_days: positive(env, "SCHEDULE_MAX_DAYS", 400),
            throttles: Self::read_throttles(env),
            quotas: Quotas {
                waiting_of_user: positive(env, "QUOTA_WAITING_PER_USER", 1_000),
                waiting_of_workspace: positive(env, "QUOTA_WAITING_PER_WORKSPACE", 50_000),
                tokens_of_user: positive(env, "QUOTA_TOKENS_PER_USER", 100),
                sessions_of_user: positive(env, "QUOTA_SESSIONS_PER_USER", 100),
                bytes_of_day: positive(env, "QUOTA_BYTES_PER_DAY", 1 << 30),
            },
            peer: PeerSource::read(env),
            trusted_proxies: trusted_proxies(env),
            allow_http: var(env, "ALLOW_HTTP") == "1",
        }
    }

    fn read_throttles(env: &Env) -> Settings {
        let usual = Settings::default();
        let ceiling =
            |name, usual: u32| u32::try_from(positive(env, name, usual.into())).unwrap_or(usual);
        Settings {
            login_seconds: positive(env, "LOGIN_WINDOW_SECONDS", usual.login_seconds),
            hour_seconds: positive(env, "HOUR_WINDOW_SECONDS", usual.hour_seconds),
            logins_of_site: ceiling("LOGIN_FAILURES_PER_SITE", usual.logins_of_site),
            logins_of_workspace: ceiling("LOGIN_FAILURES_PER_WORKSPACE", usual.logins_of_workspace),
            resets_of_site: ceiling("RESETS_PER_SITE", usual.resets_of_site),
            resets_of_workspace: ceiling("RESETS_PER_WORKSPACE", usual.resets_of_workspace),
        }
    }

    /// The address of a workspace, from configuration alone: what goes into a mail must not hang on
    /// a request's Host.
    pub fn base_url_of(&self, slug: &str) -> String {
        if self.base_url.is_empty() {
            return format!("https://{slug}.{}.{}", self.region, self.service_domain);
        }
        self.base_url.replace("{workspace}", slug)
    }

    /// The address of the web client for a workspace (contract 4.10).
    pub fn web_client_of(&self, slug: &str) -> String {
        if self.web_client_url.is_empty() {
            self.base_url_of(slug)
        } else {
            self.web_client_url.clone()
        }
    }

    /// The origin of the web client, if it is not the workspace's own.
    pub fn web_client_elsewhere(&self) -> Option<&str> {
        Some(self.web_client_url.as_str()).filter(|url| !url.is_empty())
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

/// How often an agent sends a heartbeat, in seconds.
pub fn heartbeat_seconds(env: &Env) -> i64 {
    positive(env, "AGENT_HEARTBEAT_SECONDS", 300)
}

/// The commit that the Worker was built from, if the deployment names it.
pub fn commit(env: &Env) -> Option<String> {
    Some(var(env, "COMMIT")).filter(|commit| !commit.is_empty())
}

/// How often an agent is pinged, in seconds.
pub fn ping_seconds(env: &Env) -> i64 {
    positive(env, "AGENT_PING_SECONDS", 600)
}

const DEFAULT_GRACE_DAYS: u16 = 7;
const LONGEST_GRACE_DAYS: u16 = 365;

/// How many days commands are kept after their end, for [`kept_until`].
pub const COMMAND_RETENTION: &str = "COMMAND_RETENTION_DAYS";
/// How many days audit events are kept, likewise.
pub const AUDIT_RETENTION: &str = "AUDIT_RETENTION_DAYS";
/// How many days anonymous audit events are kept, likewise.
pub const ANONYMOUS_AUDIT_RETENTION: &str = "ANONYMOUS_AUDIT_RETENTION_DAYS";

/// Before when something must have been over that is deleted now, by the setting of so many days;
/// `None`: nothing is.
///
/// # Errors
/// The setting makes no sense.
pub fn kept_until(env: &Env, setting: &str) -> Result<Option<Timestamp>, Error> {
    let until = retention::until(&var(env, setting), now());
    until.map_err(|error| Error::internal(format!("{setting} is {error}")))
}

/// When a workspace that is deleted now is purged: after `WORKSPACE_GRACE_DAYS`.
pub fn purge_at(env: &Env, now: Timestamp) -> Timestamp {
    let setting = var(env, "WORKSPACE_GRACE_DAYS");
    let days = setting.parse().ok().filter(|days| *days <= LONGEST_GRACE_DAYS);
    let days = days.unwrap_or_else(|| {
        // Not zero: a misspelled setting must not purge.
        log::trouble(
            "invalid_setting",
            json!({"setting": "WORKSPACE_GRACE_DAYS"}),
            &"not 0 to 365; 7 is used",
        );
        DEFAULT_GRACE_DAYS
    });
    now.plus_seconds(i64::from(days) * 86_400)
}

/// The cell's key, with the previous one during a rotation.
///
/// # Errors
/// The secret `SECRET_KEY` is missing, or it or `SECRET_KEY_PREVIOUS` is too short.
pub fn secret_key(env: &Env) -> Result<SecretKey, Error> {
    if let Some(known) = SECRET_KEY.with(|key| key.get().cloned()) {
        return Ok(known);
    }
    match SecretKey::new(&var(env, "SECRET_KEY"), &var(env, "SECRET_KEY_PREVIOUS")) {
        Ok(read) => Ok(SECRET_KEY.with(|key| key.get_or_init(|| read).clone())),
        Err(BadKey::Missing) => Err(Error::internal("the secret SECRET_KEY is not set")),
        Err(BadKey::TooShort) => Err(Error::internal(format!(
            "SECRET_KEY and SECRET_KEY_PREVIOUS need {SHORTEST_SECRET} characters"
        ))),
    }
}

/// The operator's tokens, if there is an operator API: the current one, and during a rotation the
/// previous one. A token that is too short is treated as absent.
pub fn operator_tokens(env: &Env) -> Option<Vec<Secret>> {
    let token = |name| {
        Some(var(env, name))
            .filter(|token| token.chars().count() >= SHORTEST_SECRET)
            .map(Secret::new)
    };
    let current = token("OPERATOR_TOKEN")?;
    Some([Some(current), token("OPERATOR_TOKEN_PREVIOUS")].into_iter().flatten().collect())
}

/// The sender's address of every mail.
pub fn mail_from(env: &Env) -> String {
    var(env, "MAIL_FROM")
}

/// The SMTP server that mails are handed to, if there is one.
///
/// # Errors
/// Its settings make no sense.
pub fn smtp_server(env: &Env) -> Result<Option<Server>, Error> {
    let host = var(env, "SMTP_HOST");
    if host.is_empty() {
        return Ok(None);
    }
    let (security, usual_port) = match var(env, "SMTP_SECURITY").as_str() {
        "" | "starttls" => (Security::StartTls, 587),
        "tls" => (Security::Tls, 465),
        _ => return Err(Error::internal("SMTP_SECURITY is neither starttls nor tls")),
    };
    let port = match var(env, "SMTP_PORT").as_str() {
        "" => usual_port,
        port => port.parse().map_err(|_| Error::internal("SMTP_PORT is not a port number"))?,
    };
    let username = Some(var(env, "SMTP_USERNAME")).filter(|name| !name.is_empty());
    let login = username
        .map(|username| Login { username, password: Secret::new(var(env, "SMTP_PASSWORD")) });
    Ok(Some(Server { host, port, security, login }))
}
