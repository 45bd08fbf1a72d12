//! What an API token may do, where its owner limits it (contract 4, Token ACL).

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::command::{Command, MAX_LINE, Shell};
use crate::fields::BLANK;
use crate::id;

/// Entries of a list at most.
const MAX_ENTRIES: usize = 100;
/// The longest name of an account, in characters.
const MAX_USERNAME: usize = 64;
/// The most that all patterns and usernames have together, in bytes: the list is read with every request of its token.
const MAX_BYTES: usize = 65_536;
/// Unknown keys that are told of at most, so that an answer is not much longer than what was sent.
const MAX_UNKNOWN: usize = 10;
/// The keys of an ACL.
const KEYS: [&str; 5] = ["commands", "servers", "usernames", "networks", "read_only"];

/// The limits of an API token. An absent list does not limit; an empty one allows nothing.
///
/// Its JSON is what the API shows and what D1 stores. Reading the stored form refuses unknown keys too: a limit that
/// this version does not know must not be dropped.
///
/// ```
/// use farhand_domain::acl::Acl;
/// let acl = Acl::read(&serde_json::json!({"commands": ["ls *"]})).unwrap();
/// assert!(acl.allows_line("ls") && acl.allows_line("ls -l"));
/// assert!(!acl.allows_line("ls; id"));
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Acl {
    /// Patterns of the lines that may be run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commands: Option<Vec<String>>,
    /// The servers that may be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers: Option<Vec<Uuid>>,
    /// The remote accounts that lines may run as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usernames: Option<Vec<String>>,
    /// The networks that requests may come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<IpNet>>,
    /// Whether the token may only read. `None` is as `false`, but is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

/// A text of 1 to `most` characters.
fn text(text: &str, most: usize) -> Result<String, Cow<'static, str>> {
    if text.is_empty() {
        Err(BLANK.into())
    } else if text.contains('\0') {
        Err("Null characters are not allowed.".into())
    } else if text.chars().count() > most {
        Err(format!("Ensure this has no more than {most} characters.").into())
    } else {
        Ok(text.to_owned())
    }
}

/// A text that is the name of an account.
fn username(name: &str) -> Result<String, Cow<'static, str>> {
    if name.trim().is_empty() { Err(BLANK.into()) } else { text(name, MAX_USERNAME) }
}

/// A network with its prefix length. The standard library reads the address: it refuses leading zeros, which others
/// take for octal.
fn network(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let digits = length.bytes().all(|b| b.is_ascii_digit());
    IpNet::new(address.parse().ok()?, digits.then(|| length.parse().ok())??).ok()
}

/// A list that may be missing or null, of at most [`MAX_ENTRIES`] texts that `entry` reads.
fn list<T>(
    object: &Map<String, Value>,
    key: &str,
    problems: &mut Vec<Cow<'static, str>>,
    entry: impl Fn(&str) -> Result<T, Cow<'static, str>>,
) -> Option<Vec<T>> {
    let entries = match object.get(key)? {
        Value::Null => return None,
        Value::Array(entries) if entries.len() <= MAX_ENTRIES => entries,
        Value::Array(_) => {
            problems.push(format!("{key}: Ensure this list has no more than {MAX_ENTRIES} entries.").into());
            return None;
        }
        _ => {
            problems.push(format!("{key}: Not a valid list.").into());
            return None;
        }
    };
    let mut list = Vec::with_capacity(entries.len());
    for (index, value) in entries.iter().enumerate() {
        match value.as_str().map_or_else(|| Err("Not a valid string.".into()), &entry) {
            Ok(entry) => list.push(entry),
            Err(message) => problems.push(format!("{key}[{index}]: {message}").into()),
        }
    }
    Some(list)
}

/// Tells whether a shell takes none of the characters for anything but a part of a word.
///
/// U+2028 and U+2029 are no control characters, and no shell breaks a line there; but whoever reads a log may see a line
/// that nobody ran.
fn is_plain(text: &str) -> bool {
    !text.contains(|c: char| {
        c.is_control()
            || matches!(c, '\u{2028}' | '\u{2029}')
            || matches!(c, ';' | '&' | '|' | '<' | '>' | '`' | '$' | '(' | ')' | '\\' | '{' | '}')
    })
}

/// Tells whether a pattern fits a whole line.
///
/// The literal parts are looked for from left to right, each at its first place, and never again: the time is linear
/// in the lengths of both, however many stars there are. To go for the first place is right, although a star passes
/// over plain text only: a part that is all plain can be passed over when it would have fitted later too, and a part
/// with a character that is not plain fits in one place only, as no star passes over that character.
fn fits(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('*');
    let (Some(head), Some(tail)) = (parts.next(), parts.next_back()) else { return pattern == line };
    let Some(mut rest) = line.strip_prefix(head) else { return false };
    for part in parts {
        match rest.find(part) {
            Some(start) if is_plain(&rest[..start]) => rest = &rest[start + part.len()..],
            _ => return false,
        }
    }
    rest.strip_suffix(tail).is_some_and(is_plain)
}

/// An IPv6 network of addresses that stand for IPv4 ones, as the IPv4 network that it means.
fn canonical(network: IpNet) -> IpNet {
    let mapped = match network {
        IpNet::V6(v6) => v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96)),
        IpNet::V4(_) => None,
    };
    mapped.and_then(|(address, length)| Ipv4Net::new(address, length).ok()).map_or(network, IpNet::V4)
}

impl Acl {
    /// Reads the field `acl` of a request.
    ///
    /// # Errors
    /// All that is wrong with it, each message with the key that it is about. A key that is not known is wrong: were
    /// it skipped, a misspelled limit would be none.
    pub fn read(value: &Value) -> Result<Self, Vec<Cow<'static, str>>> {
        let Value::Object(object) = value else { return Err(vec!["Not a valid object.".into()]) };
        let unknown = object.keys().filter(|key| !KEYS.contains(&key.as_str())).take(MAX_UNKNOWN);
        let mut problems: Vec<_> = unknown
            .map(|key| format!("{key:.64}: There is no such limit; there are {}.", KEYS.join(", ")).into())
            .collect();
        let commands = list(object, "commands", &mut problems, |pattern| text(pattern, MAX_LINE));
        let servers = list(object, "servers", &mut problems, |text| id::parse(text).ok_or("Not a valid UUID.".into()));
        let usernames = list(object, "usernames", &mut problems, username);
        let networks = list(object, "networks", &mut problems, |text| {
            network(text).ok_or("Not a valid network: give an address and a prefix length, such as 10.0.0.0/8.".into())
        });
        let read_only = object.get("read_only").and_then(|value| {
            if !value.is_boolean() {
                problems.push("read_only: Must be true or false.".into());
            }
            value.as_bool()
        });
        let acl = Self { commands, servers, usernames, networks, read_only };
        let bytes: usize = acl.commands.iter().flatten().chain(acl.usernames.iter().flatten()).map(String::len).sum();
        if bytes > MAX_BYTES {
            problems.push(format!("The texts are {bytes} bytes long together; {MAX_BYTES} are allowed.").into());
        }
        if problems.is_empty() { Ok(acl) } else { Err(problems) }
    }

    /// Tells whether a line fits one of the patterns. In a pattern each character matches itself, and `*` any run of
    /// characters, the empty one too, with no control character and no shell operator in it. A trailing ` *` matches
    /// no argument at all, too.
    pub fn allows_line(&self, line: &str) -> bool {
        self.commands.as_ref().is_none_or(|patterns| {
            patterns
                .iter()
                .any(|pattern| fits(pattern, line) || pattern.strip_suffix(" *").is_some_and(|p| fits(p, line)))
        })
    }

    /// Tells whether a server may be reached, for whatever it be.
    pub fn allows_server(&self, server: Uuid) -> bool {
        self.servers.as_ref().is_none_or(|servers| servers.contains(&server))
    }

    /// Tells whether a command may be made, and, once more when it goes out, whether it still may; and whether one that is
    /// there may be ended.
    ///
    /// Patterns say nothing of built-ins, and an environment can change what a line does: where there are patterns,
    /// neither may be used. A list of accounts says nothing of groups: none but their own. A token that may only read may
    /// make none.
    pub fn allows_command(&self, command: &Command, has_env: bool) -> bool {
        let within_patterns =
            self.commands.is_none() || (command.shell == Shell::System && !has_env && self.allows_line(&command.line));
        let within_usernames = self
            .usernames
            .as_ref()
            .is_none_or(|names| names.contains(&command.username) && command.groupname.is_empty());
        within_patterns && within_usernames && self.allows_server(command.server) && self.read_only != Some(true)
    }

    /// Tells whether a request may come from an address. An IPv6 address that stands for an IPv4 one counts as that
    /// one; a text that is no address is in no network.
    pub fn allows_address(&self, remote_ip: &str) -> bool {
        let Some(networks) = &self.networks else { return true };
        let Ok(address) = remote_ip.parse::<IpAddr>() else { return false };
        networks.iter().any(|network| canonical(*network).contains(&address.to_canonical()))
    }

    /// Tells whether a request may have this method, in capitals as HTTP has it.
    pub fn allows_method(&self, method: &str) -> bool {
        self.read_only != Some(true) || matches!(method, "GET" | "HEAD" | "OPTIONS")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const SERVER: &str = "01936d3e-7a00-7000-8000-000000000000";

    fn acl(value: Value) -> Acl {
        Acl::read(&value).unwrap_or_else(|problems| panic!("{value}: {problems:?}"))
    }

    fn with(pattern: &str) -> Acl {
        acl(json!({"commands": [pattern]}))
    }

    /// Checks that reading tells of exactly these places, in this order.
    #[track_caller]
    fn refused(value: &Value, places: &[&str]) {
        let problems = Acl::read(value).expect_err(&value.to_string());
        let told: Vec<_> = problems.iter().map(|text| text.split(':').next().unwrap()).collect();
        assert_eq!(told, places, "{value}");
    }

    #[test]
    fn what_was_sent_is_what_is_stored() {
        for sent in [
            json!({}),
            json!({"read_only": false}),
            json!({"commands": [], "servers": [], "usernames": [], "networks": []}),
            json!({
                "commands": ["ls *", " "], "servers": [SERVER], "usernames": ["deploy"],
                "networks": ["10.1.2.3/8", "2001:db8::1/32", "::ffff:10.0.0.0/104", "0.0.0.0/0"], "read_only": true
            }),
        ] {
            let read = acl(sent.clone());
            let stored = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&stored).unwrap(), sent);
            assert_eq!(serde_json::from_str::<Acl>(&stored).unwrap(), read);
        }
        let nulls = json!({"commands": null, "servers": null, "usernames": null, "networks": null});
        assert_eq!(acl(nulls), Acl::default());
        assert!(serde_json::from_str::<Acl>(r#"{"comands":[]}"#).is_err());
    }

    #[test]
    fn what_is_refused() {
        for bad in [json!([]), json!("x"), json!(true), json!(1), json!(null)] {
            refused(&bad, &["Not a valid object."]);
        }
        for key in ["commands", "servers", "usernames", "networks"] {
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
    fn entries_that_are_refused() {
        refused(&json!({"commands": ["ls", "a\0b", "é".repeat(16_385)]}), &["commands[1]", "commands[2]"]);
        acl(json!({"commands": ["é".repeat(16_384), " "]}));
        refused(&json!({"usernames": [" ", "a\0", "é".repeat(65)]}), &["usernames[0]", "usernames[1]", "usernames[2]"]);
        acl(json!({"usernames": ["é".repeat(64)]}));
        acl(json!({"usernames": vec!["a"; 100]}));
        refused(&json!({"servers": ["web-1", "01936d3e7a0070008000000000000000"]}), &["servers[0]", "servers[1]"]);
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
    fn all_problems_together() {
        let bad = json!({"comands": [], "commands": [""], "servers": 1, "usernames": [1, 2], "networks": ["x"], "read_only": 0});
        refused(
            &bad,
            &["comands", "commands[0]", "servers", "usernames[0]", "usernames[1]", "networks[0]", "read_only"],
        );
    }

    #[test]
    fn the_example_of_the_contract() {
        let acl = with("ls *");
        for line in ["ls", "ls ", "ls -l", "ls -l /tmp 'a b' *.rs #é"] {
            assert!(acl.allows_line(line), "{line}");
        }
        for line in ["", "l", "lsof", " ls", "ls\t-l", "LS", "ls; id", "ls && id", "ls $(id)", "ls -l\nid", "ls -l\n"] {
            assert!(!acl.allows_line(line), "{line}");
        }
        for operator in ";&|<>`$(){}\\\n\r\t\0\u{b}\u{c}\u{1b}\u{7f}\u{85}\u{2028}\u{2029}".chars() {
            let line = format!("ls {operator}");
            assert!(!acl.allows_line(&line), "{operator:?}");
            assert!(Acl { commands: Some(vec![line.clone()]), ..Acl::default() }.allows_line(&line), "{operator:?}");
        }
    }

    #[test]
    fn patterns() {
        let check = |pattern: &str, yes: &[&str], no: &[&str]| {
            let acl = with(pattern);
            yes.iter().for_each(|line| assert!(acl.allows_line(line), "{pattern} should allow {line}"));
            no.iter().for_each(|line| assert!(!acl.allows_line(line), "{pattern} should not allow {line}"));
        };
        check("id", &["id"], &["id ", " id", "id -u", "Id", ""]);
        check("*", &["", "id", "ls -l"], &["ls; id", "a\nb"]);
        check("**", &["", "id"], &["$x"]);
        check(" *", &["", " x"], &["x"]);
        check("a.c", &["a.c"], &["abc"]);
        check("a?[b]", &["a?[b]"], &["axb"]);
        check("ps | grep *", &["ps | grep x", "ps | grep"], &["ps | grep x | sh", "ps  grep x"]);
        check(
            "systemctl * nginx",
            &["systemctl status nginx", "systemctl  nginx"],
            &["systemctl nginx", "systemctl;  nginx"],
        );
        check("*aba", &["aba", "ababa", "abaaba"], &["abab"]);
        check("aba*aba", &["abaaba", "aba aba"], &["ababa", "aba"]);
        check("* *", &["", "a", "a b"], &["a;b"]);
        check("a*", &["a", "ab", "a b"], &["b"]);
        check("é*ü", &["éü", "éöü"], &["é;ü", "e\u{301}ü"]);
        let several = acl(json!({"commands": ["id", "ls *"]}));
        assert!(several.allows_line("id") && several.allows_line("ls -l") && !several.allows_line("id -u"));
        assert!(!acl(json!({"commands": []})).allows_line("id"));
        assert!(acl(json!({})).allows_line("id; reboot"));
    }

    /// A hundred of the longest patterns on the longest line, of the kinds that make others try again and again.
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
            // More than one that is read may have.
            let worst = Acl { commands: Some(vec![pattern; MAX_ENTRIES]), ..Acl::default() };
            assert!(!worst.allows_line(&line));
        }
        assert!(with(&"a*".repeat(MAX_LINE / 2)).allows_line(&line));
    }

    #[test]
    fn all_texts_together_are_bounded() {
        let texts = |length: usize| Acl::read(&json!({"commands": vec!["x".repeat(length); 8]}));
        assert!(texts(MAX_BYTES / 8).is_ok());
        assert!(texts(MAX_BYTES / 8 + 1).is_err());
        // Of one kind and the other.
        let both = json!({"commands": vec!["ä".repeat(8_000); 4], "usernames": vec!["x".repeat(64); 25]});
        assert!(Acl::read(&both).is_err());
    }

    #[test]
    fn commands_within_all_lists() {
        let command = |line: &str, username: &str| Command {
            id: Uuid::nil(),
            shell: Shell::System,
            line: line.into(),
            username: username.into(),
            groupname: String::new(),
            server: id::parse(SERVER).unwrap(),
            server_name: "web-1".into(),
            requested_by: None,
        };
        let internal = |command: Command| Command { shell: Shell::Internal, ..command };
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
        assert!(lists.allows_command(&internal(command("ping", "deploy")), false));
        assert!(!lists.allows_command(&command("id", "root"), false));
        assert!(!lists.allows_command(&command("id", "Deploy"), false));
        let in_group = Command { groupname: "deploy".into(), ..command("id", "deploy") };
        assert!(
            !lists.allows_command(&in_group, false)
                && patterns.allows_command(&Command { line: "ls".into(), ..in_group }, false)
        );
        let other = Uuid::nil();
        assert!(!lists.allows_command(&Command { server: other, ..command("id", "deploy") }, false));
        let server = id::parse(SERVER).unwrap();
        assert!(lists.allows_server(server) && !lists.allows_server(other) && free.allows_server(other));
        for nothing in
            [json!({"servers": []}), json!({"usernames": []}), json!({"commands": []}), json!({"read_only": true})]
        {
            assert!(!acl(nothing.clone()).allows_command(&command("id", "a"), false), "{nothing}");
        }
    }

    #[test]
    fn addresses() {
        let check = |networks: Value, yes: &[&str], no: &[&str]| {
            let acl = acl(json!({"networks": networks}));
            yes.iter().for_each(|address| assert!(acl.allows_address(address), "{networks} should hold {address}"));
            no.iter().for_each(|address| assert!(!acl.allows_address(address), "{networks} should not hold {address}"));
        };
        let odd = ["", "localhost", "10.0.0.1/8", "10.0.0.1:80", "010.0.0.1"];
        check(json!(["10.1.2.3/8"]), &["10.0.0.0", "10.255.255.255", "::ffff:10.9.9.9"], &["11.0.0.0", "::1"]);
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
    fn methods() {
        let reader = acl(json!({"read_only": true}));
        ["GET", "HEAD", "OPTIONS"].iter().for_each(|method| assert!(reader.allows_method(method), "{method}"));
        ["POST", "PUT", "PATCH", "DELETE", "get", ""].iter().for_each(|m| assert!(!reader.allows_method(m), "{m}"));
        assert!(acl(json!({"read_only": false})).allows_method("POST") && acl(json!({})).allows_method("DELETE"));
    }

    /// The grammar as it is written, in any time.
    fn naive(pattern: &[char], line: &[char]) -> bool {
        match pattern.split_first() {
            None => line.is_empty(),
            Some(('*', rest)) => (0..=line.len())
                .take_while(|length| is_plain(&line[..*length].iter().collect::<String>()))
                .any(|length| naive(rest, &line[length..])),
            Some((c, rest)) => line.first() == Some(c) && naive(rest, &line[1..]),
        }
    }

    /// What no star may stand for, spelled out a second time (contract 4, Token ACL).
    fn is_barred(c: char) -> bool {
        ";&|<>`$()\\{}\u{2028}\u{2029}".contains(c) || c.is_control()
    }

    fn operators(text: &str) -> String {
        text.chars().filter(|c| !is_plain(&c.to_string())).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// Few characters, so that many of the lines fit.
        #[test]
        fn fits_as_the_grammar_says(pattern in "[ab;*é]{0,8}", line in "[ab;*é\n]{0,9}") {
            let (p, l): (Vec<char>, Vec<char>) = (pattern.chars().collect(), line.chars().collect());
            prop_assert_eq!(fits(&pattern, &line), naive(&p, &l));
        }

        /// A line made from the pattern fits it while what stands for the stars is plain; and whatever fits has the
        /// operators of the pattern and no others.
        #[test]
        fn a_star_adds_no_operator(
            pattern in "[ab;* ]{1,8}",
            runs in proptest::collection::vec("[ab ]{0,3}|[ab;\n$]{0,3}", 9),
        ) {
            let mut line = String::new();
            for (part, run) in pattern.split('*').zip(&runs) {
                line.push_str(part);
                line.push_str(run);
            }
            // After the last part nothing stands for a star.
            line.truncate(line.len() - runs[pattern.split('*').count() - 1].len());
            let plain = runs.iter().take(pattern.split('*').count() - 1).all(|run| is_plain(run));
            prop_assert!(!plain || fits(&pattern, &line));
            prop_assert!(!fits(&pattern, &line) || operators(&pattern) == operators(&line));
        }

        /// Whatever a list of patterns allows has the operators of one of them, and no others: any pattern, and any line
        /// made of it with anything put in anywhere.
        #[test]
        fn no_list_lets_an_unlisted_operator_through(
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
