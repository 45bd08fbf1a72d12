//! The host's policy: limits what the service may run on this host (agent-protocol 7.3).
//!
//! The policy file is read before each command, so a change applies to the next command. If root
//! does not own the file, other accounts can write to it, or it is invalid, every command is
//! refused. So a broken policy never allows more. This also applies if the agent is not root, so
//! only root can relax the rules.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farhand_domain::acl;
use farhand_domain::wire::AgentCommand;
use nix::unistd::{Uid, User};
use serde::Deserialize;

use crate::runner::builtins;

/// The path of the host's policy.
pub const POLICY: &str = "/etc/farhand/policy.toml";
/// The name of a file in the same folder as the policy. If it exists, the agent refuses all new
/// commands.
const DISABLED: &str = "disabled";
/// The maximum size of a policy file, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// The paths of the policy files, and the facts that their rules need.
#[derive(Clone, Debug)]
pub struct PolicyFile {
    /// The host's policy. It may be absent.
    default: PathBuf,
    /// The additional policy that the configuration names. If set, the file must exist.
    named: Option<PathBuf>,
    /// Whether the agent connects to the service over https.
    uses_https: bool,
}

/// The keys of a policy file.
#[derive(Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    allow_accounts: Option<Vec<String>>,
    #[serde(default)]
    deny_accounts: Vec<String>,
    allow_internal: Option<Vec<String>>,
    allow_argv: Option<Vec<Vec<String>>>,
    max_timeout: Option<i64>,
    #[serde(default)]
    require_https: bool,
}

/// The rules of this host, as read at one moment.
#[derive(Debug)]
pub struct Policy {
    /// The rules of each file. A command must satisfy all of them.
    rules: Vec<Rules>,
}

impl PolicyFile {
    /// Combines the policy at [`POLICY`] with the policy at `named`, which cannot relax it. So
    /// access to the agent's configuration is not enough to relax the host's rules.
    pub fn new(named: Option<PathBuf>, uses_https: bool) -> Self {
        Self { default: POLICY.into(), named, uses_https }
    }

    /// A policy without a file.
    #[cfg(test)]
    pub fn absent() -> Self {
        Self { default: "/no/such/policy.toml".into(), named: None, uses_https: true }
    }

    /// Reads the current policy.
    ///
    /// # Errors
    /// The reason why no command may run, in a sentence.
    pub fn read(&self) -> Result<Policy, String> {
        for disabled in self.disable_files() {
            match fs::symlink_metadata(&disabled) {
                Ok(_) => {
                    return Err(format!(
                        "This host accepts no commands: {} exists.",
                        disabled.display()
                    ));
                }
                Err(error) if is_absent(&error) => {}
                Err(error) => {
                    return Err(format!(
                        "This host accepts no commands: {}: {error}.",
                        disabled.display()
                    ));
                }
            }
        }
        let mut all = Vec::new();
        let named = self.named.iter().map(|path| (path, true));
        for (path, must_exist) in [(&self.default, false)].into_iter().chain(named) {
            let refuse = |why: String| {
                format!("The host's policy {} refuses every command: {why}.", path.display())
            };
            let rules = match load(path) {
                Ok(rules) => rules,
                Err(LoadError::Absent) if !must_exist => continue,
                Err(LoadError::Absent) => return Err(refuse("the file does not exist".to_owned())),
                Err(LoadError::Bad(why)) => return Err(refuse(why)),
            };
            if rules.require_https && !self.uses_https {
                return Err(refuse("require_https, and the agent's url is not https".to_owned()));
            }
            all.push(rules);
        }
        Ok(Policy { rules: all })
    }

    /// The files that stop all new commands if they exist: in the folder of the host's policy, and
    /// in the folder of the named policy.
    fn disable_files(&self) -> Vec<PathBuf> {
        [&self.default]
            .into_iter()
            .chain(&self.named)
            .map(|path| path.with_file_name(DISABLED))
            .collect()
    }
}

fn load(path: &Path) -> Result<Rules, LoadError> {
    let load_error = |error: io::Error| {
        if is_absent(&error) { LoadError::Absent } else { LoadError::Bad(error.to_string()) }
    };
    let mut file = File::open(path).map_err(load_error)?;
    // Checks the open file, so that it cannot be replaced between the check and the read.
    let metadata = file.metadata().map_err(load_error)?;
    if !metadata.is_file() {
        return Err(LoadError::Bad("it is not a file".to_owned()));
    }
    check_owner(metadata.uid(), metadata.mode()).map_err(|why| LoadError::Bad(why.to_owned()))?;
    let mut text = String::new();
    file.by_ref().take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(load_error)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(LoadError::Bad(format!("it is larger than {MAX_FILE_BYTES} bytes")));
    }
    let describe = |error: toml::de::Error| error.message().lines().collect::<Vec<_>>().join(", ");
    toml::from_str(&text).map_err(|error| LoadError::Bad(describe(error)))
}

/// The reason why a policy file could not be used.
enum LoadError {
    /// The file does not exist.
    Absent,
    /// The file exists but is not valid, with the reason.
    Bad(String),
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Checks that only root can write a file.
fn check_owner(uid: u32, mode: u32) -> Result<(), &'static str> {
    if uid != 0 {
        Err("its owner is not root")
    } else if mode & 0o022 != 0 {
        Err("accounts other than root can write to it")
    } else {
        Ok(())
    }
}

impl Policy {
    /// Checks a command that would run as the account with the number `uid`.
    ///
    /// # Errors
    /// The rule that refuses it, in a sentence.
    pub fn check(&self, order: &AgentCommand, uid: Uid) -> Result<(), String> {
        self.rules.iter().try_for_each(|rules| rules.check(order, uid))
    }

    /// Checks a built-in. No file has to list a built-in, except [`builtins::UPGRADE`].
    ///
    /// # Errors
    /// The rule that refuses it, in a sentence.
    pub fn check_builtin(&self, line: &str) -> Result<(), String> {
        let name = builtins::name(line);
        if name == builtins::UPGRADE && !self.rules.iter().any(|rules| rules.lists(name)) {
            return Err("The host's policy does not list upgrade (allow_internal).".to_owned());
        }
        self.rules.iter().try_for_each(|rules| rules.check_builtin(name))
    }
}

impl Rules {
    fn check(&self, order: &AgentCommand, uid: Uid) -> Result<(), String> {
        let Self { allow_accounts, deny_accounts, allow_argv, max_timeout, .. } = self;
        let refused =
            |rule: &str, why: String| Err(format!("The host's policy refuses it ({rule}): {why}."));
        if includes_account(deny_accounts, uid)? {
            return refused("deny_accounts", format!("no command may run as {}", order.user));
        }
        if let Some(allowed) = allow_accounts
            && !includes_account(allowed, uid)?
        {
            return refused("allow_accounts", format!("commands may not run as {}", order.user));
        }
        if let Some(patterns) = allow_argv {
            let words = order.argv.as_deref().filter(|_| order.script.is_none());
            let Some(words) = words else {
                return refused("allow_argv", "only commands given as argv may run".to_owned());
            };
            // Each of these inputs can make an allowed program run another program, for example
            // PATH, BASH_ENV or a configuration on stdin.
            if order.env.as_ref().is_some_and(|env| !env.is_empty())
                || order.stdin.is_some()
                || order.cwd.is_some()
            {
                return refused("allow_argv", "env, stdin and cwd may not be given".to_owned());
            }
            if !patterns.iter().any(|pattern| allows_words(pattern, words)) {
                return refused("allow_argv", "no pattern allows these words".to_owned());
            }
        }
        if let Some(limit) = max_timeout
            && order.timeout.is_none_or(|timeout| timeout > *limit)
        {
            return refused("max_timeout", format!("commands may run for {limit} s at most"));
        }
        Ok(())
    }

    /// Whether `allow_internal` lists a built-in.
    fn lists(&self, builtin: &str) -> bool {
        self.allow_internal.iter().flatten().any(|name| name == builtin)
    }

    fn check_builtin(&self, name: &str) -> Result<(), String> {
        if self.allow_internal.is_none() || self.lists(name) {
            return Ok(());
        }
        Err("The host's policy refuses it (allow_internal): this built-in is not allowed here."
            .to_owned())
    }
}

/// Whether a list of accounts, each a name or a number, includes `uid`. Names with the same number
/// are the same account.
fn includes_account(accounts: &[String], uid: Uid) -> Result<bool, String> {
    for account in accounts {
        let number = match account.parse::<u32>() {
            Ok(number) => Some(Uid::from_raw(number)),
            Err(_) => User::from_name(account)
                .map_err(|error| {
                    format!("The server's accounts could not be read: {}.", error.desc())
                })?
                .map(|user| user.uid),
        };
        if number == Some(uid) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a pattern allows a command's words, with the rules of an `argv` pattern of an API token.
/// A pattern that is only `...` would allow any program, so it allows no program.
fn allows_words(pattern: &[String], words: &[String]) -> bool {
    let has_fixed =
        pattern.first().is_some_and(|first| pattern.len() > 1 || first != acl::ANY_FURTHER_WORDS);
    has_fixed && acl::matches_words(pattern, words)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::{PermissionsExt, chown};

    use nix::unistd::geteuid;

    use super::*;

    fn policy(rules: &str) -> Policy {
        Policy { rules: vec![toml::from_str(rules).unwrap()] }
    }

    fn order(user: &str) -> AgentCommand {
        AgentCommand { user: user.to_owned(), timeout: Some(60), ..AgentCommand::default() }
    }

    fn uid(name: &str) -> Uid {
        User::from_name(name).unwrap().unwrap().uid
    }

    #[track_caller]
    fn refuses(rules: &str, order: &AgentCommand, rule: Option<&str>) {
        let refusal = policy(rules).check(order, uid(&order.user)).err();
        match rule {
            None => assert_eq!(refusal, None),
            Some(rule) => assert!(
                refusal.as_ref().is_some_and(|why| why.contains(rule)),
                "{rule}: {refusal:?}"
            ),
        }
    }

    #[test]
    fn accounts_are_compared_by_number() {
        refuses("", &order("root"), None);
        refuses("deny_accounts = [\"root\"]", &order("root"), Some("(deny_accounts)"));
        refuses("deny_accounts = [\"0\"]", &order("root"), Some("(deny_accounts)"));
        refuses("deny_accounts = [\"root\", \"no-such-account\"]", &order("nobody"), None);
        refuses("allow_accounts = [\"nobody\"]", &order("nobody"), None);
        refuses("allow_accounts = [\"nobody\"]", &order("root"), Some("(allow_accounts)"));
        refuses("allow_accounts = []", &order("root"), Some("(allow_accounts)"));
        let both = "allow_accounts = [\"root\"]\ndeny_accounts = [\"root\"]";
        refuses(both, &order("root"), Some("(deny_accounts)"));
    }

    #[test]
    fn argv_must_match_a_pattern() {
        let rules = "allow_argv = [[\"systemctl\", \"restart\", \"app-*\"], [\"/bin/echo\", \"...\"], [\"uptime\"], [\"...\"]]";
        let argv = |words: &[&str]| AgentCommand {
            argv: Some(words.iter().map(|word| (*word).to_owned()).collect()),
            ..order("root")
        };
        for allowed in [
            &["systemctl", "restart", "app-web"][..],
            &["systemctl", "restart", "app-"],
            &["/bin/echo"],
            &["/bin/echo", "a", "b; rm -rf /"],
            &["uptime"],
        ] {
            refuses(rules, &argv(allowed), None);
        }
        for refused in [
            &["systemctl", "restart"][..],
            &["systemctl", "restart", "db"],
            &["uptime", "-p"],
            &["sh", "-c", "x"],
            &[],
        ] {
            refuses(rules, &argv(refused), Some("(allow_argv)"));
        }
        refuses(
            rules,
            &AgentCommand { line: "uptime".to_owned(), ..order("root") },
            Some("(allow_argv)"),
        );
        // Inputs that could make an allowed program run another program.
        let env = [("BASH_ENV".to_owned(), "$(id)".into())].into_iter().collect();
        refuses(rules, &AgentCommand { env: Some(env), ..argv(&["uptime"]) }, Some("(allow_argv)"));
        refuses(
            rules,
            &AgentCommand { stdin: Some(String::new()), ..argv(&["uptime"]) },
            Some("(allow_argv)"),
        );
        refuses(
            rules,
            &AgentCommand { cwd: Some("/tmp".to_owned()), ..argv(&["uptime"]) },
            Some("(allow_argv)"),
        );
        refuses(rules, &AgentCommand { env: Some(Default::default()), ..argv(&["uptime"]) }, None);
        let script = AgentCommand { script: Some(Default::default()), ..argv(&["uptime"]) };
        refuses(rules, &script, Some("(allow_argv)"));
    }

    #[test]
    fn a_star_matches_within_one_word() {
        for (pattern, word, allowed) in [
            ("a*", "a", true),
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "abcd", false),
            ("a*a", "a", false),
            ("*b*b*", "abab", true),
            ("*b*b*", "ab", false),
            ("a", "ab", false),
        ] {
            assert_eq!(
                allows_words(&[pattern.to_owned()], &[word.to_owned()]),
                allowed,
                "{pattern} {word}"
            );
        }
    }

    #[test]
    fn a_timeout_is_bounded() {
        refuses("max_timeout = 60", &order("root"), None);
        refuses("max_timeout = 59", &order("root"), Some("(max_timeout)"));
        refuses(
            "max_timeout = 60",
            &AgentCommand { timeout: None, ..order("root") },
            Some("(max_timeout)"),
        );
    }

    #[test]
    fn only_listed_builtins_are_allowed() {
        assert!(policy("").check_builtin("ping").is_ok());
        let some = policy("allow_internal = [\"ping\"]");
        assert!(some.check_builtin(" ping\n").is_ok());
        assert!(some.check_builtin("restart").unwrap_err().contains("(allow_internal)"));
    }

    #[test]
    fn an_upgrade_must_be_listed() {
        let check = |files: &[&str], line: &str| {
            let rules = files.iter().map(|rules| toml::from_str(rules).unwrap()).collect();
            Policy { rules }.check_builtin(line).is_ok()
        };
        let (listed, other) = ("allow_internal = [\"upgrade\"]", "allow_internal = [\"ping\"]");
        for line in ["upgrade", " upgrade 0.2.0\n"] {
            assert!(!check(&[], line) && !check(&[""], line) && !check(&[other], line));
            assert!(check(&[listed], line) && check(&["", listed], line));
            assert!(!check(&[listed, other], line));
        }
        assert!(!check(&[listed], "ping") && !check(&[listed], "upgraded"));
    }

    #[test]
    fn only_a_file_of_root_is_valid() {
        assert!(check_owner(0, 0o100_644).is_ok() && check_owner(0, 0o100_600).is_ok());
        assert!(check_owner(0, 0o100_664).is_err() && check_owner(0, 0o100_646).is_err());
        assert!(check_owner(1_000, 0o100_600).is_err());
    }

    #[test]
    fn the_disable_file_of_the_host_always_applies() {
        let named = PolicyFile::new(Some("/opt/policy.toml".into()), true);
        assert_eq!(
            named.disable_files(),
            ["/etc/farhand/disabled", "/opt/disabled"].map(PathBuf::from)
        );
    }

    #[test]
    fn a_named_policy_relaxes_no_rule_of_the_host() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["host.toml", "named.toml"].map(|name| folder.path().join(name));
        for (path, rules) in paths.iter().zip(["max_timeout = 10", "allow_internal = []"]) {
            fs::write(path, rules).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        }
        let [default, named] = paths;
        let both = PolicyFile { default, named: Some(named), uses_https: true };
        if !geteuid().is_root() {
            assert!(both.read().unwrap_err().contains("its owner is not root"));
            return;
        }
        let both = both.read().unwrap();
        assert!(both.check(&order("root"), uid("root")).unwrap_err().contains("(max_timeout)"));
        assert!(both.check_builtin("ping").unwrap_err().contains("(allow_internal)"));
    }

    #[test]
    fn each_read_sees_the_current_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        let default = PolicyFile { default: path.clone(), named: None, uses_https: false };
        let file = PolicyFile::new(Some(path.clone()), false);
        assert!(default.read().is_ok());
        assert!(file.read().unwrap_err().contains("does not exist"));
        fs::write(&path, "deny_accounts = [\"root\"]").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        if !geteuid().is_root() {
            // A policy file that root does not own is invalid.
            assert!(file.read().unwrap_err().contains("its owner is not root"));
            return;
        }
        assert!(file.read().unwrap().check(&order("root"), uid("root")).is_err());
        fs::write(&path, "").unwrap();
        assert!(file.read().unwrap().check(&order("root"), uid("root")).is_ok());
        for (content, why) in [
            ("allow_account = []", "unknown field"),
            ("require_https = true", "require_https"),
            ("x", "refuses every"),
        ] {
            fs::write(&path, content).unwrap();
            let refusal = file.read().unwrap_err();
            assert!(refusal.contains(why) && refusal.lines().count() == 1, "{refusal}");
            assert!(default.read().is_err());
        }
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(file.read().unwrap_err().contains("other than root can write"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(uid("nobody").as_raw()), None).unwrap();
        assert!(file.read().unwrap_err().contains("its owner is not root"));
        chown(&path, Some(0), None).unwrap();
        assert!(file.read().is_ok());
        fs::write(folder.path().join("disabled"), "").unwrap();
        assert!(file.read().unwrap_err().contains("accepts no commands"));
    }
}
