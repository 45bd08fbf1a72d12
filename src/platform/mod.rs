//! Access to the platform: the time, random bytes, configuration, and the names of the bindings in
//! `wrangler.toml`. The `domain` crate gets these values as arguments.

pub mod cost;
pub mod d1_size;
pub mod hints;
pub mod log;
pub mod time_zone;

use std::cell::OnceCell;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use farhand_domain::command::retention;
use farhand_domain::error::Error;
use farhand_domain::http::address::TrustedProxies;
use farhand_domain::http::host::CellNames;
use farhand_domain::id;
use farhand_domain::limits::throttle::settings::ThrottleSettings;
use farhand_domain::mail::smtp::SmtpServer;
use farhand_domain::mail::smtp::{Security, SmtpLogin};
use farhand_domain::secret::{InvalidSecretKey, MIN_SECRET_LENGTH, Secret, SecretKey};
use farhand_domain::time::Timestamp;
use serde_json::json;
use uuid::Uuid;
use worker::Env;

/// The KV namespace of login tokens.
pub const LOGIN_TOKENS: &str = "LOGIN_TOKENS";
/// The Durable Objects of servers.
pub const SERVER_LINK: &str = "SERVER_LINK";
/// The Durable Object that does background work.
pub const JANITOR: &str = "JANITOR";
/// The Durable Objects that throttle logins, password resets and operator tokens.
pub const THROTTLE: &str = "THROTTLE";
/// The Durable Object that sends mails.
pub const MAILER: &str = "MAILER";
/// The Durable Objects that seal audit events.
pub const SEALER: &str = "SEALER";
/// The Durable Objects that start the runs of schedules.
pub const SCHEDULER: &str = "SCHEDULER";
/// The Durable Objects of batches.
pub const BATCH: &str = "BATCH";
/// The Durable Objects of the dialect's channels for live events.
pub const CHANNEL: &str = "CHANNEL";
/// Cloudflare's binding for sending mail.
pub const EMAIL: &str = "EMAIL";

/// Creates an internal error. Only the log contains the cause.
pub fn internal(cause: impl Display) -> Error {
    Error::internal(cause.to_string())
}

/// The current time.
pub fn now() -> Timestamp {
    Timestamp::from_millis(js_sys::Date::now() as u64)
}

/// Fills `bytes` with cryptographically secure random bytes.
pub fn fill_random(bytes: &mut [u8]) -> Result<(), Error> {
    Ok(getrandom::fill(bytes)?)
}

/// `N` cryptographically secure random bytes.
pub fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    fill_random(&mut bytes)?;
    Ok(bytes)
}

/// A new id. It sorts after ids of earlier milliseconds.
pub fn new_id(now: Timestamp) -> Result<Uuid, Error> {
    Ok(id::new(now, random()?))
}

/// A new random token or key.
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
    /// Whether users log in with passwords (`DEPLOYMENT` is not `cloud`).
    pub on_prem: bool,
    /// The number of rounds for new password hashes.
    pub pbkdf2_rounds: u32,
    /// The web client's address. If empty, the address of the workspace.
    web_client_url: String,
    /// The public key of the agent's releases in base64, unchecked. Empty: the agents are not
    /// signed.
    pub release_key: String,
    /// The address pattern of workspaces, with `{workspace}` for the slug. If empty, addresses are
    /// built from `region` and `service_domain`.
    base_url: String,
    /// The maximum number of days from now for which a command can be scheduled.
    pub schedule_max_days: i64,
    /// The limits of the throttles.
    pub throttles: ThrottleSettings,
    pub quotas: Quotas,
    /// The maximum number of bytes of D1.
    pub d1_max_bytes: u64,
    /// The source of a request's peer address.
    pub peer: PeerSource,
    /// The proxies whose forwarding headers are trusted.
    pub trusted_proxies: TrustedProxies,
    /// Whether plain HTTP requests are served for every host (`ALLOW_HTTP=1`).
    pub allow_http: bool,
    /// Whether `alpacon-mcp` may send its token without quotes (`ALPACON_MCP=1`).
    pub alpacon_mcp: bool,
}

/// The limits for a user or a workspace (contract 11.4).
#[derive(Clone, Copy, Debug)]
pub struct Quotas {
    /// Waiting commands of a user.
    pub waiting_of_user: i64,
    /// Waiting commands of a workspace.
    pub waiting_of_workspace: i64,
    /// API tokens of a user.
    pub tokens_of_user: i64,
    /// Login sessions of a user. A further login ends the user's oldest session.
    pub sessions_of_user: i64,
    /// Live streams that a user holds open.
    pub streams_of_user: i64,
    /// Schedules that a user owns.
    pub schedules_of_user: i64,
    /// Schedules of a workspace.
    pub schedules_of_workspace: i64,
    /// Keys of servers that a user rotates, and servers that the user deletes, within an hour.
    pub server_changes_of_user: i64,
    /// The same, if the user is a superuser.
    pub server_changes_of_superuser: i64,
    /// Scripts of a workspace that are not deleted.
    pub scripts_of_workspace: i64,
    /// Batches of a user that have not finished.
    pub batches_of_user: i64,
    /// Batches of a workspace that have not finished.
    pub batches_of_workspace: i64,
    /// Bytes that a workspace stores in D1 in 24 hours. A tenth is kept for staff.
    pub bytes_of_day: i64,
    /// The share of a user who is not staff in `bytes_of_day`.
    pub bytes_of_user: i64,
    /// Bytes of output that a workspace keeps in 24 hours. A tenth is kept for staff.
    pub output_of_day: i64,
    /// The share of a user who is not staff in `output_of_day`.
    pub output_of_user: i64,
}

/// The source of the address at the other end of a request's connection.
#[derive(Debug)]
pub enum PeerSource {
    /// The header `Farhand-Peer`, if it begins with this key. `scripts/serve.mjs` generates the key
    /// at each start.
    Local(Secret),
    /// Cloudflare's header `CF-Connecting-IP` (`EDGE=cloudflare`).
    Cloudflare,
    /// No source: the address is unknown.
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

/// Reads a variable that is a positive integer. Returns the default if it is absent or invalid.
fn positive(env: &Env, name: &str, default: i64) -> i64 {
    var(env, name).parse().ok().filter(|number| *number > 0).unwrap_or(default)
}

/// The trusted proxies. If the setting has an invalid entry, no proxy is trusted.
fn trusted_proxies(env: &Env) -> TrustedProxies {
    TrustedProxies::parse(&var(env, "TRUSTED_PROXIES")).unwrap_or_else(|entry| {
        log::error(
            "invalid_setting",
            json!({"setting": "TRUSTED_PROXIES"}),
            &format!("not a network: {entry}"),
        );
        TrustedProxies::default()
    })
}

impl Config {
    /// The configuration. It is read once per isolate, because only a deployment changes it.
    pub fn from_env(env: &Env) -> Rc<Self> {
        CONFIG.with(|config| config.get_or_init(|| Rc::new(Self::read(env))).clone())
    }

    fn read(env: &Env) -> Self {
        let bytes_of_day = positive(env, "QUOTA_BYTES_PER_DAY", 160 << 20);
        let output_of_day = positive(env, "QUOTA_OUTPUT_BYTES_PER_DAY", 1 << 30);
        Self {
            region: var(env, "REGION"),
            service_domain: var(env, "SERVICE_DOMAIN"),
            default_workspace: var(env, "DEFAULT_WORKSPACE"),
            on_prem: var(env, "DEPLOYMENT") != "cloud",
            pbkdf2_rounds: var(env, "PBKDF2_ITERATIONS").parse().unwrap_or(600_000),
            release_key: var(env, "FARHAND_RELEASE_KEY"),
            web_client_url: var(env, "WEB_CLIENT_URL").trim_end_matches('/').to_owned(),
            base_url: var(env, "BASE_URL"),
            schedule_max_days: positive(env, "SCHEDULE_MAX_DAYS", 400),
            throttles: Self::read_throttles(env),
            quotas: Quotas {
                waiting_of_user: positive(env, "QUOTA_WAITING_PER_USER", 1_000),
                waiting_of_workspace: positive(env, "QUOTA_WAITING_PER_WORKSPACE", 50_000),
                tokens_of_user: positive(env, "QUOTA_TOKENS_PER_USER", 100),
                sessions_of_user: positive(env, "QUOTA_SESSIONS_PER_USER", 100),
                streams_of_user: positive(env, "QUOTA_STREAMS_PER_USER", 20),
                schedules_of_user: positive(env, "QUOTA_SCHEDULES_PER_USER", 100),
                schedules_of_workspace: positive(env, "QUOTA_SCHEDULES_PER_WORKSPACE", 1_000),
                server_changes_of_user: positive(env, "QUOTA_SERVER_CHANGES_PER_USER", 20),
                server_changes_of_superuser: positive(
                    env,
                    "QUOTA_SERVER_CHANGES_PER_SUPERUSER",
                    200,
                ),
                scripts_of_workspace: positive(env, "QUOTA_SCRIPTS_PER_WORKSPACE", 1_000),
                batches_of_user: positive(env, "QUOTA_BATCHES_PER_USER", 20),
                batches_of_workspace: positive(env, "QUOTA_BATCHES_PER_WORKSPACE", 100),
                bytes_of_day,
                bytes_of_user: positive(env, "QUOTA_BYTES_PER_USER", bytes_of_day / 10),
                output_of_day,
                output_of_user: positive(env, "QUOTA_OUTPUT_BYTES_PER_USER", output_of_day / 10),
            },
            d1_max_bytes: positive(env, "D1_MAX_BYTES", 10_000_000_000).cast_unsigned(),
            peer: PeerSource::read(env),
            trusted_proxies: trusted_proxies(env),
            allow_http: var(env, "ALLOW_HTTP") == "1",
            alpacon_mcp: var(env, "ALPACON_MCP") == "1",
        }
    }

    fn read_throttles(env: &Env) -> ThrottleSettings {
        let default = ThrottleSettings::default();
        let limit = |name, default: u32| {
            u32::try_from(positive(env, name, default.into())).unwrap_or(default)
        };
        ThrottleSettings {
            login_seconds: positive(env, "LOGIN_WINDOW_SECONDS", default.login_seconds),
            hour_seconds: positive(env, "HOUR_WINDOW_SECONDS", default.hour_seconds),
            logins_of_site: limit("LOGIN_FAILURES_PER_SITE", default.logins_of_site),
            logins_of_workspace: limit("LOGIN_FAILURES_PER_WORKSPACE", default.logins_of_workspace),
            logins_of_user: limit("LOGINS_PER_USER", default.logins_of_user),
            resets_of_site: limit("RESETS_PER_SITE", default.resets_of_site),
            resets_of_workspace: limit("RESETS_PER_WORKSPACE", default.resets_of_workspace),
        }
    }

    /// The address of a workspace. It depends on the configuration alone: a request's Host header
    /// must not influence the links in mails.
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

    /// The origin of the web client, if it differs from the workspace's origin.
    pub fn separate_web_client(&self) -> Option<&str> {
        Some(self.web_client_url.as_str()).filter(|url| !url.is_empty())
    }

    /// The parts of the host names that this region cell serves.
    pub fn names(&self) -> CellNames<'_> {
        CellNames {
            region: &self.region,
            service_domain: &self.service_domain,
            default_workspace: Some(&self.default_workspace),
        }
    }
}

/// The interval of an agent's heartbeats, in seconds.
pub fn heartbeat_seconds(env: &Env) -> i64 {
    positive(env, "AGENT_HEARTBEAT_SECONDS", 300)
}

/// The commit from which the Worker was built, if the deployment sets it.
pub fn commit(env: &Env) -> Option<String> {
    Some(var(env, "COMMIT")).filter(|commit| !commit.is_empty())
}

/// The interval of an agent's pings, in seconds.
pub fn ping_seconds(env: &Env) -> i64 {
    positive(env, "AGENT_PING_SECONDS", 600)
}

const DEFAULT_GRACE_DAYS: u16 = 7;
const MAX_GRACE_DAYS: u16 = 365;

/// The setting for [`retention_cutoff`]: the days for which commands are kept after their end.
pub const COMMAND_RETENTION: &str = "COMMAND_RETENTION_DAYS";
/// The setting for [`retention_cutoff`]: the days for which audit events are kept.
pub const AUDIT_RETENTION: &str = "AUDIT_RETENTION_DAYS";
/// The setting for [`retention_cutoff`]: the days for which anonymous audit events are kept.
pub const ANONYMOUS_AUDIT_RETENTION: &str = "ANONYMOUS_AUDIT_RETENTION_DAYS";

/// The cutoff of a retention setting, which deletes commands that ended and events that happened
/// before it. Returns `None` if the setting deletes nothing.
///
/// # Errors
/// The setting is invalid.
pub fn retention_cutoff(env: &Env, setting: &str) -> Result<Option<Timestamp>, Error> {
    let until = retention::until(&var(env, setting), now());
    until.map_err(|error| Error::internal(format!("{setting} is {error}")))
}

/// When to purge a workspace that is deleted now: after `WORKSPACE_GRACE_DAYS`.
pub fn purge_at(env: &Env, now: Timestamp) -> Timestamp {
    now.plus(grace(env, "WORKSPACE_GRACE_DAYS"))
}

/// How long a deleted server can be undeleted: `SERVER_GRACE_DAYS`.
pub fn server_grace(env: &Env) -> Duration {
    grace(env, "SERVER_GRACE_DAYS")
}

/// A setting that is a number of days before a purge. An absent or invalid setting must not cause an
/// immediate purge, so the default is not zero.
fn grace(env: &Env, setting: &str) -> Duration {
    let value = var(env, setting);
    let days = value.parse().ok().filter(|days| *days <= MAX_GRACE_DAYS);
    let days = days.unwrap_or_else(|| {
        if !value.is_empty() {
            let about = json!({"setting": setting});
            log::error("invalid_setting", about, &"not 0 to 365; 7 is used");
        }
        DEFAULT_GRACE_DAYS
    });
    Duration::from_secs(u64::from(days) * 86_400)
}

/// The cell's secret key. During a rotation, it includes the previous key. Cached per isolate.
///
/// # Errors
/// The secret `SECRET_KEY` is missing, or it or `SECRET_KEY_PREVIOUS` is too short.
pub fn secret_key(env: &Env) -> Result<SecretKey, Error> {
    if let Some(cached) = SECRET_KEY.with(|key| key.get().cloned()) {
        return Ok(cached);
    }
    match SecretKey::new(&var(env, "SECRET_KEY"), &var(env, "SECRET_KEY_PREVIOUS")) {
        Ok(read) => Ok(SECRET_KEY.with(|key| key.get_or_init(|| read).clone())),
        Err(InvalidSecretKey::Missing) => Err(Error::internal("the secret SECRET_KEY is not set")),
        Err(InvalidSecretKey::TooShort) => Err(Error::internal(format!(
            "SECRET_KEY and SECRET_KEY_PREVIOUS need {MIN_SECRET_LENGTH} characters"
        ))),
    }
}

/// The operator's tokens: the current token, and during a rotation the previous token. A token that
/// is too short is treated as absent. Without a current token, the operator API does not exist.
pub fn operator_tokens(env: &Env) -> Option<Vec<Secret>> {
    let token = |name| {
        Some(var(env, name))
            .filter(|token| token.chars().count() >= MIN_SECRET_LENGTH)
            .map(Secret::new)
    };
    let current = token("OPERATOR_TOKEN")?;
    Some([Some(current), token("OPERATOR_TOKEN_PREVIOUS")].into_iter().flatten().collect())
}

/// The sender's address of all mails.
pub fn mail_from(env: &Env) -> String {
    var(env, "MAIL_FROM")
}

/// The SMTP server for mails. Returns `None` if mails are sent through the binding [`EMAIL`].
///
/// # Errors
/// A setting is invalid.
pub fn smtp_server(env: &Env) -> Result<Option<SmtpServer>, Error> {
    let host = var(env, "SMTP_HOST");
    if host.is_empty() {
        return Ok(None);
    }
    let (security, default_port) = match var(env, "SMTP_SECURITY").as_str() {
        "" | "starttls" => (Security::StartTls, 587),
        "tls" => (Security::Tls, 465),
        _ => return Err(Error::internal("SMTP_SECURITY is neither starttls nor tls")),
    };
    let port = match var(env, "SMTP_PORT").as_str() {
        "" => default_port,
        port => port.parse().map_err(|_| Error::internal("SMTP_PORT is not a port number"))?,
    };
    let username = Some(var(env, "SMTP_USERNAME")).filter(|name| !name.is_empty());
    let login = username
        .map(|username| SmtpLogin { username, password: Secret::new(var(env, "SMTP_PASSWORD")) });
    Ok(Some(SmtpServer { host, port, security, login }))
}
