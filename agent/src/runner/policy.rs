//! The host's policy: what this host lets the service do here, whatever the service asks for
//! (agent-protocol 7.3).
//!
//! The file is read again before each command, so a change counts for the next one. A file that is
//! not root's own, or that cannot be read, refuses every command: a broken lock stays locked. An
//! agent that is not root is bound by the same rules, and only root can lift them, because a file
//! of any other owner refuses everything.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farhand_domain::acl;
use farhand_domain::wire::Order;
use nix::unistd::{Uid, User};
use serde::Deserialize;

/// The policy of a host.
pub const POLICY: &str = "/etc/farhand/policy.toml";
/// The name of the file, beside the policy, that stops everything new.
const DISABLED: &str = "disabled";
/// The most of a policy that is read, in bytes.
const MAX_FILE: u64 = 256 * 1024;

/// Where the policy is, and what it applies to besides orders.
#[derive(Clone, Debug)]
pub struct PolicyFile {
    /// The host's own, which may be absent.
    default: PathBuf,
    /// The one that the configuration names: it must exist, and counts beside the host's own.
    named: Option<PathBuf>,
    /// Whether the agent speaks https with the service.
    uses_https: bool,
}

/// The file, as it is written.
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

/// What a host lets the service do, at one moment.
#[derive(Debug)]
pub struct Policy {
    /// Of each file; a command must satisfy all.
    rules: Vec<Rules>,
}

impl PolicyFile {
    /// The policy at [`POLICY`], and also the one at `named`: who can write the agent's
    /// configuration cannot lift the host's own rules. `uses_https`: whether the agent speaks https
    /// with the service.
    pub fn new(named: Option<PathBuf>, uses_https: bool) -> Self {
        Self { default: POLICY.into(), named, uses_https }
    }

    /// No policy: its file is nowhere.
    #[cfg(test)]
    pub fn absent() -> Self {
        Self { default: "/no/such/policy.toml".into(), named: None, uses_https: true }
    }

    /// Reads the policy as it is now.
    ///
    /// # Errors
    /// Why no command runs at all, in a sentence.
    pub fn read(&self) -> Result<Policy, String> {
        for disabled in self.switches() {
            match fs::symlink_metadata(&disabled) {
                Ok(_) => {
                    return Err(format!(
                        "This host takes no commands: {} exists.",
                        disabled.display()
                    ));
                }
                Err(error) if is_absent(&error) => {}
                Err(error) => {
                    return Err(format!(
                        "This host takes no commands: {}: {error}.",
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
                Err(Unread::Absent) if !must_exist => continue,
                Err(Unread::Absent) => return Err(refuse("the file does not exist".to_owned())),
                Err(Unread::Bad(why)) => return Err(refuse(why)),
            };
            if rules.require_https && !self.uses_https {
                return Err(refuse("require_https, and the agent's url is not https".to_owned()));
            }
            all.push(rules);
        }
        Ok(Policy { rules: all })
    }

    /// The files whose presence stops all commands: beside the host's own policy, and beside the
    /// one that is named.
    fn switches(&self) -> Vec<PathBuf> {
        [&self.default]
            .into_iter()
            .chain(&self.named)
            .map(|path| path.with_file_name(DISABLED))
            .collect()
    }
}

fn load(path: &Path) -> Result<Rules, Unread> {
    let unread = |error: io::Error| {
        if is_absent(&error) { Unread::Absent } else { Unread::Bad(error.to_string()) }
    };
    let mut file = File::open(path).map_err(unread)?;
    // Of the open file, so that nothing else can be put in its place in between.
    let metadata = file.metadata().map_err(unread)?;
    if !metadata.is_file() {
        return Err(Unread::Bad("it is not a file".to_owned()));
    }
    check_owner(metadata.uid(), metadata.mode()).map_err(|why| Unread::Bad(why.to_owned()))?;
    let mut text = String::new();
    file.by_ref().take(MAX_FILE + 1).read_to_string(&mut text).map_err(unread)?;
    if text.len() as u64 > MAX_FILE {
        return Err(Unread::Bad(format!("it is larger than {MAX_FILE} bytes")));
    }
    let describe = |error: toml::de::Error| error.message().lines().collect::<Vec<_>>().join(", ");
    toml::from_str(&text).map_err(|error| Unread::Bad(describe(error)))
}

/// Why there are no rules.
enum Unread {
    /// There is no file.
    Absent,
    /// There is one that does not count; why.
    Bad(String),
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Checks that only root can have written a file.
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
    pub fn check(&self, order: &Order, uid: Uid) -> Result<(), String> {
        self.rules.iter().try_for_each(|rules| rules.check(order, uid))
    }

    /// Checks a built-in.
    ///
    /// # Errors
    /// The rule that refuses it, in a sentence.
    pub fn check_internal(&self, line: &str) -> Result<(), String> {
        self.rules.iter().try_for_each(|rules| rules.check_internal(line))
    }
}

impl Rules {
    fn check(&self, order: &Order, uid: Uid) -> Result<(), String> {
        let Self { allow_accounts, deny_accounts, allow_argv, max_timeout, .. } = self;
        let refused =
            |rule: &str, why: String| Err(format!("The host's policy refuses it ({rule}): {why}."));
        if names(deny_accounts, uid)? {
            return refused("deny_accounts", format!("no command may run as {}", order.user));
        }
        if let Some(allowed) = allow_accounts
            && !names(allowed, uid)?
        {
            return refused("allow_accounts", format!("commands may not run as {}", order.user));
        }
        if let Some(patterns) = allow_argv {
            let words = order.argv.as_deref().filter(|_| order.script.is_none());
            let Some(words) = words else {
                return refused("allow_argv", "only commands given as argv may run".to_owned());
            };
            // Each of them can make an allowed program run another one: PATH, BASH_ENV, a
            // configuration on standard input.
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
        if let Some(most) = max_timeout
            && order.timeout.is_none_or(|timeout| timeout > *most)
        {
            return refused("max_timeout", format!("commands may run for {most} s at most"));
        }
        Ok(())
    }

    fn check_internal(&self, line: &str) -> Result<(), String> {
        match &self.allow_internal {
            Some(allowed) if !allowed.iter().any(|name| name == line.trim()) => Err(
                "The host's policy refuses it (allow_internal): this built-in is not allowed here."
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }
}

/// Whether a list of accounts, each a name or a number, has the account with the number `uid`. Two
/// names of one number are one account.
fn names(accounts: &[String], uid: Uid) -> Result<bool, String> {
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

/// Whether a pattern allows a command's words, as an `argv` pattern of a token does. One without a
/// fixed word would allow any program, so it allows none.
fn allows_words(pattern: &[String], words: &[String]) -> bool {
    let has_fixed =
        pattern.first().is_some_and(|first| pattern.len() > 1 || first != acl::ANY_FURTHER);
    has_fixed && acl::fits_words(pattern, words)
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

    fn order(user: &str) -> Order {
        Order { user: user.to_owned(), timeout: Some(60), ..Order::default() }
    }

    fn uid(name: &str) -> Uid {
        User::from_name(name).unwrap().unwrap().uid
    }

    #[track_caller]
    fn refuses(rules: &str, order: &Order, rule: Option<&str>) {
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
        let argv = |words: &[&str]| Order {
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
        refuses(rules, &Order { line: "uptime".to_owned(), ..order("root") }, Some("(allow_argv)"));
        // What could make an allowed program run another one.
        let env = [("BASH_ENV".to_owned(), "$(id)".into())].into_iter().collect();
        refuses(rules, &Order { env: Some(env), ..argv(&["uptime"]) }, Some("(allow_argv)"));
        refuses(
            rules,
            &Order { stdin: Some(String::new()), ..argv(&["uptime"]) },
            Some("(allow_argv)"),
        );
        refuses(
            rules,
            &Order { cwd: Some("/tmp".to_owned()), ..argv(&["uptime"]) },
            Some("(allow_argv)"),
        );
        refuses(rules, &Order { env: Some(Default::default()), ..argv(&["uptime"]) }, None);
        let script = Order { script: Some(Default::default()), ..argv(&["uptime"]) };
        refuses(rules, &script, Some("(allow_argv)"));
    }

    #[test]
    fn stars_stand_for_characters_of_one_word() {
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
            &Order { timeout: None, ..order("root") },
            Some("(max_timeout)"),
        );
    }

    #[test]
    fn built_ins_are_listed() {
        assert!(policy("").check_internal("ping").is_ok());
        let some = policy("allow_internal = [\"ping\"]");
        assert!(some.check_internal(" ping\n").is_ok());
        assert!(some.check_internal("restart").unwrap_err().contains("(allow_internal)"));
    }

    #[test]
    fn only_roots_own_file_counts() {
        assert!(check_owner(0, 0o100_644).is_ok() && check_owner(0, 0o100_600).is_ok());
        assert!(check_owner(0, 0o100_664).is_err() && check_owner(0, 0o100_646).is_err());
        assert!(check_owner(1_000, 0o100_600).is_err());
    }

    #[test]
    fn the_hosts_switch_counts_with_any_policy() {
        let named = PolicyFile::new(Some("/opt/policy.toml".into()), true);
        assert_eq!(named.switches(), ["/etc/farhand/disabled", "/opt/disabled"].map(PathBuf::from));
    }

    #[test]
    fn a_named_policy_lifts_no_rule_of_the_host() {
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
        assert!(both.check_internal("ping").unwrap_err().contains("(allow_internal)"));
    }

    #[test]
    fn the_file_is_read_again_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        let default = PolicyFile { default: path.clone(), named: None, uses_https: false };
        let file = PolicyFile::new(Some(path.clone()), false);
        assert!(default.read().is_ok());
        assert!(file.read().unwrap_err().contains("does not exist"));
        fs::write(&path, "deny_accounts = [\"root\"]").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        if !geteuid().is_root() {
            // What an ordinary account wrote is no policy.
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
        assert!(file.read().unwrap_err().contains("takes no commands"));
    }
}
