//! The host's policy: limits what the service may run on this host (agent-protocol 7.3).
//!
//! The policy file is read before each command, so a change applies to the next command. If root
//! does not own the file, other accounts can change it or one of its folders, it names an account
//! that does not exist, or it is invalid, every command is refused. So a broken policy never allows
//! more. This also applies if the agent is not root, so only root can relax the rules.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use farhand_domain::access::acl;
use farhand_domain::agent::wire::{AgentCommand, HostPolicy, PolicyMode};
use farhand_domain::hash::sha256;
use nix::unistd::{Uid, User};
use serde::Deserialize;

use crate::host::trusted_file::{self, FileError, is_absent};
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
    /// Whether every command is refused while there is no policy.
    is_required: bool,
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
    #[serde(default)]
    no_new_privs: bool,
}

/// The rules of this host, as read at one moment.
#[derive(Default, Debug)]
pub struct Policy {
    /// The rules of each file. A command must satisfy all of them.
    rules: Vec<Rules>,
    /// The texts of all files.
    text: String,
}

impl PolicyFile {
    /// Combines the policy at [`POLICY`] with the policy at `named`, which cannot relax it. So
    /// access to the agent's configuration is not enough to relax the host's rules.
    pub fn new(named: Option<PathBuf>, uses_https: bool) -> Self {
        Self { default: POLICY.into(), named, uses_https, is_required: false }
    }

    /// Sets whether every command is refused while there is no policy.
    pub fn required(self, is_required: bool) -> Self {
        Self { is_required, ..self }
    }

    /// A policy without a file.
    #[cfg(test)]
    pub fn absent() -> Self {
        Self { default: "/no/such/policy.toml".into(), ..Self::new(None, true) }
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
        let policy = self.read_files()?;
        if policy.rules.is_empty() && self.is_required {
            return Err(format!(
                "This host accepts no commands: require_policy is set, and there is no {}.",
                self.default.display()
            ));
        }
        Ok(policy)
    }

    /// Reads the policy files that exist.
    ///
    /// # Errors
    /// The reason why no command may run, in a sentence.
    fn read_files(&self) -> Result<Policy, String> {
        let mut policy = Policy::default();
        let named = self.named.iter().map(|path| (path, true));
        for (path, must_exist) in [(&self.default, false)].into_iter().chain(named) {
            let refuse = |why: String| {
                format!("The host's policy {} refuses every command: {why}.", path.display())
            };
            let (rules, text) = match load(path, Trust::Required) {
                Ok(file) => file,
                Err(FileError::Absent) if !must_exist => continue,
                Err(FileError::Absent) => return Err(refuse("the file does not exist".to_owned())),
                Err(FileError::Refused(why)) => return Err(refuse(why)),
            };
            if rules.require_https && !self.uses_https {
                return Err(refuse("require_https, and the agent's url is not https".to_owned()));
            }
            policy.rules.push(rules);
            policy.text.push_str(&text);
        }
        Ok(policy)
    }

    /// What the agent reports about the policy. A policy that refuses every command has no hash.
    /// Blocks.
    pub fn summary(&self) -> HostPolicy {
        match self.read_files() {
            Ok(policy) => {
                let has_file = !policy.rules.is_empty();
                HostPolicy { mode: policy.mode(), sha256: has_file.then(|| sha256(&policy.text)) }
            }
            Err(_) => HostPolicy { mode: PolicyMode::Custom, sha256: None },
        }
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

/// Whether it matters who can change a policy file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// Only root may be able to change the file.
    Required,
    /// The file is a draft, which any account may own.
    Draft,
}

/// Reads a policy file: its rules and its text.
fn load(path: &Path, trust: Trust) -> Result<(Rules, String), FileError> {
    let mut file = match trust {
        Trust::Required => trusted_file::open(path)?,
        Trust::Draft => trusted_file::open_plain(path)?,
    };
    let mut text = String::new();
    file.by_ref().take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(FileError::Refused(format!("it is larger than {MAX_FILE_BYTES} bytes")));
    }
    let describe = |error: toml::de::Error| error.message().lines().collect::<Vec<_>>().join(", ");
    let rules: Rules =
        toml::from_str(&text).map_err(|error| FileError::Refused(describe(error)))?;
    rules.check_names().map_err(FileError::Refused)?;
    Ok((rules, text))
}

impl Policy {
    /// Reads one policy file, to check commands without an agent.
    ///
    /// # Errors
    /// The reason why an agent would refuse every command, in a sentence.
    pub fn read_one(path: &Path, trust: Trust) -> Result<Self, String> {
        match load(path, trust) {
            Ok((rules, text)) => Ok(Self { rules: vec![rules], text }),
            Err(FileError::Absent) => Err(format!("{}: the file does not exist", path.display())),
            Err(FileError::Refused(why)) => Err(format!("{}: {why}", path.display())),
        }
    }

    /// The kind of the policy. If rules of several kinds apply, it is the strictest.
    pub fn mode(&self) -> PolicyMode {
        if self.rules.is_empty() {
            PolicyMode::None
        } else if self.rules.iter().any(|rules| rules.allow_argv.is_some()) {
            PolicyMode::Argv
        } else if self.rules.iter().any(Rules::denies_root) {
            PolicyMode::Accounts
        } else if self.rules.iter().any(Rules::limits_commands) {
            PolicyMode::Custom
        } else {
            PolicyMode::Open
        }
    }

    /// Whether the programs of commands get no more permissions than their account has, for example
    /// with sudo.
    pub fn forbids_new_privileges(&self) -> bool {
        self.rules.iter().any(|rules| rules.no_new_privs)
    }

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
    /// Checks that each account in the rules exists. A misspelt name would match no account, so a
    /// rule that denies it would deny nothing.
    fn check_names(&self) -> Result<(), String> {
        let allowed = self.allow_accounts.iter().flatten().map(|name| ("allow_accounts", name));
        let denied = self.deny_accounts.iter().map(|name| ("deny_accounts", name));
        for (rule, name) in allowed.chain(denied) {
            if find_uid(name)?.is_none() {
                return Err(format!("{rule} names {name:?}, and this host has no such account"));
            }
        }
        Ok(())
    }

    /// Whether no command may run as root.
    fn denies_root(&self) -> bool {
        let root = Uid::from_raw(0);
        let is_in = |accounts: &[String]| includes_account(accounts, root) == Ok(true);
        is_in(&self.deny_accounts) || self.allow_accounts.as_deref().is_some_and(|all| !is_in(all))
    }

    /// Whether a rule limits commands. `allow_internal` limits built-ins only, and `require_https`
    /// the connection.
    fn limits_commands(&self) -> bool {
        let Self { allow_accounts, deny_accounts, allow_argv, max_timeout, no_new_privs, .. } =
            self;
        allow_accounts.is_some()
            || !deny_accounts.is_empty()
            || allow_argv.is_some()
            || max_timeout.is_some()
            || *no_new_privs
    }

    fn check(&self, order: &AgentCommand, uid: Uid) -> Result<(), String> {
        let Self { allow_accounts, deny_accounts, allow_argv, max_timeout, .. } = self;
        let refused =
            |rule: &str, why: String| Err(format!("The host's policy refuses it ({rule}): {why}."));
        let includes = |rule: &str, accounts: &[String]| {
            includes_account(accounts, uid)
                .map_err(|why| format!("The host's policy refuses it ({rule}): {why}."))
        };
        if includes("deny_accounts", deny_accounts)? {
            return refused("deny_accounts", format!("no command may run as {}", order.user));
        }
        if let Some(allowed) = allow_accounts
            && !includes("allow_accounts", allowed)?
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
        if find_uid(account)? == Some(uid) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The number of an account, which is given as a name or as its number. Returns `None` if the host
/// has no account with this name.
fn find_uid(account: &str) -> Result<Option<Uid>, String> {
    if let Ok(number) = account.parse::<u32>() {
        return Ok(Some(Uid::from_raw(number)));
    }
    let found = User::from_name(account)
        .map_err(|error| format!("the server's accounts could not be read: {}", error.desc()))?;
    Ok(found.map(|user| user.uid))
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

    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use nix::unistd::geteuid;

    use super::*;

    fn policy(rules: &str) -> Policy {
        Policy { rules: vec![toml::from_str(rules).unwrap()], ..Policy::default() }
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
            Policy { rules, ..Policy::default() }.check_builtin(line).is_ok()
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
        let both = PolicyFile { default, ..PolicyFile::new(Some(named), true) };
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
        let default = PolicyFile { default: path.clone(), ..PolicyFile::new(None, false) };
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
            ("deny_accounts = [\"rooot\"]", "deny_accounts names \"rooot\", and this host has no"),
            (
                "allow_accounts = [\"root\", \"\"]",
                "allow_accounts names \"\", and this host has no",
            ),
            ("require_https = true", "require_https"),
            ("x", "refuses every"),
        ] {
            fs::write(&path, content).unwrap();
            let refusal = file.read().unwrap_err();
            assert!(refusal.contains(why) && refusal.lines().count() == 1, "{refusal}");
            assert!(default.read().is_err());
        }
        // Account numbers need no account.
        fs::write(&path, "deny_accounts = [\"4000000000\"]").unwrap();
        assert!(file.read().is_ok());
        fs::write(&path, "").unwrap();
        let link = folder.path().join("link.toml");
        symlink(&path, &link).unwrap();
        let linked = PolicyFile::new(Some(link), false).read().unwrap_err();
        assert!(linked.contains("it is a link"), "{linked}");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o770)).unwrap();
        for policy in [&default, &file] {
            assert!(policy.read().unwrap_err().contains("can change the folder"));
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
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

    #[test]
    fn a_required_policy_must_exist() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        let default = PolicyFile { default: path.clone(), ..PolicyFile::new(None, true) };
        assert!(default.read().is_ok());
        let required = default.required(true);
        let refusal = required.read().unwrap_err();
        assert!(
            refusal.contains("accepts no commands: require_policy is set, and there is no")
                && refusal.contains(path.to_str().unwrap()),
            "{refusal}"
        );
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        match geteuid().is_root() {
            true => assert!(required.read().is_ok()),
            false => assert!(required.read().unwrap_err().contains("its owner is not root")),
        }
    }

    #[test]
    fn each_file_has_a_mode() {
        let mode_of = |files: &[&str]| {
            let rules = files.iter().map(|rules| toml::from_str(rules).unwrap()).collect();
            Policy { rules, ..Policy::default() }.mode()
        };
        for (files, expected) in [
            (&[][..], PolicyMode::None),
            (&[""], PolicyMode::Open),
            (&["allow_internal = [\"upgrade\"]\nrequire_https = true"], PolicyMode::Open),
            (&["deny_accounts = [\"root\"]"], PolicyMode::Accounts),
            (&["deny_accounts = [\"0\"]\nmax_timeout = 60"], PolicyMode::Accounts),
            (&["allow_accounts = [\"nobody\"]"], PolicyMode::Accounts),
            (&["allow_accounts = [\"root\", \"nobody\"]"], PolicyMode::Custom),
            (&["deny_accounts = [\"nobody\"]"], PolicyMode::Custom),
            (&["max_timeout = 60"], PolicyMode::Custom),
            (&["no_new_privs = true"], PolicyMode::Custom),
            (&["allow_argv = []\ndeny_accounts = [\"root\"]"], PolicyMode::Argv),
            (&["", "deny_accounts = [\"root\"]"], PolicyMode::Accounts),
            (&["allow_argv = [[\"uptime\"]]", "max_timeout = 60"], PolicyMode::Argv),
        ] {
            assert_eq!(mode_of(files), expected, "{files:?}");
        }
    }

    #[test]
    fn the_report_has_the_hash_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        let file = PolicyFile { default: path.clone(), ..PolicyFile::new(None, true) };
        assert_eq!(file.summary(), HostPolicy { mode: PolicyMode::None, sha256: None });
        fs::write(&path, "deny_accounts = [\"root\"]\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let broken = HostPolicy { mode: PolicyMode::Custom, sha256: None };
        if !geteuid().is_root() {
            assert_eq!(file.summary(), broken);
            return;
        }
        // What `sha256sum` prints.
        let hash = sha256("deny_accounts = [\"root\"]\n");
        let expected = HostPolicy { mode: PolicyMode::Accounts, sha256: Some(hash) };
        assert_eq!(file.summary(), expected);
        fs::write(&path, "deny_accounts = [\"rooot\"]").unwrap();
        assert_eq!(file.summary(), broken);
    }
}
