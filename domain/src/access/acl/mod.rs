//! Access control lists: the limits that an owner sets for an API token (contract 4.12).

mod limit;
pub mod pattern;

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

pub use limit::AclLimit;
pub use pattern::{ANY_FURTHER_WORDS, explain_line, explain_words, matches_words};
use pattern::{fits_line, star_problem, stars};

use crate::command::request::{Command, MAX_ARGV_WORDS, MAX_LINE, MAX_TARGETS, Shell};
use crate::command::script::{AllowedScript, NotAScript, ScriptRef};
use crate::fleet::labels::Labels;
use crate::fleet::selector::Selector;
use crate::hash::sha256;
use crate::http::address::canonical;
use crate::http::fields::{BLANK, as_integer};
use crate::id;

/// Maximum number of entries in each list.
const MAX_ENTRIES: usize = 100;
/// Maximum length of an entry of `usernames`, in characters.
const MAX_USERNAME: usize = 64;
/// Maximum length of an access control list as JSON, in bytes. The list is read with each request
/// of its token.
const MAX_BYTES: usize = 32_768;
/// Maximum length of the JSON of an access control list that an audit event has in full, in bytes.
pub const MAX_IN_EVENT: usize = 4_096;
/// Maximum number of `*` in a pattern or a word. This limit and the next two limits bound the cost
/// of comparing a command with a list (`docs/contributing/performance.md`, What lists cost).
const MAX_STARS: usize = 8;
/// Maximum number of `*` in all patterns and words together. A word `*` or `**` does not count.
const MAX_STARS_TOTAL: usize = 256;
/// Maximum number of words in all entries of `argv` together.
const MAX_WORDS_TOTAL: usize = 1_000;
/// Maximum number of unknown keys that a response lists.
const MAX_UNKNOWN: usize = 10;
/// The keys of an access control list.
const KEYS: [&str; 10] = [
    "commands",
    "argv",
    "scripts",
    "servers",
    "selector",
    "usernames",
    "networks",
    "max_targets",
    "read_only",
    "read_all",
];

/// The limits of an API token. An absent list limits nothing. An empty list allows nothing.
///
/// The API shows the same JSON that D1 stores. Unknown keys are refused in the stored form too: a
/// limit that this version does not support must not be ignored.
///
/// ```
/// use farhand_domain::access::acl::Acl;
/// let acl = Acl::read(&serde_json::json!({"commands": ["ls *"]})).unwrap();
/// assert!(acl.allows_line("ls") && acl.allows_line("ls /tmp"));
/// assert!(!acl.allows_line("ls -l") && !acl.allows_line("ls; id"));
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Acl {
    /// Patterns of the allowed lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commands: Option<Vec<String>>,
    /// Patterns of the allowed `argv`, word by word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<Vec<String>>>,
    /// The allowed scripts: all versions of a script, or one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scripts: Option<Vec<AllowedScript>>,
    /// The ids of the servers that the token can access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers: Option<Vec<Uuid>>,
    /// The servers that the token can access, by their labels. If `servers` is set too, a server
    /// must match both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// The allowed remote accounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usernames: Option<Vec<String>>,
    /// The networks from which requests are accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<IpNet>>,
    /// Maximum number of targets of a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_targets: Option<u32>,
    /// Whether the token may only read. `None` means `false`, and is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Whether the token reads all commands that its user can read, instead of only those that the
    /// list allows. `None` means `false`, and is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_all: Option<bool>,
}

/// Reads a text of 1 to `max` characters.
fn text(text: &str, max: usize) -> Result<String, Cow<'static, str>> {
    if text.is_empty() {
        Err(BLANK.into())
    } else if text.contains('\0') {
        Err("Null characters are not allowed.".into())
    } else if text.chars().count() > max {
        Err(format!("Ensure this has no more than {max} characters.").into())
    } else {
        Ok(text.to_owned())
    }
}

/// Reads the name of an account.
fn username(name: &str) -> Result<String, Cow<'static, str>> {
    if name.trim().is_empty() { Err(BLANK.into()) } else { text(name, MAX_USERNAME) }
}

/// Reads a network with its prefix length. The standard library reads the address, because it
/// refuses leading zeros. Other parsers read such numbers as octal.
pub(crate) fn network(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let digits = length.bytes().all(|b| b.is_ascii_digit());
    IpNet::new(address.parse().ok()?, digits.then(|| length.parse().ok())??).ok()
}

/// Reads a list of at most [`MAX_ENTRIES`] texts. It may be missing or null. `entry` reads a text.
fn list<T>(
    object: &Map<String, Value>,
    key: &str,
    problems: &mut Vec<Cow<'static, str>>,
    entry: impl Fn(&str) -> Result<T, Cow<'static, str>>,
) -> Option<Vec<T>> {
    list_of(object, key, problems, |value| {
        value.as_str().map_or_else(|| Err("Not a valid string.".into()), &entry)
    })
}

/// Like [`list`], for entries that are not texts.
fn list_of<T>(
    object: &Map<String, Value>,
    key: &str,
    problems: &mut Vec<Cow<'static, str>>,
    entry: impl Fn(&Value) -> Result<T, Cow<'static, str>>,
) -> Option<Vec<T>> {
    let entries = match object.get(key)? {
        Value::Null => return None,
        Value::Array(entries) if entries.len() <= MAX_ENTRIES => entries,
        Value::Array(_) => {
            problems.push(
                format!("{key}: Ensure this list has no more than {MAX_ENTRIES} entries.").into(),
            );
            return None;
        }
        _ => {
            problems.push(format!("{key}: Not a valid list.").into());
            return None;
        }
    };
    let mut list = Vec::with_capacity(entries.len());
    for (index, value) in entries.iter().enumerate() {
        match entry(value) {
            Ok(entry) => list.push(entry),
            Err(message) => problems.push(format!("{key}[{index}]: {message}").into()),
        }
    }
    Some(list)
}

/// Reads `max_targets`, which may be missing or null.
fn read_max_targets(
    object: &Map<String, Value>,
    problems: &mut Vec<Cow<'static, str>>,
) -> Option<u32> {
    let value = object.get("max_targets").filter(|value| !value.is_null())?;
    let number = as_integer(value).and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| (1..=MAX_TARGETS as u32).contains(number));
    if number.is_none() {
        problems.push(format!("max_targets: Enter a whole number from 1 to {MAX_TARGETS}.").into());
    }
    number
}

/// Reads an entry of `argv`: a list of words.
fn word_list(value: &Value) -> Result<Vec<String>, Cow<'static, str>> {
    let Value::Array(words) = value else { return Err("Not a valid list of words.".into()) };
    if words.is_empty() {
        return Err("Name at least one word.".into());
    }
    if words.len() > MAX_ARGV_WORDS {
        return Err(format!("Ensure this has no more than {MAX_ARGV_WORDS} words.").into());
    }
    let word = |(index, word): (usize, &Value)| match word.as_str() {
        None => Err(format!("Word {index} is not a valid string.").into()),
        Some(word) if word.contains('\0') => {
            Err(format!("Word {index} has a null character.").into())
        }
        Some(word) if word.chars().count() > MAX_LINE => {
            Err(format!("Word {index} has more than {MAX_LINE} characters.").into())
        }
        Some(word) if stars(word) > MAX_STARS => {
            Err(format!("Word {index} has more than {MAX_STARS} *.").into())
        }
        Some(word) => Ok(word.to_owned()),
    };
    words.iter().enumerate().map(word).collect()
}

/// Reads an entry of `commands`: a pattern of lines.
fn line_pattern(pattern: &str) -> Result<String, Cow<'static, str>> {
    let pattern = text(pattern, MAX_LINE)?;
    if stars(&pattern) > MAX_STARS {
        return Err(format!("Ensure this has no more than {MAX_STARS} *.").into());
    }
    star_problem(&pattern).map_or(Ok(pattern), |problem| Err(problem.into()))
}

impl Acl {
    /// Reads the field `acl` of a request.
    ///
    /// # Errors
    /// All errors. Each message begins with its key. An unknown key is an error, because a
    /// misspelled limit must not be ignored.
    pub fn read(value: &Value) -> Result<Self, Vec<Cow<'static, str>>> {
        let Value::Object(object) = value else { return Err(vec!["Not a valid object.".into()]) };
        let unknown = object.keys().filter(|key| !KEYS.contains(&key.as_str())).take(MAX_UNKNOWN);
        let mut problems: Vec<_> = unknown
            .map(|key| format!("{key:.64}: Unknown field. Use {}.", KEYS.join(", ")).into())
            .collect();
        let commands = list(object, "commands", &mut problems, line_pattern);
        let argv = list_of(object, "argv", &mut problems, word_list);
        let scripts = list(object, "scripts", &mut problems, |text| {
            text.parse().map_err(|error: NotAScript| error.to_string().into())
        });
        let servers = list(object, "servers", &mut problems, |text| {
            id::parse(text).ok_or("Not a valid UUID.".into())
        });
        let selector = Selector::read(object.get("selector")).unwrap_or_else(|problem| {
            problems.push(format!("selector: {problem}").into());
            None
        });
        let usernames = list(object, "usernames", &mut problems, username);
        let networks = list(object, "networks", &mut problems, |text| {
            network(text).ok_or(
                "Not a valid network: give an address and a prefix length, such as 10.0.0.0/8."
                    .into(),
            )
        });
        let max_targets = read_max_targets(object, &mut problems);
        let mut flag = |key: &str| {
            let value = object.get(key)?;
            if !value.is_boolean() {
                problems.push(format!("{key}: Must be true or false.").into());
            }
            value.as_bool()
        };
        let (read_only, read_all) = (flag("read_only"), flag("read_all"));
        let acl = Self {
            commands,
            argv,
            scripts,
            servers,
            selector,
            usernames,
            networks,
            max_targets,
            read_only,
            read_all,
        };
        problems.extend(acl.problems_of_totals());
        if problems.is_empty() { Ok(acl) } else { Err(problems) }
    }

    /// The errors for all entries together.
    fn problems_of_totals(&self) -> Vec<Cow<'static, str>> {
        let words = || self.argv.iter().flatten().flatten();
        let starred = self
            .commands
            .iter()
            .flatten()
            .chain(words().filter(|word| !matches!(word.as_str(), "*" | "**")));
        let Ok(json) = self.json() else { return vec!["Not a valid object.".into()] };
        let (bytes, words, stars) =
            (json.len(), words().count(), starred.map(|text| stars(text)).sum::<usize>());
        [
            (words, MAX_WORDS_TOTAL, "argv: All lists together have", "words"),
            (stars, MAX_STARS_TOTAL, "All patterns and words together have", "*"),
            (bytes, MAX_BYTES, "The JSON of this list has", "bytes"),
        ]
        .into_iter()
        .filter(|(number, max, ..)| number > max)
        .map(|(number, max, what, unit)| {
            format!("{what} {number} {unit}; {max} are allowed.").into()
        })
        .collect()
    }

    /// The JSON that D1 stores and the API shows.
    ///
    /// # Errors
    /// None in practice: every field can be written as JSON.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// The details of an audit event about an access control list: `acl`. If its JSON is longer
    /// than [`MAX_IN_EVENT`], they are its hash and its length instead.
    ///
    /// # Errors
    /// None in practice: every field can be written as JSON.
    pub fn in_event(acl: Option<&Self>) -> serde_json::Result<Map<String, Value>> {
        let text = acl.map(Self::json).transpose()?.unwrap_or_default();
        let fields = if text.len() > MAX_IN_EVENT {
            vec![("acl_sha256", json!(sha256(&text))), ("acl_bytes", json!(text.len()))]
        } else {
            vec![("acl", json!(acl))]
        };
        Ok(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// Whether `commands` allows a line. In a pattern, each character matches itself. No star
    /// matches control characters, shell operators, quotes, `#` and `~`. A `*` between blanks
    /// matches words that are no options, `**` between blanks any words, and any other star a part
    /// of one word. A trailing ` *` or ` **` also matches a line without arguments.
    pub fn allows_line(&self, line: &str) -> bool {
        let allows = |patterns: &Vec<String>| patterns.iter().any(|one| fits_line(one, line));
        self.commands.as_ref().is_none_or(allows)
    }

    /// Whether the token can access a server at all.
    pub fn allows_server(&self, server: Uuid) -> bool {
        self.servers.as_ref().is_none_or(|servers| servers.contains(&server))
    }

    /// Whether the server with these labels can be accessed. [`Acl::refusal`] does not check this:
    /// [`crate::access::rights::CommandPermissions::refusal`] does.
    pub fn allows_labels(&self, labels: &Labels) -> bool {
        self.selector.as_ref().is_none_or(|selector| selector.matches(labels))
    }

    /// Whether the list limits the servers that the token can access.
    pub fn limits_servers(&self) -> bool {
        self.servers.is_some() || self.selector.is_some()
    }

    /// Whether `argv` allows the words of a command.
    pub fn allows_words(&self, words: &[String]) -> bool {
        self.argv
            .as_ref()
            .is_none_or(|patterns| patterns.iter().any(|pattern| matches_words(pattern, words)))
    }

    /// Whether `scripts` allows a version of a script.
    pub fn allows_script(&self, script: ScriptRef) -> bool {
        self.scripts.as_ref().is_none_or(|entries| entries.iter().any(|one| one.allows(script)))
    }

    /// Returns the limit that does not allow a command, or `None` if the command is allowed.
    /// `has_inputs`: the command has an environment, standard input or a working directory.
    ///
    /// The service checks this when a command is created, cancelled or killed, and before a waiting
    /// command is delivered.
    ///
    /// Patterns do not cover built-in commands, groups and inputs, which all change what a command
    /// does. So a token with patterns may not use them. Built-in commands run as the agent's own
    /// account, so a token with `usernames` may not use them either, nor groups. A token with only
    /// one of `commands`, `argv` and `scripts` refuses the other two ways to say what runs.
    pub fn refusal(&self, command: &Command, has_inputs: bool) -> Option<AclLimit> {
        let (has_patterns, limits_commands) = (self.has_patterns(), self.limits_commands());
        let (is_fitting, limit) = match (command.script, &command.argv) {
            (Some(script), _) => {
                (self.scripts.is_some() && self.allows_script(script), AclLimit::Scripts)
            }
            (None, Some(words)) => {
                (self.argv.is_some() && self.allows_words(words), AclLimit::Argv)
            }
            (None, None) => {
                (self.commands.is_some() && self.allows_line(&command.line), AclLimit::Commands)
            }
        };
        let is_named =
            self.usernames.as_ref().is_none_or(|names| names.contains(&command.username));
        let limits = [
            (self.read_only == Some(true), AclLimit::ReadOnly),
            (!self.allows_server(command.server), AclLimit::Servers),
            (limits_commands && command.shell == Shell::Builtin, AclLimit::Builtin),
            (!is_named, AclLimit::Usernames),
            (limits_commands && !command.groupname.is_empty(), AclLimit::Group),
            (has_patterns && has_inputs, AclLimit::Inputs),
            (has_patterns && !is_fitting, limit),
        ];
        limits.into_iter().find_map(|(is_broken, limit)| is_broken.then_some(limit))
    }

    /// Whether a command is allowed. See [`Acl::refusal`].
    pub fn allows_command(&self, command: &Command, has_inputs: bool) -> bool {
        self.refusal(command, has_inputs).is_none()
    }

    /// Whether a batch may have this number of targets.
    pub fn allows_targets(&self, number: usize) -> bool {
        self.max_targets.is_none_or(|max| number <= max as usize)
    }

    /// Whether requests from an address are accepted. An IPv4-mapped IPv6 address counts as its
    /// IPv4 address. A text that is not an address is in no network.
    pub fn allows_address(&self, remote_ip: &str) -> bool {
        let Some(networks) = &self.networks else { return true };
        let Ok(address) = remote_ip.parse::<IpAddr>() else { return false };
        networks.iter().any(|network| canonical(*network).contains(&address.to_canonical()))
    }

    /// Whether the token reads only the commands that the list allows, instead of all that its user
    /// can read (contract 4.13).
    pub fn limits_history(&self) -> bool {
        self.limits_commands() && self.read_all != Some(true)
    }

    /// Whether the list limits which scripts may run.
    pub fn limits_scripts(&self) -> bool {
        self.has_patterns()
    }

    fn has_patterns(&self) -> bool {
        self.commands.is_some() || self.argv.is_some() || self.scripts.is_some()
    }

    /// Whether the list limits which commands may be created.
    fn limits_commands(&self) -> bool {
        self.has_patterns() || self.usernames.is_some()
    }

    /// Whether a request may have this HTTP method, in upper case.
    pub fn allows_method(&self, method: &str) -> bool {
        self.read_only != Some(true) || matches!(method, "GET" | "HEAD" | "OPTIONS")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::acl::pattern::is_plain;
    use proptest::prelude::*;

    const SERVER: &str = "01936d3e-7a00-7000-8000-000000000000";

    fn acl(value: Value) -> Acl {
        Acl::read(&value).unwrap_or_else(|problems| panic!("{value}: {problems:?}"))
    }

    fn with(pattern: &str) -> Acl {
        acl(json!({"commands": [pattern]}))
    }

    /// Asserts that the errors are about exactly these keys or entries, in this order.
    #[track_caller]
    fn refused(value: &Value, places: &[&str]) {
        let problems = Acl::read(value).expect_err(&value.to_string());
        let found: Vec<_> = problems.iter().map(|text| text.split(':').next().unwrap()).collect();
        assert_eq!(found, places, "{value}");
    }

    #[test]
    fn the_stored_json_equals_the_sent_json() {
        for sent in [
            json!({}),
            json!({"read_only": false}),
            json!({"commands": [], "servers": [], "usernames": [], "networks": []}),
            json!({
                "commands": ["ls *", " "], "servers": [SERVER], "usernames": ["deploy"],
                "networks": ["10.1.2.3/8", "2001:db8::1/32", "::ffff:10.0.0.0/104", "0.0.0.0/0"], "read_only": true,
                "argv": [["ls", "", "*", "..."], ["..."]], "read_all": false
            }),
        ] {
            let read = acl(sent.clone());
            let stored = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&stored).unwrap(), sent);
            assert_eq!(serde_json::from_str::<Acl>(&stored).unwrap(), read);
        }
        let nulls = json!({"commands": null, "argv": null, "servers": null, "usernames": null, "networks": null});
        assert_eq!(acl(nulls), Acl::default());
        assert!(serde_json::from_str::<Acl>(r#"{"comands":[]}"#).is_err());
    }

    #[test]
    fn malformed_lists_and_unknown_keys_are_refused() {
        for bad in [json!([]), json!("x"), json!(true), json!(1), json!(null)] {
            refused(&bad, &["Not a valid object."]);
        }
        for key in ["commands", "argv", "servers", "usernames", "networks"] {
            for bad in [json!("x"), json!({}), json!(true), json!(0)] {
                refused(&json!({key: bad}), &[key]);
            }
            for bad in [json!(null), json!(1), json!([]), json!("")] {
                refused(&json!({key: [bad]}), &[&format!("{key}[0]")]);
            }
            refused(&json!({key: vec![0; 101]}), &[key]);
        }
        for bad in [json!(null), json!("true"), json!(1)] {
            refused(&json!({"read_only": bad}), &["read_only"]);
        }
        refused(&json!({"command": ["ls"], "Read_only": true}), &["Read_only", "command"]);
        assert!(Acl::read(&json!({"x".repeat(1_000): 1})).unwrap_err()[0].len() < 200);
    }

    #[test]
    fn malformed_entries_are_refused() {
        refused(
            &json!({"commands": ["ls", "a\0b", "é".repeat(16_385)]}),
            &["commands[1]", "commands[2]"],
        );
        acl(json!({"commands": ["é".repeat(16_000), "x".repeat(MAX_LINE - 16_000), " "]}));
        acl(json!({"commands": ["x".repeat(MAX_LINE)]}));
        refused(
            &json!({"usernames": [" ", "a\0", "é".repeat(65)]}),
            &["usernames[0]", "usernames[1]", "usernames[2]"],
        );
        acl(json!({"usernames": ["é".repeat(64)]}));
        acl(json!({"usernames": vec!["a"; 100]}));
        refused(
            &json!({"servers": ["web-1", "01936d3e7a0070008000000000000000"]}),
            &["servers[0]", "servers[1]"],
        );
        for bad in [
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "10.0.0/8",
            "010.0.0.0/8",
            "::1",
            "::/129",
            "::/999",
            "10.0.0.0/255.0.0.0",
            "10.0.0.0/8/8",
            " 10.0.0.0/8",
            "any",
        ] {
            refused(&json!({"networks": [bad]}), &["networks[0]"]);
        }
    }

    #[test]
    fn a_star_in_quotes_or_before_a_hash_is_refused() {
        for bad in [
            r#"grep "*" /var/log/dpkg.log"#,
            "grep '*' x",
            "echo 'a'b\"c*\"",
            r#"echo "\"*""#,
            "echo '*",
            "echo \\*",
            r#"echo "\*""#,
            "echo *#",
            "echo *#x --dry-run",
            "cat '/srv/'*",
            "cat '/srv/.'*",
            "ls \"\"*",
            "ls ''.*",
            r"cat /srv/\.*",
        ] {
            refused(&json!({"commands": ["ls", bad]}), &["commands[1]"]);
        }
        for good in [
            "echo 'a b' *",
            r#"echo "it's" *"#,
            "echo \\' * \\'",
            r"echo '\' *",
            r"echo 'a\' * '",
            "echo # *",
            "a*b*",
            "echo *'x'",
            "echo '#' *",
        ] {
            acl(json!({"commands": [good]}));
        }
    }

    #[test]
    fn all_errors_are_reported_together() {
        let bad = json!({"comands": [], "commands": [""], "servers": 1, "usernames": [1, 2], "networks": ["x"], "read_only": 0});
        refused(
            &bad,
            &[
                "comands",
                "commands[0]",
                "servers",
                "usernames[0]",
                "usernames[1]",
                "networks[0]",
                "read_only",
            ],
        );
    }

    #[test]
    fn the_example_of_the_contract() {
        let acl = with("ls *");
        for line in ["ls", "ls ", "ls /tmp", "ls /tmp a=b x*.rs ../é"] {
            assert!(acl.allows_line(line), "{line}");
        }
        for line in [
            "",
            "l",
            "lsof",
            " ls",
            "ls\t-l",
            "LS",
            "ls -l",
            "ls /tmp -l",
            "ls *.rs",
            "ls; id",
            "ls && id",
            "ls $(id)",
            "ls x\nid",
            "ls x\n",
        ] {
            assert!(!acl.allows_line(line), "{line}");
        }
        for operator in
            ";&|<>`$(){}\\#'\"~\n\r\t\0\u{b}\u{c}\u{1b}\u{7f}\u{85}\u{2028}\u{2029}".chars()
        {
            let line = format!("ls {operator}");
            assert!(!acl.allows_line(&line), "{operator:?}");
            assert!(
                Acl { commands: Some(vec![line.clone()]), ..Acl::default() }.allows_line(&line),
                "{operator:?}"
            );
        }
    }

    #[test]
    fn stars_match_plain_text_only() {
        let check = |pattern: &str, yes: &[&str], no: &[&str]| {
            let acl = with(pattern);
            yes.iter()
                .for_each(|line| assert!(acl.allows_line(line), "{pattern} should allow {line}"));
            no.iter().for_each(|line| {
                assert!(!acl.allows_line(line), "{pattern} should not allow {line}");
            });
        };
        check("id", &["id"], &["id ", " id", "id -u", "Id", ""]);
        check("*", &["", "id", "ls l"], &["ls; id", "a\nb", "ls -l", "-l"]);
        check("**", &["", "id", "ls -l", "-l"], &["$x"]);
        check("ls **", &["ls", "ls ", "ls -l", "ls *", "ls .."], &["ls; id", "lsof"]);
        check("ls ***", &["ls x"], &["ls", "ls -l", "ls x y"]);
        check(" *", &["", " x"], &["x"]);
        check("a.c", &["a.c"], &["abc"]);
        check("a?[b]", &["a?[b]"], &["axb"]);
        check("ps | grep *", &["ps | grep x", "ps | grep"], &["ps | grep x | sh", "ps  grep x"]);
        check(
            "systemctl * nginx",
            &["systemctl status nginx", "systemctl  nginx"],
            &["systemctl nginx", "systemctl;  nginx", "systemctl -H x nginx"],
        );
        check("*aba", &["aba", "ababa", "abaaba"], &["abab"]);
        check("aba*aba", &["abaaba", "abaxaba"], &["ababa", "aba", "aba aba"]);
        check("* *", &["", "a", "a b"], &["a;b"]);
        check("a*", &["a", "ab"], &["b", "a b"]);
        // Each star is as short as possible.
        check("a * b *.c", &["a x b y.c"], &["a x b y b z.c"]);
        check("é*ü", &["éü", "éöü"], &["é;ü", "e\u{301}ü"]);
        let several = acl(json!({"commands": ["id", "ls *"]}));
        assert!(
            several.allows_line("id")
                && several.allows_line("ls l")
                && !several.allows_line("id -u")
        );
        assert!(!acl(json!({"commands": []})).allows_line("id"));
        assert!(acl(json!({})).allows_line("id; reboot"));
    }

    /// A hundred of the longest patterns, on the longest line. Patterns of these kinds make
    /// matchers with backtracking slow.
    #[test]
    fn the_worst_patterns_take_linear_time() {
        let line = "a".repeat(MAX_LINE);
        for pattern in [
            format!("{}b", "a*".repeat(MAX_LINE / 2 - 1)),
            format!("{}b", "*".repeat(MAX_LINE - 1)),
            format!("*{}b*", "a".repeat(MAX_LINE / 2)),
            format!("*b{}*", "a".repeat(MAX_LINE / 2)),
            format!("*{}b *", "a*aa*".repeat(MAX_LINE / 5 - 1)),
        ] {
            // More stars than `read` accepts.
            let worst = Acl { commands: Some(vec![pattern; MAX_ENTRIES]), ..Acl::default() };
            assert!(!worst.allows_line(&line));
        }
        let open = Acl { commands: Some(vec!["a*".repeat(MAX_LINE / 2)]), ..Acl::default() };
        assert!(open.allows_line(&line));
    }

    #[test]
    fn the_json_of_a_list_is_bounded() {
        let around = json!({"commands": [""]}).to_string().len();
        let of_bytes = |bytes: usize| json!({"commands": ["x".repeat(16_384), "y".repeat(bytes - around - 16_387)]});
        assert_eq!(acl(of_bytes(MAX_BYTES)).json().unwrap().len(), MAX_BYTES);
        let errors = Acl::read(&of_bytes(MAX_BYTES + 1)).unwrap_err();
        assert_eq!(errors, ["The JSON of this list has 32769 bytes; 32768 are allowed."]);
        // A control character takes six bytes in JSON. All entries count.
        assert!(Acl::read(&json!({"commands": ["\u{1}".repeat(5_500)]})).is_err());
        let everything = |number: usize| {
            json!({"servers": vec![SERVER; 100], "usernames": vec!["x".repeat(64); 100],
                "networks": vec!["2001:db8:1111:2222:3333:4444:5555:6666/128"; 100], "commands": vec!["y".repeat(100); number]})
        };
        acl(everything(100));
        let too_much = vec![json!(["x".repeat(16_384)]); 2];
        assert!(Acl::read(&json!({"argv": too_much})).is_err());
    }

    #[test]
    fn the_number_of_stars_and_words_is_bounded() {
        let errors =
            |value: Value| Acl::read(&value).map(drop).map_err(|problems| problems.join(" "));
        // The limit for one pattern, and for one word.
        acl(json!({"commands": ["a*".repeat(8)], "argv": [["*".repeat(8)]]}));
        assert_eq!(
            errors(json!({"commands": ["ls", "a*".repeat(9)]})).unwrap_err(),
            "commands[1]: Ensure this has no more than 8 *."
        );
        assert_eq!(
            errors(json!({"argv": [["ls", "a*".repeat(9)]]})).unwrap_err(),
            "argv[0]: Word 1 has more than 8 *."
        );
        // The limit for all patterns and words together. Words that are only `*` do not count: they
        // cost nothing.
        acl(json!({"commands": vec!["*a*b"; 78], "argv": vec![vec!["a*"; 25]; 4]}));
        acl(json!({"argv": vec![vec!["*"; 10]; 100]}));
        assert_eq!(
            errors(json!({"commands": vec!["*a*b"; 79], "argv": vec![vec!["a*"; 25]; 4]}))
                .unwrap_err(),
            "All patterns and words together have 258 *; 256 are allowed."
        );
        // The limit for the words of all entries.
        acl(json!({"argv": vec![vec!["x"; 250]; 4]}));
        assert_eq!(
            errors(json!({"argv": vec![vec!["x"; 251]; 4]})).unwrap_err(),
            "argv: All lists together have 1004 words; 1000 are allowed."
        );
    }

    #[test]
    fn an_event_has_the_hash_of_a_long_list() {
        assert_eq!(json!(Acl::in_event(None).unwrap()), json!({"acl": null}));
        let around = json!({"commands": [""]}).to_string().len();
        let longest = with(&"x".repeat(MAX_IN_EVENT - around));
        assert_eq!(json!(Acl::in_event(Some(&longest)).unwrap()), json!({"acl": longest}));
        let longer = with(&"x".repeat(MAX_IN_EVENT - around + 1));
        let stored = format!(r#"{{"commands":["{}"]}}"#, "x".repeat(MAX_IN_EVENT - around + 1));
        let summary = json!({"acl_bytes": 4_097, "acl_sha256": sha256(&stored)});
        assert_eq!(json!(Acl::in_event(Some(&longer)).unwrap()), summary);
    }

    #[test]
    fn a_command_must_fit_all_lists() {
        let command = |line: &str, username: &str| Command {
            id: Uuid::nil(),
            shell: Shell::System,
            line: line.into(),
            argv: None,
            script: None,
            username: username.into(),
            groupname: String::new(),
            server: id::parse(SERVER).unwrap(),
            server_name: "web-1".into(),
            requested_by: None,
            batch: None,
        };
        let internal = |command: Command| Command { shell: Shell::Builtin, ..command };
        let free = acl(json!({}));
        assert!(free.allows_command(&command("rm -rf /", "root"), true));
        assert!(free.allows_command(&internal(command("ping", "root")), false));
        let patterns = with("ls *");
        assert!(patterns.allows_command(&command("ls", "root"), false));
        assert!(!patterns.allows_command(&internal(command("ls", "root")), false));
        assert!(!patterns.allows_command(&command("ls", "root"), true));
        assert!(!patterns.allows_command(&command("id", "root"), false));
        let lists = acl(json!({"servers": [SERVER], "usernames": ["deploy"]}));
        assert!(lists.allows_command(&command("id; ls", "deploy"), true));
        assert!(!lists.allows_command(&internal(command("reboot", "deploy")), false));
        assert!(!lists.allows_command(&command("id", "root"), false));
        assert!(!lists.allows_command(&command("id", "Deploy"), false));
        let in_group = Command { groupname: "deploy".into(), ..command("id", "deploy") };
        assert!(!lists.allows_command(&in_group, false) && free.allows_command(&in_group, false));
        assert!(!patterns.allows_command(&Command { line: "ls".into(), ..in_group }, false));
        let other = Uuid::nil();
        assert!(
            !lists.allows_command(&Command { server: other, ..command("id", "deploy") }, false)
        );
        let server = id::parse(SERVER).unwrap();
        assert!(
            lists.allows_server(server) && !lists.allows_server(other) && free.allows_server(other)
        );
        for nothing in [
            json!({"servers": []}),
            json!({"usernames": []}),
            json!({"commands": []}),
            json!({"read_only": true}),
        ] {
            assert!(!acl(nothing.clone()).allows_command(&command("id", "a"), false), "{nothing}");
        }
    }

    #[test]
    fn argv_is_matched_word_by_word() {
        let words =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let check = |patterns: Value, yes: &[&[&str]], no: &[&[&str]]| {
            let acl = acl(json!({"argv": patterns}));
            yes.iter().for_each(|some| {
                assert!(acl.allows_words(&words(some)), "{patterns} should allow {some:?}");
            });
            no.iter().for_each(|some| {
                assert!(!acl.allows_words(&words(some)), "{patterns} should refuse {some:?}");
            });
        };
        check(
            json!([["grep", "*", "/var/log/dpkg.log"]]),
            &[
                &["grep", "a -b; $(id) 'x' #\n ../", "/var/log/dpkg.log"],
                &["grep", "[a-z]*", "/var/log/dpkg.log"],
                &["grep", "", "/var/log/dpkg.log"],
            ],
            &[
                &["grep", "-f", "/var/log/dpkg.log"],
                &["grep", "--", "/var/log/dpkg.log"],
                &["grep", "root", "/etc/passwd", "/var/log/dpkg.log"],
                &["grep", "root", "/etc/passwd"],
                &["grep", "/var/log/dpkg.log"],
                &["grep root /etc/passwd", "x", "/var/log/dpkg.log"],
                &["egrep", "x", "/var/log/dpkg.log"],
                &["grep", "x", "/var/log/dpkg.log", ""],
                &["grep", "x", "/var/log/dpkg.log "],
                &[],
            ],
        );
        check(
            json!([["ls", "..."]]),
            &[&["ls"], &["ls", "-l", "..."], &["ls", ""]],
            &[&["lsof"], &["ls -l"], &[]],
        );
        check(json!([["a", "...", "b"]]), &[&["a", "...", "b"]], &[&["a", "b"], &["a", "x", "b"]]);
        check(
            json!([["systemctl", "restart", "web-*.service"]]),
            &[&["systemctl", "restart", "web-é\n.service"]],
            &[
                &["systemctl", "restart", "web-.servic"],
                &["systemctl", "stop", "web-1.service"],
                &["systemctl", "restart", "db-1.service"],
            ],
        );
        check(
            json!([["cat", "/var/log/*"], ["tool", "*.c", "**"]]),
            &[
                &["cat", "/var/log/a b -c ..d"],
                &["cat", "/var/log/.x/a..b"],
                &["tool", "a -b.c", "-x"],
                &["tool", ".c", "../.."],
            ],
            &[
                &["cat", "/var/log/../x"],
                &["cat", "/var/log/.."],
                &["cat", "/var/log/a/../../x"],
                &["tool", "-a.c", "-x"],
                &["tool", "../a.c", "-x"],
                &["tool", "x=../a.c", "-x"],
            ],
        );
        check(json!([["..."]]), &[&["id"], &[]], &[]);
        check(json!([[""]]), &[&[""]], &[&["x"], &[]]);
        check(json!([["id"], ["*", "-l"]]), &[&["id"], &["x", "-l"]], &[&["id", "-u"]]);
        check(json!([]), &[], &[&["id"]]);
    }

    #[test]
    fn malformed_entries_of_argv_are_refused() {
        let long = json!([["x".repeat(MAX_LINE + 1)]]);
        let many = json!([vec!["x"; MAX_ARGV_WORDS + 1]]);
        for bad in
            [json!([[]]), json!(["ls"]), json!([[1]]), json!([["a\0"]]), json!([null]), long, many]
        {
            refused(&json!({"argv": bad}), &["argv[0]"]);
        }
        refused(&json!({"argv": [["id"], ["ls", 7]]}), &["argv[1]"]);
        refused(&json!({"argv": vec![json!(["id"]); 101]}), &["argv"]);
        refused(&json!({"read_all": "yes"}), &["read_all"]);
        acl(json!({"argv": [vec!["x"; MAX_ARGV_WORDS], vec!["y".repeat(MAX_LINE)]]}));
    }

    #[test]
    fn a_token_with_commands_only_refuses_argv() {
        let line = Command {
            id: Uuid::nil(),
            shell: Shell::System,
            line: "ls".into(),
            argv: None,
            script: None,
            username: "deploy".into(),
            groupname: String::new(),
            server: id::parse(SERVER).unwrap(),
            server_name: "web-1".into(),
            requested_by: None,
            batch: None,
        };
        let words = Command { argv: Some(vec!["ls".into()]), ..line.clone() };
        let refusal =
            |list: Value, command: &Command, has_inputs| acl(list).refusal(command, has_inputs);
        let (commands, argv) = (json!({"commands": ["*"]}), json!({"argv": [["..."]]}));
        assert_eq!(refusal(commands.clone(), &line, false), None);
        assert_eq!(refusal(commands.clone(), &words, false), Some(AclLimit::Argv));
        assert_eq!(refusal(argv.clone(), &words, false), None);
        assert_eq!(refusal(argv.clone(), &line, false), Some(AclLimit::Commands));
        let both = json!({"commands": ["id"], "argv": [["ls"]]});
        assert_eq!(refusal(both.clone(), &words, false), None);
        assert_eq!(refusal(both, &line, false), Some(AclLimit::Commands));
        assert_eq!(refusal(argv.clone(), &words, true), Some(AclLimit::Inputs));
        let in_group = Command { groupname: "www".into(), ..words.clone() };
        assert_eq!(refusal(argv.clone(), &in_group, false), Some(AclLimit::Group));
        let internal = Command { shell: Shell::Builtin, ..line.clone() };
        assert_eq!(refusal(argv, &internal, false), Some(AclLimit::Builtin));
        let accounts = json!({"usernames": ["deploy"]});
        assert_eq!(refusal(accounts.clone(), &words, true), None);
        assert_eq!(refusal(accounts.clone(), &internal, false), Some(AclLimit::Builtin));
        assert_eq!(
            refusal(accounts, &Command { username: "root".into(), ..words.clone() }, false),
            Some(AclLimit::Usernames)
        );
        assert_eq!(refusal(json!({"servers": []}), &words, false), Some(AclLimit::Servers));
        assert_eq!(refusal(json!({"read_only": true}), &words, false), Some(AclLimit::ReadOnly));
    }

    #[test]
    fn scripts_are_allowed_by_id_or_version() {
        let script = |version| Some(ScriptRef { id: Uuid::nil(), version });
        let line = Command {
            id: Uuid::nil(),
            shell: Shell::System,
            line: "script:x@1".into(),
            argv: None,
            script: None,
            username: "deploy".into(),
            groupname: String::new(),
            server: id::parse(SERVER).unwrap(),
            server_name: "web-1".into(),
            requested_by: None,
            batch: None,
        };
        let one = Command { script: script(1), ..line.clone() };
        let two = Command { script: script(2), ..line.clone() };
        let refusal =
            |list: Value, command: &Command, has_inputs| acl(list).refusal(command, has_inputs);
        let (all, first) = (json!({"scripts": [Uuid::nil()]}), format!("{}@1", Uuid::nil()));
        let first = json!({"scripts": [first]});
        assert_eq!(refusal(all.clone(), &one, false), None);
        assert_eq!(refusal(first.clone(), &one, false), None);
        assert_eq!(refusal(first.clone(), &two, false), Some(AclLimit::Scripts));
        assert_eq!(refusal(json!({"scripts": []}), &one, false), Some(AclLimit::Scripts));
        assert_eq!(refusal(json!({"scripts": [SERVER]}), &one, false), Some(AclLimit::Scripts));
        // The label in the line is not what runs.
        for list in [
            json!({"commands": ["*"]}),
            json!({"commands": ["script:x@1"]}),
            json!({"argv": [["..."]]}),
        ] {
            assert_eq!(refusal(list, &one, false), Some(AclLimit::Scripts));
        }
        assert_eq!(refusal(all.clone(), &line, false), Some(AclLimit::Commands));
        assert_eq!(refusal(all.clone(), &one, true), Some(AclLimit::Inputs));
        let in_group = Command { groupname: "www".into(), ..one.clone() };
        assert_eq!(refusal(all.clone(), &in_group, false), Some(AclLimit::Group));
        assert_eq!(refusal(json!({}), &two, true), None);
        assert!(acl(all.clone()).limits_history() && acl(all).limits_scripts());
        for bad in [json!("x"), json!(format!("{SERVER}@0")), json!(format!("{SERVER}@")), json!(1)]
        {
            refused(&json!({"scripts": [bad]}), &["scripts[0]"]);
        }
        let stored = acl(json!({"scripts": [SERVER.to_uppercase()]})).json().unwrap();
        assert_eq!(stored, format!("{{\"scripts\":[\"{SERVER}\"]}}"));
    }

    #[test]
    fn servers_by_their_labels() {
        let labels = |value: &str| Labels::from_iter([("env".to_owned(), value.to_owned())]);
        let limited = acl(json!({"selector": " env in (prod , test)"}));
        assert_eq!(json!(limited), json!({"selector": "env in (prod,test)"}));
        assert!(limited.allows_labels(&labels("prod")) && limited.limits_servers());
        assert!(!limited.allows_labels(&labels("dev")));
        assert!(!limited.allows_labels(&Labels::default()));
        let free = acl(json!({"selector": null, "servers": null}));
        assert!(free.allows_labels(&labels("dev")) && !free.limits_servers());
        assert!(acl(json!({"servers": []})).limits_servers());
        assert_eq!(
            Acl::read(&json!({"selector": "env=prod,"})).unwrap_err(),
            ["selector: At position 10: a term is missing at the end."]
        );
        refused(&json!({"selector": ""}), &["selector"]);
        refused(&json!({"selector": 7}), &["selector"]);
        refused(&json!({"selector": ["env"]}), &["selector"]);
        // A stored list with an invalid selector cannot be read, so it allows nothing.
        assert!(serde_json::from_value::<Acl>(json!({"selector": "a>1"})).is_err());
    }

    #[test]
    fn a_limited_token_reads_only_what_it_may_run() {
        for narrow in [
            json!({"commands": []}),
            json!({"argv": [["..."]]}),
            json!({"usernames": ["a"], "read_all": false}),
        ] {
            assert!(acl(narrow.clone()).limits_history(), "{narrow}");
        }
        for wide in [
            json!({}),
            json!({"servers": []}),
            json!({"read_only": true}),
            json!({"commands": [], "read_all": true}),
        ] {
            assert!(!acl(wide.clone()).limits_history(), "{wide}");
        }
    }

    #[test]
    fn addresses_must_be_in_a_network() {
        let check = |networks: Value, yes: &[&str], no: &[&str]| {
            let acl = acl(json!({"networks": networks}));
            yes.iter().for_each(|address| {
                assert!(acl.allows_address(address), "{networks} should hold {address}");
            });
            no.iter().for_each(|address| {
                assert!(!acl.allows_address(address), "{networks} should not hold {address}");
            });
        };
        let odd = ["", "localhost", "10.0.0.1/8", "10.0.0.1:80", "010.0.0.1"];
        check(
            json!(["10.1.2.3/8"]),
            &["10.0.0.0", "10.255.255.255", "::ffff:10.9.9.9"],
            &["11.0.0.0", "::1"],
        );
        check(
            json!(["192.0.2.7/32", "2001:db8::1/64"]),
            &["192.0.2.7", "2001:db8::f"],
            &["192.0.2.8", "2001:db8:0:1::"],
        );
        check(json!(["::ffff:10.0.0.0/104"]), &["10.1.1.1", "::ffff:10.1.1.1"], &["11.0.0.0"]);
        check(json!(["0.0.0.0/0", "::/0"]), &["10.0.0.1", "2001:db8::1"], &odd);
        check(json!(["::/0"]), &["::1"], &["10.0.0.1", "::ffff:10.0.0.1"]);
        check(json!([]), &[], &["10.0.0.1"]);
        assert!(acl(json!({})).allows_address("") && acl(json!({})).allows_address("unknown"));
    }

    #[test]
    fn a_read_only_token_may_use_safe_methods() {
        let reader = acl(json!({"read_only": true}));
        ["GET", "HEAD", "OPTIONS"]
            .iter()
            .for_each(|method| assert!(reader.allows_method(method), "{method}"));
        ["POST", "PUT", "PATCH", "DELETE", "get", ""]
            .iter()
            .for_each(|m| assert!(!reader.allows_method(m), "{m}"));
        assert!(
            acl(json!({"read_only": false})).allows_method("POST")
                && acl(json!({})).allows_method("DELETE")
        );
    }

    /// The grammar of version 0.2.0, without regard to time: each `*` matches any plain text.
    fn earlier(pattern: &[char], line: &[char]) -> bool {
        match pattern.split_first() {
            None => line.is_empty(),
            Some(('*', rest)) => (0..=line.len())
                .take_while(|length| is_plain(&line[..*length].iter().collect::<String>()))
                .any(|length| earlier(rest, &line[length..])),
            Some((c, rest)) => line.first() == Some(c) && earlier(rest, &line[1..]),
        }
    }

    /// The characters that a star must not match, spelled out a second time (contract 4.12).
    fn is_barred(c: char) -> bool {
        ";&|<>`$()\\{}#'\"~\u{2028}\u{2029}".contains(c) || c.is_control()
    }

    fn operators(text: &str) -> String {
        text.chars().filter(|c| !is_plain(&c.to_string())).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// A pattern allows no line that it did not allow in version 0.2.0. There, a trailing ` *`
        /// matched no argument; ` **` did not.
        #[test]
        fn patterns_only_narrow(
            pattern in "[ab;* /.'?-]{0,9}",
            runs in proptest::collection::vec("[ab ./*?-]{0,4}|[ab;\n]{0,2}", 9),
        ) {
            let parts: Vec<&str> = pattern.split('*').collect();
            let stars = runs.iter().map(String::as_str).take(parts.len() - 1).chain([""]);
            let line: String = parts.iter().zip(stars).flat_map(|(part, run)| [*part, run]).collect();
            let earlier = |pattern: &str, line: &str| {
                let characters = |text: &str| text.chars().collect::<Vec<_>>();
                earlier(&characters(pattern), &characters(line))
            };
            let bare = pattern.strip_suffix(" *").or_else(|| pattern.strip_suffix(" **"));
            for line in [line.as_str(), line.trim_end(), "a", "ab a"] {
                let was_allowed = earlier(&pattern, line) || bare.is_some_and(|bare| earlier(bare, line));
                prop_assert!(!fits_line(&pattern, line) || was_allowed, "{:?} {:?}", pattern, line);
            }
        }

        /// A word that matched is one that matched in version 0.2.0, where `*` was any text.
        #[test]
        fn words_only_narrow(pattern in "[ab* /.=-]{0,7}", word in "[ab* /.=-]{0,7}") {
            let (p, w): (Vec<char>, Vec<char>) = (pattern.chars().collect(), word.chars().collect());
            let is_open = pattern == ANY_FURTHER_WORDS;
            prop_assert!(is_open || !matches_words(&[pattern], &[word]) || earlier(&p, &w));
        }

        /// A line that matches has exactly the operators of the pattern.
        #[test]
        fn a_star_adds_no_operator(
            pattern in "[ab;* ]{1,8}",
            runs in proptest::collection::vec("[ab ]{0,3}|[ab;\n$]{0,3}", 9),
        ) {
            let parts: Vec<&str> = pattern.split('*').collect();
            let stars = runs.iter().map(String::as_str).take(parts.len() - 1).chain([""]);
            let line: String = parts.iter().zip(stars).flat_map(|(part, run)| [*part, run]).collect();
            prop_assert!(!fits_line(&pattern, &line) || operators(&pattern) == operators(&line));
        }

        /// An allowed line has exactly the operators of one of the patterns. The lines are patterns
        /// with any text inserted at any position.
        #[test]
        fn no_list_allows_an_unlisted_operator(
            patterns in proptest::collection::vec("[a-c *;&|<>`$(){}\\\\\n]{1,10}|\\PC{1,6}", 1..4),
            chosen in any::<proptest::sample::Index>(),
            stuffing in "[a-c ;&|<>`$(){}\\\\\n\r\t\u{0}\u{b}\u{7f}\u{85}\u{2028}\u{2029}]|.{0,3}",
            at in any::<proptest::sample::Index>(),
        ) {
            let pattern = chosen.get(&patterns);
            let mut places: Vec<usize> = pattern.char_indices().map(|(place, _)| place).collect();
            places.push(pattern.len());
            let place = *at.get(&places);
            let barred = |text: &str| text.chars().filter(|c| is_barred(*c)).collect::<String>();
            let list = Acl { commands: Some(patterns.clone()), ..Acl::default() };
            for line in [
                format!("{}{stuffing}{}", &pattern[..place], &pattern[place..]),
                pattern.replace('*', &stuffing),
                pattern.strip_suffix(" *").unwrap_or(pattern).to_owned() + &stuffing,
            ] {
                let is_listed = patterns.iter().any(|pattern| barred(pattern) == barred(&line));
                prop_assert!(!list.allows_line(&line) || is_listed, "{:?} let {:?} through", patterns, line);
            }
        }
    }
}
