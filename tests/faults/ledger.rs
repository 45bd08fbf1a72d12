//! What was asked of a service, kept outside it, and what is wrong with what the service tells of
//! it (contract 8).

use std::collections::{BTreeMap, BTreeSet};

use farhand_domain::time::Timestamp;
use serde_json::Value;

/// How the service answered a request for a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// 201, with that id: it is the service's from now on.
    Accepted(String),
    /// A refusal after which nothing may have been stored.
    Refused,
    /// None, or 500: it may have been taken or not, but not twice.
    Unknown,
}

/// A command that was asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The server.
    pub server: String,
    /// When, by this machine's clock.
    pub at: Timestamp,
    /// The answer.
    pub answer: Answer,
}

/// All that was asked for, by a token that is in the command's line and in nothing else.
#[derive(Clone, Default, Debug)]
pub struct Ledger {
    /// What was asked for.
    pub asked: BTreeMap<String, Asked>,
}

/// What can be seen of it afterwards.
#[derive(Clone, Default, Debug)]
pub struct Seen {
    /// Each accepted command, by the id of its 201: what `GET` told, or `None` for a 404.
    pub by_id: BTreeMap<String, Option<Value>>,
    /// All commands of the list.
    pub listed: Vec<Value>,
    /// Tokens of what ran, as often as it did, as the processes told it themselves.
    pub ran: Vec<String>,
    /// Tokens of what scripted agents were handed, as often as they were.
    pub handed: Vec<String>,
    /// Whether everything had the time to end.
    pub is_settled: bool,
}

/// Something that must not be.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Finding {
    /// A 201 that is not found by its id.
    Lost(String),
    /// A 201 that is not in the list, or there more than once.
    NotListed(String),
    /// It succeeded, and nothing ran.
    NeverRan(String),
    /// It did not end.
    Unended(String),
    /// It ran, or was handed out, so many times.
    Repeated(String, usize),
    /// One request made several commands.
    Twins(String),
    /// It was refused and is there, or ran.
    NotRefused(String),
    /// The list has what nobody asked for.
    Unasked(String),
    /// It is another server's than the one that it was asked for.
    Elsewhere(String),
    /// Its timestamps are not in the order of contract 8.4.
    OutOfOrder(String),
    /// It never went out by its status, and ran or was handed out.
    RanUnsent(String),
}

impl Finding {
    /// The token of the command.
    pub fn token(&self) -> &str {
        match self {
            Self::Lost(token)
            | Self::NotListed(token)
            | Self::NeverRan(token)
            | Self::Unended(token)
            | Self::Repeated(token, _)
            | Self::Twins(token)
            | Self::NotRefused(token)
            | Self::Unasked(token)
            | Self::Elsewhere(token)
            | Self::OutOfOrder(token)
            | Self::RanUnsent(token) => token,
        }
    }

    /// Whether it is something that was accepted and forgotten.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::NotListed(_) | Self::NeverRan(_) | Self::Unended(_))
    }

    /// Whether it is something that happened twice.
    pub fn is_repeat(&self) -> bool {
        matches!(self, Self::Repeated(..) | Self::Twins(_))
    }
}

/// The token in a command's line.
pub fn token_of(command: &Value) -> &str {
    command["line"].as_str().and_then(|line| line.split(' ').nth(1)).unwrap_or_default()
}

/// Whether a command is over.
pub fn is_over(command: &Value) -> bool {
    command["handled_at"].is_string()
}

fn count<'a>(tokens: impl IntoIterator<Item = &'a String>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for token in tokens {
        *counts.entry(token.as_str()).or_insert(0) += 1;
    }
    counts
}

/// Whether the moments of a command come one after the other.
fn is_in_order(command: &Value) -> bool {
    let names = ["added_at", "scheduled_at", "delivered_at", "acked_at", "handled_at"];
    let moments: Vec<_> =
        names.iter().filter_map(|name| command[name].as_str()).map(Timestamp::parse).collect();
    moments.iter().all(Result::is_ok)
        && moments.windows(2).all(|pair| pair[0].as_ref().ok() <= pair[1].as_ref().ok())
}

impl Ledger {
    /// Those that were accepted: token and id.
    pub fn accepted(&self) -> impl Iterator<Item = (&str, &str)> {
        self.asked.iter().filter_map(|(token, asked)| match &asked.answer {
            Answer::Accepted(id) => Some((token.as_str(), id.as_str())),
            _ => None,
        })
    }

    /// All that is wrong with what can be seen.
    pub fn findings(&self, seen: &Seen) -> BTreeSet<Finding> {
        let mut findings = BTreeSet::new();
        let (ran, handed) = (count(&seen.ran), count(&seen.handed));
        let tokens: Vec<String> =
            seen.listed.iter().map(|command| token_of(command).to_owned()).collect();
        let listed = count(&tokens);
        for counts in [&ran, &handed] {
            for (token, times) in counts.iter().filter(|(_, times)| **times > 1) {
                findings.insert(Finding::Repeated((*token).to_owned(), *times));
            }
        }
        for (token, asked) in &self.asked {
            let times = listed.get(token.as_str()).copied().unwrap_or(0);
            let went_out = ran.contains_key(token.as_str()) || handed.contains_key(token.as_str());
            if times > 1 {
                findings.insert(Finding::Twins(token.clone()));
            }
            match &asked.answer {
                Answer::Accepted(id) => {
                    let found = seen.by_id.get(id).cloned().flatten();
                    if found.is_none_or(|command| token_of(&command) != token) {
                        findings.insert(Finding::Lost(token.clone()));
                    }
                    if times != 1 {
                        findings.insert(Finding::NotListed(token.clone()));
                    }
                }
                Answer::Refused if times > 0 || went_out => {
                    findings.insert(Finding::NotRefused(token.clone()));
                }
                Answer::Refused | Answer::Unknown => {}
            }
        }
        for command in seen.listed.iter().chain(seen.by_id.values().flatten()) {
            let token = token_of(command).to_owned();
            let went_out = ran.contains_key(token.as_str()) || handed.contains_key(token.as_str());
            match command["status"]["text"].as_str().unwrap_or_default() {
                "Success" if !went_out => drop(findings.insert(Finding::NeverRan(token.clone()))),
                "Cancelled" | "Expired" if went_out => {
                    findings.insert(Finding::RanUnsent(token.clone()));
                }
                _ => {}
            }
            if seen.is_settled && !is_over(command) {
                findings.insert(Finding::Unended(token.clone()));
            }
            if !is_in_order(command) {
                findings.insert(Finding::OutOfOrder(token.clone()));
            }
            match self.asked.get(&token) {
                None => drop(findings.insert(Finding::Unasked(token))),
                Some(asked) if command["server"] != asked.server => {
                    findings.insert(Finding::Elsewhere(token));
                }
                Some(_) => {}
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn command(token: &str, status: &str) -> Value {
        let at = |second: u32| format!("2026-11-21T12:00:0{second}.000000+00:00");
        json!({
            "id": format!("id-{token}"), "server": "web-1", "line": format!("echo {token} >> ran"), "status": {"text": status},
            "added_at": at(0), "scheduled_at": at(0), "delivered_at": at(1), "acked_at": at(1), "handled_at": at(2),
        })
    }

    /// Two that were accepted, one that was refused and one that nobody knows of; and all as it
    /// should be.
    fn fair() -> (Ledger, Seen) {
        let mut ledger = Ledger::default();
        let accepted = |token: &str| Answer::Accepted(format!("id-{token}"));
        for (token, answer) in [
            ("a", accepted("a")),
            ("b", accepted("b")),
            ("c", Answer::Refused),
            ("d", Answer::Unknown),
        ] {
            let asked = Asked { server: "web-1".into(), at: farhand_tests::now(), answer };
            ledger.asked.insert(token.into(), asked);
        }
        let commands = [command("a", "Success"), command("b", "Failed")];
        let by_id = ["a", "b"].into_iter().zip(&commands);
        let seen = Seen {
            by_id: by_id
                .map(|(token, command)| (format!("id-{token}"), Some(command.clone())))
                .collect(),
            listed: commands.to_vec(),
            ran: vec!["a".into(), "b".into()],
            handed: vec![],
            is_settled: true,
        };
        (ledger, seen)
    }

    /// What is found when something is not as it should be.
    #[track_caller]
    fn is_found(forge: impl FnOnce(&mut Ledger, &mut Seen), expected: &[Finding]) {
        let (mut ledger, mut seen) = fair();
        forge(&mut ledger, &mut seen);
        assert_eq!(ledger.findings(&seen).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_as_it_should_be_has_no_findings() {
        is_found(|_, _| {}, &[]);
        // Nobody knows what became of it: it may be there.
        is_found(|_, seen| seen.listed.push(command("d", "Stuck")), &[]);
    }

    #[test]
    fn a_loss_is_found() {
        is_found(
            |_, seen| drop(seen.by_id.insert("id-a".into(), None)),
            &[Finding::Lost("a".into())],
        );
        is_found(|_, seen| drop(seen.by_id.remove("id-a")), &[Finding::Lost("a".into())]);
        is_found(|_, seen| drop(seen.listed.pop()), &[Finding::NotListed("b".into())]);
        is_found(|_, seen| seen.ran.retain(|token| token != "a"), &[Finding::NeverRan("a".into())]);
        let unended = |seen: &mut Seen| {
            for command in seen.by_id.values_mut().flatten().chain(&mut seen.listed) {
                command["handled_at"] = Value::Null;
                command["status"]["text"] = json!("Acked");
            }
        };
        is_found(
            |_, seen| unended(seen),
            &[Finding::Unended("a".into()), Finding::Unended("b".into())],
        );
        // While it is waited for, that is not wrong.
        is_found(
            |_, seen| {
                unended(seen);
                seen.is_settled = false;
            },
            &[],
        );
        assert!(Finding::Lost("a".into()).is_loss() && !Finding::Lost("a".into()).is_repeat());
    }

    #[test]
    fn a_repeat_is_found() {
        is_found(|_, seen| seen.ran.push("b".into()), &[Finding::Repeated("b".into(), 2)]);
        is_found(
            |_, seen| seen.handed.extend(["a".into(), "a".into()]),
            &[Finding::Repeated("a".into(), 2)],
        );
        let twins = |_: &mut Ledger, seen: &mut Seen| {
            seen.listed.extend([command("d", "Failed"), command("d", "Failed")])
        };
        is_found(twins, &[Finding::Twins("d".into())]);
        assert!(
            Finding::Repeated("a".into(), 2).is_repeat() && !Finding::Twins("a".into()).is_loss()
        );
    }

    #[test]
    fn what_else_must_not_be_is_found() {
        is_found(
            |_, seen| seen.listed.push(command("c", "Stuck")),
            &[Finding::NotRefused("c".into())],
        );
        is_found(|_, seen| seen.ran.push("c".into()), &[Finding::NotRefused("c".into())]);
        is_found(
            |_, seen| seen.listed.push(command("e", "Stuck")),
            &[Finding::Unasked("e".into())],
        );
        is_found(
            |_, seen| seen.listed[1]["status"]["text"] = json!("Expired"),
            &[Finding::RanUnsent("b".into())],
        );
        is_found(
            |_, seen| seen.listed[1]["server"] = json!("web-2"),
            &[Finding::Elsewhere("b".into())],
        );
        is_found(
            |_, seen| seen.listed[0]["acked_at"] = json!("2026-11-21T12:00:03.000000+00:00"),
            &[Finding::OutOfOrder("a".into())],
        );
    }
}
