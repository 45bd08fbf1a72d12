//! The agent's settings, from the config file, flags and the environment.

use std::fmt;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use farhand_domain::secret::Secret;
use serde::Deserialize;
use uuid::Uuid;

use crate::labels::{self, Labels};

/// The default for the maximum number of concurrent commands (agent-protocol 4.3).
pub const DEFAULT_MAX_RUNNING: usize = 20;
/// The maximum of `max_running`. Each running command needs a process and several megabytes of
/// memory for its output.
const MAX_RUNNING_LIMIT: usize = 1_000;
/// The folder of the agent's state if neither the configuration nor the service manager names one
/// and there is no config file. `install` writes the same folder into the systemd unit.
const DEFAULT_STATE_DIR: &str = "/var/lib/farhand-agent";
/// The default path of the config file.
pub const DEFAULT_CONFIG: &str = "/etc/farhand/agent.toml";
/// The default socket of the system log. journald listens on it too.
const DEFAULT_SYSLOG: &str = "/dev/log";
/// The maximum size of a config or credential file, in bytes. It also ends a read from `/dev/zero`.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// An error in the configuration: one line for the person who started the agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<ConfigError> for String {
    fn from(error: ConfigError) -> Self {
        error.0
    }
}

fn error<T>(message: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError(message.into()))
}

/// Settings from the command line and the environment. They override the config file.
#[derive(Clone, Default, Debug)]
pub struct Overrides {
    /// The path of the config file, from the command line.
    pub config: Option<PathBuf>,
    /// The URL of the service.
    pub url: Option<String>,
    /// The server's id.
    pub id: Option<String>,
    /// A file that contains only the key.
    pub key_file: Option<PathBuf>,
    /// The key, from the environment variable.
    pub key: Option<Secret>,
    /// The folder of the agent's state, from the command line.
    pub state_dir: Option<PathBuf>,
    /// The folder of the agent's state, from the service manager's environment variable.
    pub service_state_dir: Option<PathBuf>,
    /// The policy file that applies in addition to the host's policy.
    pub policy: Option<PathBuf>,
}

/// The keys of the config file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    url: Option<String>,
    id: Option<String>,
    key: Option<String>,
    max_running: Option<usize>,
    state_dir: Option<PathBuf>,
    policy: Option<PathBuf>,
    #[serde(default)]
    require_policy: bool,
    syslog: Option<PathBuf>,
    #[serde(default)]
    allow_plain_http: bool,
    /// The labels of the next registration with `--force`.
    #[serde(default)]
    labels: Labels,
}

/// The checked settings of one agent.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The URL of the service, split into its parts.
    pub service: Service,
    /// The id of the server that this agent belongs to.
    pub id: Uuid,
    /// The agent's key: visible ASCII without quotes, so that it fits into a header.
    pub key: Secret,
    /// The maximum number of concurrent commands.
    pub max_running: usize,
    /// The folder of this server's state. It may not exist yet. No other server uses it.
    pub state_dir: PathBuf,
    /// All folders where an agent with this config file may keep its state, because the folder
    /// depends on how the agent was started. `state_dir` comes first.
    pub state_dirs: Vec<PathBuf>,
    /// The additional policy file, if the configuration names one.
    pub policy: Option<PathBuf>,
    /// Whether the agent refuses every command while the host has no policy.
    pub require_policy: bool,
    /// The socket of the host's system log.
    pub syslog: PathBuf,
    /// Warnings for the person who started the agent, one line each.
    pub warnings: Vec<String>,
}

impl Settings {
    /// Reads the config file, if one is given, and applies the overrides.
    ///
    /// # Errors
    /// The first error, in one line.
    pub fn load(overrides: Overrides) -> Result<Self, ConfigError> {
        let mut warnings = Vec::new();
        let file = match &overrides.config {
            Some(path) => {
                let text = read_private_file(path, &mut warnings)?;
                toml::from_str(&text)
                    .or_else(|e| error(format!("{}: {}", path.display(), describe(&e, &text))))?
            }
            None => ConfigFile::default(),
        };
        labels::check_all(&file.labels).or_else(error)?;
        let key = match (overrides.key, &overrides.key_file, file.key) {
            (_, Some(path), _) => Secret::new(read_private_file(path, &mut warnings)?.trim()),
            (Some(key), None, _) => key,
            (None, None, Some(key)) => Secret::new(key),
            (None, None, None) => {
                return error(
                    "no key is given: put `key` into the config file, or use --key-file or FARHAND_AGENT_KEY",
                );
            }
        };
        let Some(url) = overrides.url.or(file.url) else {
            return error("no url is given: put `url` into the config file, or use --url");
        };
        let Some(id) = overrides.id.or(file.id) else {
            return error("no id is given: put `id` into the config file, or use --id");
        };
        let Some(id) = farhand_domain::id::parse(id.trim()) else {
            return error(format!("id: {id:?} is not the UUID of a server"));
        };
        check_credential("key: a key", &key)?;
        let max_running = file.max_running.unwrap_or(DEFAULT_MAX_RUNNING);
        if !(1..=MAX_RUNNING_LIMIT).contains(&max_running) {
            return error(format!(
                "max_running: {max_running} is not between 1 and {MAX_RUNNING_LIMIT}"
            ));
        }
        let service = Service::parse(&url)?;
        service.check_transport(file.allow_plain_http)?;
        warnings.extend(service.warning());
        let beside_file = overrides.config.as_deref().map(|path| path.with_extension("state"));
        let mut state_dirs: Vec<PathBuf> = match overrides.state_dir.or(file.state_dir) {
            Some(named) => vec![named],
            None => overrides
                .service_state_dir
                .into_iter()
                .chain(beside_file)
                .chain([DEFAULT_STATE_DIR.into()])
                .collect(),
        };
        if state_dirs[0].as_os_str().is_empty() {
            return error("state_dir: the name is empty");
        }
        // Each server has its own folder, because several agents on one host may have the same
        // `state_dir`.
        state_dirs.iter_mut().for_each(|folder| folder.push(id.to_string()));
        let policy = overrides.policy.or(file.policy);
        let syslog = file.syslog.unwrap_or_else(|| DEFAULT_SYSLOG.into());
        let state_dir = state_dirs[0].clone();
        Ok(Self {
            service,
            id,
            key,
            max_running,
            state_dir,
            state_dirs,
            policy,
            require_policy: file.require_policy,
            syslog,
            warnings,
        })
    }
}

/// Checks that a credential fits between the quotes of a header. `what` starts the error message.
pub fn check_credential(what: &str, credential: &Secret) -> Result<(), ConfigError> {
    let is_fit = |b: u8| b.is_ascii_graphic() && b != b'"';
    if credential.expose().is_empty() || !credential.expose().bytes().all(is_fit) {
        return error(format!(
            "{what} must be visible ASCII characters, without quotes and blanks"
        ));
    }
    Ok(())
}

/// Reads a file that contains a credential. Adds a warning if other accounts can read the file.
///
/// # Errors
/// The file cannot be read, or is too large.
pub fn read_private_file(path: &Path, warnings: &mut Vec<String>) -> Result<String, ConfigError> {
    let shown = path.display();
    let mut file = fs::File::open(path).or_else(|e| error(format!("{shown}: {e}")))?;
    let metadata = file.metadata().or_else(|e| error(format!("{shown}: {e}")))?;
    if metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 {
        warnings
            .push(format!("{shown} can be read or changed by other accounts; it contains a credential: chmod 600 it"));
    }
    let mut bytes = Vec::new();
    file.by_ref()
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .or_else(|e| error(format!("{shown}: {e}")))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return error(format!("{shown}: larger than {MAX_FILE_BYTES} bytes"));
    }
    String::from_utf8(bytes).or_else(|_| error(format!("{shown}: not UTF-8")))
}

/// Describes a TOML error in one line, which never contains the key.
fn describe(error: &toml::de::Error, text: &str) -> String {
    let message = error.message().lines().collect::<Vec<_>>().join(", ");
    let Some(span) = error.span() else {
        return message;
    };
    let number = text.bytes().take(span.start).filter(|b| *b == b'\n').count();
    let is_key = text.lines().nth(number).is_some_and(|line| line.trim_start().starts_with("key"));
    // The message of the TOML parser can quote the value.
    let message = if is_key { "`key` must be given once, as text in quotes" } else { &message };
    format!("line {}: {message}", number + 1)
}

/// The URL of the service, split into its parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    /// Whether the agent uses https and wss, and not http and ws.
    pub tls: bool,
    /// The host name or address in lower case. An IPv6 address has no brackets.
    pub host: String,
    pub port: u16,
    /// The host for the `Host` header. An IPv6 address has brackets. The port is included unless it
    /// is the default port.
    pub authority: String,
    /// The path before `/api/`, without a slash at its end. It may be empty.
    pub path: String,
}

impl Service {
    /// Parses `http(s)://host[:port][/path]`.
    ///
    /// # Errors
    /// The reason why the URL is invalid, in one line.
    pub fn parse(url: &str) -> Result<Self, ConfigError> {
        let bad = |why: &str| error(format!("url: {url:?} {why}"));
        let Ok(uri) = url.trim().parse::<hyper::Uri>() else {
            return bad("is not a URL");
        };
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return bad("does not begin with https:// or http://"),
        };
        // The parser drops a fragment, so the text itself is checked.
        if uri.query().is_some()
            || url.contains('#')
            || uri.authority().is_none_or(|a| a.as_str().contains('@'))
        {
            return bad("has more than a host, a port and a path");
        }
        let written = uri.host().unwrap_or("");
        let default_port = if tls { 443 } else { 80 };
        // `Uri` treats an invalid port as absent, so the port is parsed here.
        let port_text = uri
            .authority()
            .and_then(|authority| authority.as_str().strip_prefix(written))
            .unwrap_or("");
        let port = match port_text.strip_prefix(':').map(str::parse) {
            None => default_port,
            Some(Ok(port)) if port > 0 => port,
            Some(_) => return bad("has an invalid port"),
        };
        let written = written.to_ascii_lowercase();
        let host = written.trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return bad("has no host");
        }
        let authority = if port == default_port { written } else { format!("{written}:{port}") };
        Ok(Self { tls, host, port, authority, path: uri.path().trim_end_matches('/').to_owned() })
    }

    /// Whether the name means this host: `localhost`, or a name below it. The C library does not
    /// resolve names below `.localhost`, although they are local by definition.
    pub fn is_local_name(&self) -> bool {
        let host = self.host.strip_suffix('.').unwrap_or(&self.host);
        host == "localhost" || host.ends_with(".localhost")
    }

    /// Whether the host of the URL is this host: a local name or a loopback address.
    fn is_local(&self) -> bool {
        self.is_local_name()
            || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// Whether the URL is http to another host. Then anyone on the network path can read and change
    /// all messages.
    pub fn is_insecure(&self) -> bool {
        !self.tls && !self.is_local()
    }

    /// Refuses http to another host, unless `is_plain_allowed`.
    ///
    /// # Errors
    /// The risk, and how to accept it, in one line.
    pub fn check_transport(&self, is_plain_allowed: bool) -> Result<(), ConfigError> {
        if !self.is_insecure() || is_plain_allowed {
            return Ok(());
        }
        error(format!(
            "url: {self} is not https: anyone on the network path is root here; set allow_plain_http = true to accept that"
        ))
    }

    /// Returns a warning if the URL is http to another host.
    pub fn warning(&self) -> Option<String> {
        self.is_insecure()
            .then(|| format!("{self} is not https: anyone on the network path is root here"))
    }

    /// Scheme, host and port, as a browser sends them in `Origin`.
    pub fn origin(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.authority)
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.path)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;

    use super::*;

    const ID: &str = "01936d3e-7a00-7000-8000-000000000000";

    fn file(content: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content.as_bytes()).unwrap();
        file
    }

    fn load(content: &str) -> Result<Settings, String> {
        let file = file(content);
        let overrides = Overrides { config: Some(file.path().to_owned()), ..Overrides::default() };
        Settings::load(overrides)
            .map_err(|error| error.to_string().replace(&file.path().display().to_string(), "FILE"))
    }

    fn good() -> String {
        format!("url = \"https://a.example\"\nid = \"{ID}\"\nkey = \"sesame\"\n")
    }

    #[test]
    fn a_file_alone_is_enough() {
        let settings = load(&good()).unwrap();
        assert_eq!(settings.service.to_string(), "https://a.example");
        assert_eq!(
            (settings.id.to_string().as_str(), settings.max_running),
            (ID, DEFAULT_MAX_RUNNING)
        );
        assert_eq!(settings.key.expose(), "sesame");
        assert_eq!(settings.warnings, [] as [&str; 0]);
        assert_eq!(load(&(good() + "max_running = 3")).unwrap().max_running, 3);
        assert!(!settings.require_policy);
        assert!(load(&(good() + "require_policy = true")).unwrap().require_policy);
        assert!(!format!("{settings:?}").contains("sesame"));
    }

    #[test]
    fn errors_are_one_line_without_the_key() {
        let cases = [
            (
                good() + "kex = 1",
                "FILE: line 4: unknown field `kex`, expected one of `url`, `id`, `key`, `max_running`, `state_dir`, \
                 `policy`, `require_policy`, `syslog`, `allow_plain_http`, `labels`",
            ),
            (good() + "max_running = 0", "max_running: 0 is not between 1 and 1000"),
            (
                good() + "max_running = \"x\"",
                "FILE: line 4: invalid type: string \"x\", expected usize",
            ),
            (good().replace(ID, "web-1"), "id: \"web-1\" is not the UUID of a server"),
            (
                good().replace("https:", "ftp:"),
                "url: \"ftp://a.example\" does not begin with https:// or http://",
            ),
            (
                good().replace("sesame", "ses ame"),
                "key: a key must be visible ASCII characters, without quotes and blanks",
            ),
            (
                format!("id = \"{ID}\"\nkey = \"k\""),
                "no url is given: put `url` into the config file, or use --url",
            ),
            (
                "url = \"http://localhost\"\nkey = \"k\"".to_owned(),
                "no id is given: put `id` into the config file, or use --id",
            ),
        ];
        for (content, expected) in cases {
            assert_eq!(load(&content).unwrap_err(), expected);
        }
        let number = load(&good().replace("\"sesame\"", "123456")).unwrap_err();
        assert_eq!(number, "FILE: line 3: `key` must be given once, as text in quotes");
        let unclosed = load(&good().replace("sesame\"", "sesame")).unwrap_err();
        assert!(
            unclosed.starts_with("FILE: line 3: ") && !unclosed.contains("sesame"),
            "{unclosed}"
        );
        assert_eq!(unclosed.lines().count(), 1);
    }

    #[test]
    fn a_missing_file_is_named() {
        let overrides = Overrides { config: Some("/no/such/file".into()), ..Overrides::default() };
        let error = Settings::load(overrides).unwrap_err().to_string();
        assert_eq!(error, "/no/such/file: No such file or directory (os error 2)");
    }

    #[test]
    fn flags_and_environment_override_the_file() {
        let (config, key_file) = (file(&good()), file("from-file\n"));
        let overrides = Overrides {
            config: Some(config.path().to_owned()),
            url: Some("http://b.localhost:8787/".to_owned()),
            key: Some(Secret::new("from-environment")),
            ..Overrides::default()
        };
        let settings = Settings::load(overrides.clone()).unwrap();
        assert_eq!(settings.service.to_string(), "http://b.localhost:8787");
        assert_eq!(settings.key.expose(), "from-environment");
        let overrides = Overrides { key_file: Some(key_file.path().to_owned()), ..overrides };
        assert_eq!(Settings::load(overrides).unwrap().key.expose(), "from-file");
    }

    #[test]
    fn the_state_folder_follows_the_order_of_sources() {
        let state = |overrides: Overrides| Settings::load(overrides).unwrap().state_dir;
        let flags = Overrides {
            url: Some("https://a.example".to_owned()),
            id: Some(ID.to_owned()),
            key: Some(Secret::new("k")),
            ..Overrides::default()
        };
        assert_eq!(state(flags.clone()), Path::new(DEFAULT_STATE_DIR).join(ID));
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("web-1.toml");
        fs::write(&config, "max_running = 3").unwrap();
        let overrides = Overrides { config: Some(config.clone()), ..flags };
        assert_eq!(state(overrides.clone()), directory.path().join("web-1.state").join(ID));
        let overrides = Overrides { service_state_dir: Some("/service".into()), ..overrides };
        assert_eq!(state(overrides.clone()), Path::new("/service").join(ID));
        fs::write(&config, "state_dir = \"/file\"").unwrap();
        assert_eq!(state(overrides.clone()), Path::new("/file").join(ID));
        let overrides = Overrides { state_dir: Some("/flag".into()), ..overrides };
        assert_eq!(state(overrides.clone()), Path::new("/flag").join(ID));
        let error =
            Settings::load(Overrides { state_dir: Some("".into()), ..overrides }).unwrap_err();
        assert_eq!(error.to_string(), "state_dir: the name is empty");
    }

    #[test]
    fn a_file_readable_by_others_gives_a_warning() {
        let file = file(&good());
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).unwrap();
        let settings = Settings::load(Overrides {
            config: Some(file.path().to_owned()),
            ..Overrides::default()
        })
        .unwrap();
        assert_eq!(settings.warnings.len(), 1);
        assert!(settings.warnings[0].contains("chmod 600"), "{:?}", settings.warnings);
    }

    #[test]
    fn http_to_another_host_must_be_allowed() {
        let plain = good().replace("https:", "http:");
        let refusal = load(&plain).unwrap_err();
        assert!(
            refusal.contains("anyone on the network path is root here")
                && refusal.contains("allow_plain_http"),
            "{refusal}"
        );
        assert!(load(&(plain.clone() + "allow_plain_http = false")).is_err());
        let allowed = load(&(plain + "allow_plain_http = true")).unwrap();
        assert!(
            allowed.warnings.len() == 1 && allowed.warnings[0].contains("root here"),
            "{:?}",
            allowed.warnings
        );
        for local in ["localhost", "a.localhost:8787", "127.0.0.1", "[::1]:80"] {
            let settings =
                load(&good().replace("https://a.example", &format!("http://{local}"))).unwrap();
            assert_eq!(settings.warnings, [] as [&str; 0], "{local}");
        }
    }

    #[test]
    fn service_urls_are_parsed_or_refused() {
        let service = Service::parse("https://A.Example:8443/base/").unwrap();
        assert_eq!((service.tls, service.host.as_str(), service.port), (true, "a.example", 8443));
        assert_eq!(
            (service.authority.as_str(), service.path.as_str()),
            ("a.example:8443", "/base")
        );
        assert_eq!(Service::parse("http://[::1]").unwrap().host, "::1");
        assert_eq!(Service::parse("http://[::1]:8080").unwrap().origin(), "http://[::1]:8080");
        assert_eq!(Service::parse("https://a.example:443").unwrap().origin(), "https://a.example");
        for (name, local) in [
            ("localhost", true),
            ("a.b.localhost", true),
            ("notlocalhost", false),
            ("127.0.0.1", false),
        ] {
            assert_eq!(
                Service::parse(&format!("http://{name}")).unwrap().is_local_name(),
                local,
                "{name}"
            );
        }
        for bad in [
            "",
            "a.example",
            "https://",
            "https://u:p@a.example",
            "https://a?x=1",
            "https://a#x",
            "https://a:99999",
        ] {
            assert!(Service::parse(bad).is_err(), "{bad}");
        }
    }
}
