//! `install` and `uninstall`: the agent as a systemd service.
//!
//! The restrictions of a systemd unit apply to all processes of the service, including commands. An
//! agent that runs as root must be able to run any command as any account, so its unit has no
//! restrictions. The unit of an agent that runs as another account uses systemd's sandbox.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use farhand_domain::agent::wire::PolicyMode;
use nix::unistd::{Gid, User, geteuid};

use crate::host::system::getgrouplist;

use crate::runner::policy::POLICY;
use crate::service::policy_install;
use crate::upgrade::program_file;

/// The path of the installed binary.
const BINARY: &str = "/usr/local/bin/farhand-agent";
/// The name of the unit.
const UNIT_NAME: &str = "farhand-agent.service";
/// The folder for units that the administrator installs.
const UNIT_FOLDER: &str = "/etc/systemd/system";
/// The same for the account that runs this program, below its home.
const OWN_BINARY: &str = ".local/bin/farhand-agent";
const OWN_UNIT_FOLDER: &str = ".config/systemd/user";
/// The unit of an agent that runs as root.
const ROOT_UNIT: &str = include_str!("../../systemd/farhand-agent.service");
/// The unit of an agent that runs as another account. It adds the account and its sandbox.
const ACCOUNT_UNIT: &str = include_str!("../../systemd/farhand-agent-sandbox.service");
/// The unit for the systemd of one account.
const OWN_UNIT: &str = include_str!("../../systemd/farhand-agent-own.service");

/// The arguments of `install`.
pub struct Installation {
    /// The agent's config file.
    pub config: PathBuf,
    /// The account that the agent runs as. If `None`, it runs as root.
    pub user: Option<String>,
    /// A folder below which all files are written. With a prefix, nothing is started or checked.
    pub prefix: Option<PathBuf>,
    /// Whether to install for the account that runs this program, without root.
    pub own_account: bool,
    /// Whether to start the agent.
    pub start: bool,
    /// The mode of the host's policy, if one was chosen.
    pub policy: Option<PolicyMode>,
}

/// The reason why an action failed, in one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The arguments are invalid.
    Misuse(String),
    /// Any other error.
    Failed(String),
}

fn misuse<T>(why: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Misuse(why.into()))
}

/// Where the agent is installed.
struct InstallTarget {
    binary: PathBuf,
    unit_file: PathBuf,
    /// The systemd that manages the unit. `None` if nothing is started.
    manager: Option<Manager>,
}

/// A systemd that runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Manager {
    /// The systemd of the host.
    Host,
    /// The systemd of the account that runs this program.
    OwnAccount,
}

impl InstallTarget {
    fn find(prefix: Option<&Path>, own_account: bool) -> Result<Self, Failure> {
        if own_account {
            let home = own_home()?;
            return Ok(Self {
                binary: home.join(OWN_BINARY),
                unit_file: home.join(OWN_UNIT_FOLDER).join(UNIT_NAME),
                manager: Manager::OwnAccount.runs().then_some(Manager::OwnAccount),
            });
        }
        if prefix.is_none() {
            check_root()?;
        }
        let below = |path: &str| prefixed(prefix, path);
        Ok(Self {
            binary: below(BINARY),
            unit_file: below(&format!("{UNIT_FOLDER}/{UNIT_NAME}")),
            manager: (prefix.is_none() && Manager::Host.runs()).then_some(Manager::Host),
        })
    }
}

/// The home of the account that runs this program.
fn own_home() -> Result<PathBuf, Failure> {
    match std::env::home_dir() {
        Some(home) if home.is_absolute() => Ok(home),
        _ => misuse("this account has no home"),
    }
}

/// Installs this program as a systemd service, or updates the installed service. Returns text to
/// print.
///
/// # Errors
/// The reason.
pub fn install(installation: &Installation) -> Result<String, Failure> {
    let Installation { config, user, prefix, own_account, start, policy } = installation;
    check_path(config)?;
    let account = user.as_deref().map(find_account).transpose()?;
    let InstallTarget { binary, unit_file, manager } =
        InstallTarget::find(prefix.as_deref(), *own_account)?;
    let mut report = Vec::new();
    if prefix.is_none() {
        check_config(config)?;
        if let Some(account) = &account {
            report.extend(give_config(config, account)?);
        }
    }
    let content = if *own_account {
        check_path(&binary)?;
        OWN_UNIT
            .replace("@BINARY@", &binary.display().to_string())
            .replace("@CONFIG@", &config.display().to_string())
    } else {
        unit(config, user.as_deref())
    };
    if !own_account {
        // Before the start, because an agent without a policy accepts every command.
        let path = prefixed(prefix.as_deref(), POLICY);
        report.extend(policy_install::write(&path, *policy).map_err(Failure::Failed)?);
    } else if policy.is_some() {
        let variable = policy_install::MODE_VARIABLE;
        return misuse(format!("{variable}: only root can write {POLICY}, so omit --own-account"));
    }
    if copy_binary(&binary)? {
        // The files of an earlier upgrade belong to another program.
        program_file::forget_upgrades(&binary);
        report.push(format!("the program is {}", binary.display()));
    }
    write(&unit_file, content.as_bytes(), 0o644).map_err(|error| describe(&unit_file, &error))?;
    report.push(format!("the unit is {}", unit_file.display()));
    let Some(manager) = manager else {
        return if prefix.is_some() {
            Ok(report.join("\n"))
        } else {
            let command = format!("{} run --config {}", binary.display(), config.display());
            without_systemd(report, *start, &command)
        };
    };
    for arguments in systemctl_steps(*start) {
        manager.systemctl(arguments)?;
    }
    report
        .push(if *start { "the agent runs" } else { "the agent starts with the host" }.to_owned());
    if manager == Manager::OwnAccount && !lingers() {
        report.push(
            "it ends when you log out; to prevent that, run: loginctl enable-linger".to_owned(),
        );
    }
    Ok(report.join("\n"))
}

/// The end of an installation on a host on which systemd does not run. This is a failure if the
/// agent should have been started.
fn without_systemd(mut report: Vec<String>, start: bool, command: &str) -> Result<String, Failure> {
    let how = format!("systemd does not run on this host: start the agent with {command}");
    if start {
        return Err(Failure::Failed(format!("{}; {how}", report.join("; "))));
    }
    report.push(how);
    Ok(report.join("\n"))
}

/// Stops the service and deletes its unit. Keeps the binary and the config file. Returns text to
/// print.
///
/// # Errors
/// The reason.
pub fn uninstall(prefix: Option<PathBuf>, own_account: bool) -> Result<String, Failure> {
    let InstallTarget { binary, unit_file, manager } =
        InstallTarget::find(prefix.as_deref(), own_account)?;
    if !unit_file.exists() {
        return Ok(format!("there is no {}: nothing to do", unit_file.display()));
    }
    if let Some(manager) = manager {
        manager.systemctl(&["disable", "--now", UNIT_NAME])?;
    }
    fs::remove_file(&unit_file).map_err(|error| describe(&unit_file, &error))?;
    if let Some(manager) = manager {
        manager.systemctl(&["daemon-reload"])?;
    }
    Ok(format!(
        "{} is removed; {} and the agent's file stay",
        unit_file.display(),
        binary.display()
    ))
}

/// The systemctl calls after the unit is written. A running service is restarted with its new unit.
fn systemctl_steps(start: bool) -> &'static [&'static [&'static str]] {
    let all: &[&[&str]] = &[&["daemon-reload"], &["enable", UNIT_NAME], &["restart", UNIT_NAME]];
    if start { all } else { &all[..2] }
}

impl Manager {
    /// Whether this systemd runs. For the host, checked as sd_booted(3) does.
    fn runs(self) -> bool {
        match self {
            Self::Host => Path::new("/run/systemd/system").is_dir(),
            Self::OwnAccount => Command::new("systemctl")
                .args(["--user", "show-environment"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success()),
        }
    }

    fn systemctl(self, arguments: &[&str]) -> Result<(), Failure> {
        let scope: &[&str] = if self == Self::OwnAccount { &["--user"] } else { &[] };
        let arguments = [scope, arguments].concat();
        let shown = format!("systemctl {}", arguments.join(" "));
        let status = Command::new("systemctl").args(arguments).stdin(Stdio::null()).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure::Failed(format!("{shown}: {status}"))),
            Err(error) => Err(Failure::Failed(format!("{shown}: {error}"))),
        }
    }
}

/// Whether the systemd of the account runs while the account is not logged in.
fn lingers() -> bool {
    let name = User::from_uid(geteuid()).ok().flatten().map(|user| user.name);
    name.is_some_and(|name| Path::new("/var/lib/systemd/linger").join(name).exists())
}

fn check_root() -> Result<(), Failure> {
    if geteuid().is_root() {
        Ok(())
    } else {
        Err(Failure::Failed("this needs root: run it with sudo".to_owned()))
    }
}

/// Checks that a path can be in a unit without escaping. Blanks, quotes, `%`, `$` and other
/// characters have a special meaning in a unit.
fn check_path(path: &Path) -> Result<(), Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
    let is_fit = path.is_absolute()
        && !path.components().any(|part| part == Component::ParentDir)
        && path.to_str().is_some_and(|path| path.chars().all(is_plain));
    if is_fit {
        return Ok(());
    }
    misuse(format!(
        "{}: a path in a unit may contain only letters, digits and / . _ - + @, and no ..",
        path.display()
    ))
}

/// Checks that an agent can start with this config file.
fn check_config(config: &Path) -> Result<(), Failure> {
    let overrides =
        crate::config::Overrides { config: Some(config.to_owned()), ..Default::default() };
    match crate::config::Settings::load(overrides) {
        Ok(_) => Ok(()),
        Err(error) if config.exists() => misuse(error.to_string()),
        Err(error) => misuse(format!("{error}: register first")),
    }
}

fn find_account(name: &str) -> Result<User, Failure> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.';
    let found =
        if name.bytes().all(is_plain) { User::from_name(name).ok().flatten() } else { None };
    match found {
        Some(user) if user.uid.is_root() => {
            misuse("--user: the agent runs as root without this option")
        }
        Some(user) => Ok(user),
        None => misuse(format!("--user: there is no account {name:?} on this host")),
    }
}

/// Makes an account the owner of the config file, and restricts the access to this account. If this
/// changed the file, returns a line about the change.
fn give_config(config: &Path, account: &User) -> Result<Option<String>, Failure> {
    let (shown, name) = (config.display(), &account.name);
    let groups = std::ffi::CString::new(name.as_str())
        .ok()
        .and_then(|name| getgrouplist(&name, account.gid).ok());
    for folder in config.ancestors().skip(1) {
        let metadata = fs::metadata(folder).map_err(|error| describe(folder, &error))?;
        if !can_enter(&metadata, account, groups.as_deref().unwrap_or_default()) {
            let folder = folder.display();
            return misuse(format!(
                "{name} cannot enter {folder}: move the agent's file, and name it with --config"
            ));
        }
    }
    let open = || {
        // Does not follow a link to another file.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(config)?;
        Ok((file.metadata()?, file))
    };
    let (metadata, file) = open().map_err(|error| describe(config, &error))?;
    if !metadata.is_file() {
        return misuse(format!("{shown}: not a file"));
    }
    if metadata.uid() == account.uid.as_raw() && metadata.mode() & 0o777 == 0o600 {
        return Ok(None);
    }
    fchown(&file, Some(account.uid.as_raw()), Some(account.gid.as_raw()))
        .and_then(|()| file.set_permissions(fs::Permissions::from_mode(0o600)))
        .map_err(|error| describe(config, &error))?;
    Ok(Some(format!("{shown} belongs to {name} now")))
}

/// Whether the mode of a folder allows an account to enter it.
fn can_enter(folder: &fs::Metadata, account: &User, groups: &[Gid]) -> bool {
    let bit = if folder.uid() == account.uid.as_raw() {
        0o100
    } else if groups.contains(&Gid::from_raw(folder.gid())) {
        0o010
    } else {
        0o001
    };
    folder.mode() & bit != 0
}

/// Returns the path below the prefix, or the path itself if no prefix is given.
fn prefixed(prefix: Option<&Path>, path: &str) -> PathBuf {
    match prefix {
        Some(prefix) => prefix.join(path.trim_start_matches('/')),
        None => PathBuf::from(path),
    }
}

/// Copies this program to `to`. Returns false if the program already runs from there.
fn copy_binary(to: &Path) -> Result<bool, Failure> {
    let from = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("this program's file is unknown: {error}")))?;
    let identity =
        |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let own = identity(&from)
        .ok_or_else(|| Failure::Failed(format!("{} does not exist any more", from.display())))?;
    if identity(to) == Some(own) {
        return Ok(false);
    }
    let bytes = fs::read(&from).map_err(|error| describe(&from, &error))?;
    write(to, &bytes, 0o755).map_err(|error| describe(to, &error))?;
    Ok(true)
}

/// Writes a file. Replaces an existing file by a rename, because the file may be a running program.
fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = folder.join(format!(".{name}.{:016x}", fastrand::u64(..)));
    let written = (|| {
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(content)?;
        // Sets the mode again, because the umask may have restricted it.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn describe(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("{}: {error}", path.display()))
}

/// The text of the unit. Inserts the account before the path, because the path can contain
/// `@USER@`, which must not be replaced.
fn unit(config: &Path, user: Option<&str>) -> String {
    let unit = match user {
        Some(user) => ACCOUNT_UNIT.replace("@USER@", user),
        None => ROOT_UNIT.to_owned(),
    };
    unit.replace("@CONFIG@", &config.display().to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The lines of a unit without comments and empty lines.
    fn settings(unit: &str) -> Vec<&str> {
        unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
    }

    const CONFIG: &str = "/etc/farhand/agent.toml";

    #[test]
    fn the_unit_for_root_has_no_restrictions() {
        let unit = unit(Path::new(CONFIG), None);
        let expected = [
            "[Unit]",
            "Description=Farhand agent: runs commands on this server for a workspace",
            "Wants=network-online.target",
            "After=network-online.target",
            "ConditionPathExists=/etc/farhand/agent.toml",
            "StartLimitIntervalSec=0",
            "[Service]",
            "Type=exec",
            "ExecStart=/usr/local/bin/farhand-agent run --config /etc/farhand/agent.toml",
            "Restart=always",
            "RestartSec=5",
            "RestartPreventExitStatus=2",
            "KillMode=process",
            "TimeoutStopSec=60",
            "OOMPolicy=continue",
            "TasksMax=infinity",
            "StateDirectory=farhand-agent",
            "StateDirectoryMode=0700",
            "SyslogIdentifier=farhand-agent",
            "Delegate=yes",
            "[Install]",
            "WantedBy=multi-user.target",
        ];
        assert_eq!(settings(&unit), expected);
    }

    #[test]
    fn the_unit_for_an_account_adds_a_sandbox() {
        let (root, own) = (unit(Path::new(CONFIG), None), unit(Path::new(CONFIG), Some("deploy")));
        // The sandbox allows no control groups.
        assert!(!settings(&own).contains(&"Delegate=yes"));
        let added: Vec<_> =
            settings(&own).into_iter().filter(|line| !settings(&root).contains(line)).collect();
        let expected = [
            "User=deploy",
            "NoNewPrivileges=yes",
            "CapabilityBoundingSet=",
            "RestrictSUIDSGID=yes",
            "ProtectSystem=full",
            "PrivateTmp=yes",
            "PrivateDevices=yes",
            "ProtectKernelTunables=yes",
            "ProtectKernelModules=yes",
            "ProtectKernelLogs=yes",
            "ProtectControlGroups=yes",
            "ProtectClock=yes",
            "ProtectHostname=yes",
            "ProtectProc=invisible",
            "RestrictNamespaces=yes",
            "RestrictRealtime=yes",
            "LockPersonality=yes",
            "SystemCallArchitectures=native",
            "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
        ];
        assert_eq!(added, expected);
        assert_eq!(settings(&own).len(), settings(&root).len() - 1 + expected.len());
    }

    #[test]
    fn the_unit_for_the_own_account_differs_from_that_of_root_in_its_scope() {
        let root = unit(Path::new(CONFIG), None);
        let own = OWN_UNIT.replace("@BINARY@", BINARY).replace("@CONFIG@", CONFIG);
        let only_in = |one: &str, other: &str| {
            let other = settings(other);
            settings(one)
                .into_iter()
                .filter(|line| !other.contains(line))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(only_in(&own, &root), ["WantedBy=default.target"]);
        let of_the_host = [
            "Wants=network-online.target",
            "After=network-online.target",
            "WantedBy=multi-user.target",
        ];
        assert_eq!(only_in(&root, &own), of_the_host);
    }

    #[test]
    fn a_unit_has_the_account_and_the_path() {
        let path = Path::new("/etc/@USER@.toml");
        assert!(unit(path, Some("deploy")).contains("ConditionPathExists=/etc/@USER@.toml\n"));
        for user in [None, Some("deploy")] {
            assert!(!unit(Path::new(CONFIG), user).contains('@'));
            assert!(unit(Path::new(CONFIG), user).contains(&format!("ExecStart={BINARY} run")));
        }
    }

    #[test]
    fn systemd_waits_longer_than_the_longest_shutdown() {
        let longest = crate::cli::DRAIN_SECONDS + crate::agent::MAX_SHUTDOWN.as_secs();
        assert_eq!(longest, 45, "the comment in the unit says so");
        let unit = unit(Path::new(CONFIG), None);
        let seconds = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
        assert!(longest + 10 < seconds.parse().unwrap());
    }

    #[test]
    fn a_service_is_restarted_unless_start_is_off() {
        assert_eq!(
            systemctl_steps(true),
            [&["daemon-reload"][..], &["enable", UNIT_NAME], &["restart", UNIT_NAME]]
        );
        assert_eq!(systemctl_steps(false), [&["daemon-reload"][..], &["enable", UNIT_NAME]]);
    }

    #[test]
    fn paths_with_a_meaning_for_systemd_are_refused() {
        assert!(check_path(Path::new("/etc/farhand/web-1_a.b+c@d.toml")).is_ok());
        for bad in [
            "agent.toml",
            "/etc/a b",
            "/etc/%n",
            "/etc/$HOME",
            "/etc/../x",
            "/etc/a\"",
            "/etc/a\nUser=x",
            "/ä",
        ] {
            assert!(matches!(check_path(Path::new(bad)), Err(Failure::Misuse(_))), "{bad:?}");
        }
    }

    #[test]
    fn the_account_must_exist_and_not_be_root() {
        assert_eq!(find_account("nobody").unwrap().name, "nobody");
        for bad in ["root", "no-such-account", "", "a b", "nobody\n"] {
            assert!(matches!(find_account(bad), Err(Failure::Misuse(_))), "{bad:?}");
        }
    }

    #[test]
    fn an_account_must_be_able_to_enter_every_folder() {
        let directory = tempfile::tempdir().unwrap();
        let nobody = find_account("nobody").unwrap();
        let enters = |mode| {
            fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
            can_enter(&fs::metadata(directory.path()).unwrap(), &nobody, &[nobody.gid])
        };
        assert!(enters(0o755) && enters(0o711) && !enters(0o700) && !enters(0o770));
        let config = directory.path().join("agent.toml");
        fs::write(&config, "").unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(
            matches!(give_config(&config, &nobody), Err(Failure::Misuse(why)) if why.contains("cannot enter"))
        );
    }

    #[test]
    fn only_the_config_file_changes_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let config = directory.path().join("agent.toml");
        fs::write(&config, "").unwrap();
        fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).unwrap();
        // Root can give a file to another account. Other accounts can give a file only to
        // themselves.
        let account = match geteuid().is_root() {
            true => find_account("nobody").unwrap(),
            false => User::from_uid(geteuid()).unwrap().unwrap(),
        };
        assert!(
            give_config(&config, &account)
                .unwrap()
                .unwrap()
                .ends_with(&format!("belongs to {} now", account.name))
        );
        let metadata = fs::metadata(&config).unwrap();
        assert_eq!((metadata.uid(), metadata.mode() & 0o777), (account.uid.as_raw(), 0o600));
        assert_eq!(give_config(&config, &account), Ok(None));
        let link = directory.path().join("link.toml");
        let other = directory.path().join("other");
        fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
        assert!(give_config(&link, &account).is_err());
        assert_eq!(fs::metadata(&other).unwrap().uid(), geteuid().as_raw());
    }

    #[test]
    fn a_written_file_replaces_the_old_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b/file");
        for (content, mode) in [("one", 0o644), ("two", 0o755)] {
            write(&path, content.as_bytes(), mode).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, mode);
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
