//! What the rules take as arguments and only the platform has: the time, random bytes, configuration; and the names of
//! the bindings in `wrangler.toml`.

use std::cell::OnceCell;
use std::fmt::Display;
use std::rc::Rc;

use farhand_domain::error::Error;
use farhand_domain::host::Names;
use farhand_domain::id;
use farhand_domain::retention;
use farhand_domain::secret::{Pepper, Secret};
use farhand_domain::smtp::{Login, Security};
use farhand_domain::throttle::Windows;
use farhand_domain::time::Timestamp;
use uuid::Uuid;
use worker::{Date, Env};

use crate::smtp::Server;

/// The D1 database.
pub const DB: &str = "DB";
/// The KV namespace of login tokens.
pub const LOGIN_TOKENS: &str = "LOGIN_TOKENS";
/// The Durable Objects of servers, [`crate::server_link::ServerLink`].
pub const SERVER_LINK: &str = "SERVER_LINK";
/// The Durable Object that purges deleted workspaces, [`crate::janitor::Janitor`].
pub const JANITOR: &str = "JANITOR";
/// The Durable Objects that count guesses, [`crate::throttle::Throttle`].
pub const THROTTLE: &str = "THROTTLE";
/// The Durable Object that sends mails, [`crate::mailer::Mailer`].
pub const MAILER: &str = "MAILER";
/// The Durable Objects that seal audit events, [`crate::sealer::Sealer`].
pub const SEALER: &str = "SEALER";
/// Cloudflare's binding for sending mail.
pub const EMAIL: &str = "EMAIL";

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

thread_local! {
    static CONFIG: OnceCell<Rc<Config>> = const { OnceCell::new() };
    static PEPPER: OnceCell<Pepper> = const { OnceCell::new() };
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
    web_client_url: String,
    /// The workspaces' addresses, with `{workspace}` for the slug; empty where it is made of the names.
    base_url: String,
    /// How long the throttles count.
    pub windows: Windows,
}

fn var(env: &Env, name: &str) -> String {
    env.var(name).map(|value| value.to_string()).unwrap_or_default()
}

/// A var that is a whole number from 1 on, or what stands for it where it is none.
fn positive(env: &Env, name: &str, otherwise: i64) -> i64 {
    var(env, name).parse().ok().filter(|number| *number > 0).unwrap_or(otherwise)
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
            windows: Windows {
                login_seconds: positive(env, "LOGIN_WINDOW_SECONDS", 300),
                hour_seconds: positive(env, "HOUR_WINDOW_SECONDS", 3600),
            },
        }
    }

    /// The address of a workspace, from configuration alone: what goes into a mail must not hang on a request's Host.
    pub fn base_url_of(&self, slug: &str) -> String {
        if self.base_url.is_empty() {
            return format!("https://{slug}.{}.{}", self.region, self.service_domain);
        }
        self.base_url.replace("{workspace}", slug)
    }

    /// The address of the web console for a workspace (contract 4, reset confirm GET).
    pub fn web_client_of(&self, slug: &str) -> String {
        if self.web_client_url.is_empty() { self.base_url_of(slug) } else { self.web_client_url.clone() }
    }

    /// The origin of the web console, where it is not the workspace's own.
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

/// How often an agent is pinged, in seconds.
pub fn ping_seconds(env: &Env) -> i64 {
    positive(env, "AGENT_PING_SECONDS", 600)
}

/// Until when commands must have been over that are deleted now; `None`: none are (`COMMAND_RETENTION_DAYS`).
///
/// # Errors
/// The setting makes no sense.
pub fn kept_until(env: &Env) -> Result<Option<Timestamp>, Error> {
    let until = retention::until(&var(env, "COMMAND_RETENTION_DAYS"), now());
    until.map_err(|error| Error::internal(format!("COMMAND_RETENTION_DAYS is {error}")))
}

/// Before when audit events happened that are deleted now; `None`: none are (`AUDIT_RETENTION_DAYS`).
///
/// # Errors
/// The setting makes no sense.
pub fn audit_kept_until(env: &Env) -> Result<Option<Timestamp>, Error> {
    let until = retention::until(&var(env, "AUDIT_RETENTION_DAYS"), now());
    until.map_err(|error| Error::internal(format!("AUDIT_RETENTION_DAYS is {error}")))
}

/// The key for hashing credentials, with the one before it while it is being rotated.
///
/// # Errors
/// Without the secret `TOKEN_PEPPER` nothing that takes a credential works.
pub fn pepper(env: &Env) -> Result<Pepper, Error> {
    if let Some(known) = PEPPER.with(|pepper| pepper.get().cloned()) {
        return Ok(known);
    }
    match var(env, "TOKEN_PEPPER") {
        unset if unset.is_empty() => Err(Error::internal("the secret TOKEN_PEPPER is not set")),
        text => {
            let made = Pepper::new(text.as_bytes()).with_previous(var(env, "TOKEN_PEPPER_PREVIOUS").as_bytes());
            Ok(PEPPER.with(|pepper| pepper.get_or_init(|| made).clone()))
        }
    }
}

/// The operator's tokens, where there is an operator API: the one of now, and while it is being rotated the one before it.
pub fn operator_tokens(env: &Env) -> Option<Vec<Secret>> {
    let token = |name| Some(var(env, name)).filter(|token| !token.is_empty()).map(Secret::new);
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
    let login = username.map(|username| Login { username, password: Secret::new(var(env, "SMTP_PASSWORD")) });
    Ok(Some(Server { host, port, security, login }))
}
