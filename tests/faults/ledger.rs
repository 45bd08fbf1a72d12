//! A ledger of the requested commands, kept by the test, and its comparison with what the service
//! and the agents show at the end (contract 8).

use std::collections::{BTreeMap, BTreeSet};

use farhand_domain::time::Timestamp;
use serde_json::Value;

/// How the service responded to the request for a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RequestOutcome {
    /// 201, with this id: the service must not lose the command.
    Accepted(String),
    /// An error: the service must not have stored the command.
    Refused,
    /// No response, or 500: the service may have stored the command, but only once.
    Unknown,
}

/// A command that was requested.
#[derive(Clone, Debug)]
pub struct RequestedCommand {
    pub server: String,
    /// The time of the request, by this machine's clock.
    pub at: Timestamp,
    pub answer: RequestOutcome,
}

/// All requested commands, by token. A token is unique and part of the command's line.
#[derive(Clone, Default, Debug)]
pub struct Ledger {
    pub requested: BTreeMap<String, RequestedCommand>,
}

/// What the service and the agents show at the end of the test.
#[derive(Clone, Default, Debug)]
pub struct Observation {
    /// The response to a GET for each accepted command, by id. `None` stands for a 404.
    pub by_id: BTreeMap<String, Option<Value>>,
    /// All commands in the list.
    pub listed: Vec<Value>,
    /// The token of each run, as written by the commands' own processes.
    pub ran: Vec<String>,
    /// The token of each delivery to a scripted agent.
    pub delivered: Vec<String>,
    /// True if every command has had enough time to end.
    pub is_settled: bool,
}

/// A violation of contract 8. The field is the token of the command.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Finding {
    /// A GET of an accepted command does not return it.
    Lost(String),
    /// An accepted command is not in the list exactly once.
    NotListed(String),
    /// A command succeeded without running.
    NeverRan(String),
    /// A command did not end.
    Unended(String),
    /// A command ran, or was delivered, more than once.
    Repeated(String, usize),
    /// One request created several commands.
    Twins(String),
    /// A refused command exists or ran.
    NotRefused(String),
    /// A listed command was never requested.
    Unasked(String),
    /// A command is on another server than the requested one.
    Elsewhere(String),
    /// The timestamps are not in the order of contract 8.4.
    OutOfOrder(String),
    /// The status says that the command was never delivered, but it ran or was delivered.
    RanUnsent(String),
}

impl Finding {
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

    /// True if an accepted command was lost.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::NotListed(_) | Self::NeverRan(_) | Self::Unended(_))
    }

    /// True if a command ran, was delivered or was created more than once.
    pub fn is_repeat(&self) -> bool {
        matches!(self, Self::Repeated(..) | Self::Twins(_))
    }
}

/// The token in a command's line.
pub fn token_of(command: &Value) -> &str {
    command["line"].as_str().and_then(|line| line.split(' ').nth(1)).unwrap_or_default()
}

pub fn has_ended(command: &Value) -> bool {
    command["handled_at"].is_string()
}

fn count<'a>(tokens: impl IntoIterator<Item = &'a String>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for token in tokens {
        *counts.entry(token.as_str()).or_insert(0) += 1;
    }
    counts
}

/// True if the timestamps of a command are in order.
fn is_in_order(command: &Value) -> bool {
    let names = ["added_at", "scheduled_at", "delivered_at", "acked_at", "handled_at"];
    let moments: Vec<_> =
        names.iter().filter_map(|name| command[name].as_str()).map(Timestamp::parse).collect();
    moments.iter().all(Result::is_ok)
        && moments.windows(2).all(|pair| pair[0].as_ref().ok() <= pair[1].as_ref().ok())
}

impl Ledger {
    /// The token and id of each accepted command.
    pub fn accepted(&self) -> impl Iterator<Item = (&str, &str)> {
        self.requested.iter().filter_map(|(token, requested)| match &requested.answer {
            RequestOutcome::Accepted(id) => Some((token.as_str(), id.as_str())),
            _ => None,
        })
    }

    /// All violations that the observation shows.
    pub fn findings(&self, observed: &Observation) -> BTreeSet<Finding> {
        let mut findings = BTreeSet::new();
        let (ran, delivered) = (count(&observed.ran), count(&observed.delivered));
        let tokens: Vec<String> =
            observed.listed.iter().map(|command| token_of(command).to_owned()).collect();
        let listed = count(&tokens);
        for counts in [&ran, &delivered] {
            for (token, times) in counts.iter().filter(|(_, times)| **times > 1) {
                findings.insert(Finding::Repeated((*token).to_owned(), *times));
            }
        }
        for (token, requested) in &self.requested {
            let times = listed.get(token.as_str()).copied().unwrap_or(0);
            let was_delivered =
                ran.contains_key(token.as_str()) || delivered.contains_key(token.as_str());
            if times > 1 {
                findings.insert(Finding::Twins(token.clone()));
            }
            match &requested.answer {
                RequestOutcome::Accepted(id) => {
                    let found = observed.by_id.get(id).cloned().flatten();
                    if found.is_none_or(|command| token_of(&command) != token) {
                        findings.insert(Finding::Lost(token.clone()));
                    }
                    if times != 1 {
                        findings.insert(Finding::NotListed(token.clone()));
                    }
                }
                RequestOutcome::Refused if times > 0 || was_delivered => {
                    findings.insert(Finding::NotRefused(token.clone()));
                }
                RequestOutcome::Refused | RequestOutcome::Unknown => {}
            }
        }
        for command in observed.listed.iter().chain(observed.by_id.values().flatten()) {
            let token = token_of(command).to_owned();
            let was_delivered =
                ran.contains_key(token.as_str()) || delivered.contains_key(token.as_str());
            match command["status"]["text"].as_str().unwrap_or_default() {
                "Success" if !was_delivered => {
                    findings.insert(Finding::NeverRan(token.clone()));
                }
                "Cancelled" | "Expired" if was_delivered => {
                    findings.insert(Finding::RanUnsent(token.clone()));
                }
                _ => {}
            }
            if observed.is_settled && !has_ended(command) {
                findings.insert(Finding::Unended(token.clone()));
            }
            if !is_in_order(command) {
                findings.insert(Finding::OutOfOrder(token.clone()));
            }
            match self.requested.get(&token) {
                None => drop(findings.insert(Finding::Unasked(token))),
                Some(requested) if command["server"] != requested.server => {
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

    /// A ledger with two accepted commands, a refused one and one with an unknown outcome. Also an
    /// observation without violations.
    fn example() -> (Ledger, Observation) {
        let mut ledger = Ledger::default();
        let accepted = |token: &str| RequestOutcome::Accepted(format!("id-{token}"));
        for (token, answer) in [
            ("a", accepted("a")),
            ("b", accepted("b")),
            ("c", RequestOutcome::Refused),
            ("d", RequestOutcome::Unknown),
        ] {
            let requested =
                RequestedCommand { server: "web-1".into(), at: farhand_tests::now(), answer };
            ledger.requested.insert(token.into(), requested);
        }
        let commands = [command("a", "Success"), command("b", "Failed")];
        let by_id = ["a", "b"].into_iter().zip(&commands);
        let observed = Observation {
            by_id: by_id
                .map(|(token, command)| (format!("id-{token}"), Some(command.clone())))
                .collect(),
            listed: commands.to_vec(),
            ran: vec!["a".into(), "b".into()],
            delivered: vec![],
            is_settled: true,
        };
        (ledger, observed)
    }

    /// Modifies the example, and asserts the findings.
    #[track_caller]
    fn assert_findings(modify: impl FnOnce(&mut Ledger, &mut Observation), expected: &[Finding]) {
        let (mut ledger, mut observed) = example();
        modify(&mut ledger, &mut observed);
        assert_eq!(ledger.findings(&observed).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn correct_behaviour_has_no_findings() {
        assert_findings(|_, _| {}, &[]);
        // After an unknown outcome, the command may exist.
        assert_findings(|_, observed| observed.listed.push(command("d", "Stuck")), &[]);
    }

    #[test]
    fn losses_are_found() {
        assert_findings(
            |_, observed| drop(observed.by_id.insert("id-a".into(), None)),
            &[Finding::Lost("a".into())],
        );
        assert_findings(
            |_, observed| drop(observed.by_id.remove("id-a")),
            &[Finding::Lost("a".into())],
        );
        assert_findings(
            |_, observed| drop(observed.listed.pop()),
            &[Finding::NotListed("b".into())],
        );
        assert_findings(
            |_, observed| observed.ran.retain(|token| token != "a"),
            &[Finding::NeverRan("a".into())],
        );
        let unended = |observed: &mut Observation| {
            for command in observed.by_id.values_mut().flatten().chain(&mut observed.listed) {
                command["handled_at"] = Value::Null;
                command["status"]["text"] = json!("Acked");
            }
        };
        assert_findings(
            |_, observed| unended(observed),
            &[Finding::Unended("a".into()), Finding::Unended("b".into())],
        );
        // A command that has not ended is not a violation before `is_settled`.
        assert_findings(
            |_, observed| {
                unended(observed);
                observed.is_settled = false;
            },
            &[],
        );
        assert!(Finding::Lost("a".into()).is_loss() && !Finding::Lost("a".into()).is_repeat());
    }

    #[test]
    fn repeats_are_found() {
        assert_findings(
            |_, observed| observed.ran.push("b".into()),
            &[Finding::Repeated("b".into(), 2)],
        );
        assert_findings(
            |_, observed| observed.delivered.extend(["a".into(), "a".into()]),
            &[Finding::Repeated("a".into(), 2)],
        );
        let twins = |_: &mut Ledger, observed: &mut Observation| {
            observed.listed.extend([command("d", "Failed"), command("d", "Failed")])
        };
        assert_findings(twins, &[Finding::Twins("d".into())]);
        assert!(
            Finding::Repeated("a".into(), 2).is_repeat() && !Finding::Twins("a".into()).is_loss()
        );
    }

    #[test]
    fn other_violations_are_found() {
        assert_findings(
            |_, observed| observed.listed.push(command("c", "Stuck")),
            &[Finding::NotRefused("c".into())],
        );
        assert_findings(
            |_, observed| observed.ran.push("c".into()),
            &[Finding::NotRefused("c".into())],
        );
        assert_findings(
            |_, observed| observed.listed.push(command("e", "Stuck")),
            &[Finding::Unasked("e".into())],
        );
        assert_findings(
            |_, observed| observed.listed[1]["status"]["text"] = json!("Expired"),
            &[Finding::RanUnsent("b".into())],
        );
        assert_findings(
            |_, observed| observed.listed[1]["server"] = json!("web-2"),
            &[Finding::Elsewhere("b".into())],
        );
        assert_findings(
            |_, observed| {
                observed.listed[0]["acked_at"] = json!("2026-11-21T12:00:03.000000+00:00")
            },
            &[Finding::OutOfOrder("a".into())],
        );
    }
}
