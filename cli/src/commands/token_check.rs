//! `farhand tokens check`: what the patterns of API tokens match.

use clap::Args;
use serde_json::{Value, json};

use super::task::line;
use super::{lookup, typed};
use crate::client::Client;
use crate::error::Result;
use crate::output::{Format, Table, json_text, note, print_list, write};
use crate::types::{AclVerdict, ApiToken};

/// The exit code if the token does not allow the command.
const EXIT_REFUSED: u8 = 1;
/// More than the API tokens of a user.
const ALL: usize = 10_000;

/// Show which patterns of your tokens allow less than in version 0.2.0, or check a command
///
/// With a command, it says whether the token allows the command, and why not. The command does not
/// run. The exit code is 1 if it is refused.
#[derive(Args)]
pub struct Check {
    /// The name or id of a token. The default is all your tokens
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Where the command would run, by name or id
    #[arg(short, long, value_name = "SERVER", requires = "command")]
    server: Option<String>,
    /// The account that the command would run as
    #[arg(long = "as", value_name = "ACCOUNT", requires = "command")]
    account: Option<String>,
    /// Check the words of a command without a shell
    #[arg(long, requires = "command")]
    no_shell: bool,
    /// The command to check
    #[arg(last = true, value_name = "COMMAND", requires_all = ["name", "server"])]
    command: Vec<String>,
}

pub fn execute(client: &Client, format: Format, path: &str, check: &Check) -> Result<u8> {
    let id = check.name.as_ref().map(|name| lookup::id_by_name(client, path, "token", name));
    let id = id.transpose()?;
    if let (Some(id), false) = (&id, check.command.is_empty()) {
        return check_command(client, format, id, check);
    }
    let mut found = Vec::new();
    for item in client.list(path, &[], ALL)?.0 {
        let token: ApiToken = typed(&item)?;
        if id.as_ref().is_none_or(|id| *id == token.id) {
            found.extend(narrowed(&token));
        }
    }
    if found.is_empty() && format == Format::Table {
        note("No pattern allows less than in version 0.2.0.");
        return Ok(0);
    }
    print_list(&found, format, table)?;
    Ok(0)
}

fn check_command(client: &Client, format: Format, id: &str, check: &Check) -> Result<u8> {
    let mut body = json!({"token": id, "server": check.server});
    if check.no_shell {
        body["argv"] = json!(check.command);
    } else {
        body["line"] = json!(line(&check.command));
    }
    if let Some(account) = &check.account {
        body["username"] = json!(account);
    }
    let json: Value = client.post("/api/auth/acl-check/", &body)?.json()?;
    let verdict: AclVerdict = typed(&json)?;
    if format != Format::Table {
        write(&json_text(&json, format))?;
    } else if verdict.allowed {
        write("Allowed.\n")?;
    } else {
        write(&format!("Refused. {}\n", verdict.reason.unwrap_or_default()))?;
    }
    Ok(if verdict.allowed { 0 } else { EXIT_REFUSED })
}

/// The patterns of a token that allow less than in version 0.2.0, each with what it means now and
/// with examples of what it no longer allows.
fn narrowed(token: &ApiToken) -> Vec<Value> {
    let entries = |key: &str| {
        let entries = token.acl.as_ref().and_then(|acl| acl[key].as_array());
        entries.into_iter().flatten()
    };
    let of = |entry: &Value, changes: Vec<(&str, String)>| {
        let (now, examples): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
        (!now.is_empty()).then(|| {
            json!({"token": token.name, "id": token.id, "pattern": entry, "now": now, "no_longer_allows": examples})
        })
    };
    let commands = entries("commands").filter_map(|entry| of(entry, line_changes(entry.as_str()?)));
    let argv = entries("argv").filter_map(|entry| of(entry, word_changes(entry.as_array()?)));
    commands.chain(argv).collect()
}

const NO_OPTIONS: &str = "* matches no options; ** does";
const ONE_WORD: &str = "* matches a part of one word, without .. of a path";
const NO_DOTS: &str = "* matches no .. of a path, and no - at the beginning";
const NOTHING: &str = "* after a quote or a backslash matches nothing";

/// What changed for a pattern of lines, each with an example.
fn line_changes(pattern: &str) -> Vec<(&'static str, String)> {
    let mut changes: Vec<(&'static str, String)> = Vec::new();
    let mut at = 0;
    while let Some(found) = pattern[at..].find('*') {
        let (before, rest) = pattern.split_at(at + found);
        let after = rest.trim_start_matches('*');
        let is_free = (before.is_empty() || before.ends_with(' '))
            && (after.is_empty() || after.starts_with(' '));
        let quoted = before.strip_suffix('.').unwrap_or(before).ends_with(['\'', '"', '\\']);
        let change = match (is_free, rest.len() - after.len()) {
            (true, 1) => Some((NO_OPTIONS, "-x")),
            (true, 2) => None,
            _ if quoted => Some((NOTHING, "x")),
            _ => Some((ONE_WORD, "x y")),
        };
        if let Some((now, text)) = change
            && !changes.iter().any(|(known, _)| *known == now)
        {
            changes.push((now, format!("{before}{text}{after}")));
        }
        at = pattern.len() - after.len();
    }
    changes
}

/// What changed for a list of words.
fn word_changes(words: &[Value]) -> Vec<(&'static str, String)> {
    let mut changes: Vec<(&'static str, String)> = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let change = match word.as_str() {
            Some("*") => (NO_OPTIONS, "-x".to_owned()),
            Some(word) if word != "**" && word.contains('*') => (
                NO_DOTS,
                word.replacen('*', if word.starts_with('*') { "-x" } else { "x/../y" }, 1),
            ),
            _ => continue,
        };
        if changes.iter().any(|(known, _)| *known == change.0) {
            continue;
        }
        let texts = words.iter().enumerate().map(|(at, word)| {
            if at == index { change.1.as_str() } else { word.as_str().unwrap_or_default() }
        });
        changes.push((change.0, texts.collect::<Vec<_>>().join(" ")));
    }
    changes
}

fn table(items: &[Value]) -> Result<Table> {
    let mut table = Table::new(&["TOKEN", "PATTERN", "NOW", "NO LONGER ALLOWS"]);
    let joined = |value: &Value, between: &str| match value {
        Value::Array(texts) => {
            texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(between)
        }
        value => value.as_str().unwrap_or_default().to_owned(),
    };
    for item in items {
        table.row([
            joined(&item["token"], ""),
            joined(&item["pattern"], " "),
            joined(&item["now"], "; "),
            joined(&item["no_longer_allows"], "; "),
        ]);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_allow_less_are_shown_with_examples() {
        let changes = |pattern: &str| line_changes(pattern);
        assert!(changes("uptime").is_empty() && changes("ls **").is_empty());
        assert_eq!(changes("ls *"), [(NO_OPTIONS, "ls -x".to_owned())]);
        assert_eq!(changes("*"), [(NO_OPTIONS, "-x".to_owned())]);
        assert_eq!(changes("cat /log/*"), [(ONE_WORD, "cat /log/x y".to_owned())]);
        assert_eq!(changes("ls ''*"), [(NOTHING, "ls ''x".to_owned())]);
        assert_eq!(
            changes("a * b *.c d* *"),
            [(NO_OPTIONS, "a -x b *.c d* *".to_owned()), (ONE_WORD, "a * b x y.c d* *".to_owned())]
        );
        let changes = |words: Value| word_changes(words.as_array().unwrap());
        assert!(changes(json!(["df", "...", "**"])).is_empty());
        assert_eq!(
            changes(json!(["grep", "*", "/log/*", "*.x"])),
            [
                (NO_OPTIONS, "grep -x /log/* *.x".to_owned()),
                (NO_DOTS, "grep * /log/x/../y *.x".to_owned())
            ]
        );
    }

    #[test]
    fn each_changed_pattern_is_an_item() {
        let token = |acl: Value| ApiToken {
            id: "1".into(),
            name: "ci".into(),
            enabled: true,
            acl: Some(acl),
            expires_at: None,
            last_used_at: None,
        };
        assert!(narrowed(&ApiToken { acl: None, ..token(json!({})) }).is_empty());
        let found =
            narrowed(&token(json!({"commands": ["id", "ls *"], "argv": [["df", "*"], ["id"]]})));
        assert_eq!(found.len(), 2);
        assert_eq!(found[0]["pattern"], "ls *");
        let text = table(&found).unwrap().text();
        assert!(
            text.contains("df *") && text.contains("df -x") && text.contains("ls -x"),
            "{text}"
        );
    }
}
