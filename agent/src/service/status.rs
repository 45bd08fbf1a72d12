//! `status`: whether an agent runs on this host, and whether the service accepts its key.

use std::io;
use std::path::PathBuf;

use farhand_domain::fleet::fingerprint;
use serde_json::{Value, json};

use crate::config::Settings;
use crate::connection::client::Client;
use crate::host::facts;
use crate::journal::file::{JournalFile, JournalStatus};

/// The report of `status`.
pub struct Status {
    url: String,
    id: String,
    fingerprint: String,
    service: KeyCheck,
    /// The folder of the agent's state, and the status of its journal.
    state: Option<(PathBuf, io::Result<JournalStatus>)>,
}

/// Whether the service accepts the key.
#[derive(Clone, PartialEq, Eq, Debug)]
enum KeyCheck {
    /// The key belongs to the server with this name.
    Accepted(String),
    /// The key is wrong, or the server is deleted.
    Refused,
    /// The service sent no usable response, with the reason.
    Unreachable(String),
}

impl Status {
    /// Calls the service, and reads the journal.
    ///
    /// # Errors
    /// The reason why the settings cannot be used, in one line.
    pub async fn collect(settings: &Settings) -> Result<Self, String> {
        let client = Client::new(settings)?;
        let service = match client.get("/api/servers/servers/-/").await {
            Ok((200, server)) => match server["name"].as_str() {
                Some(name) => KeyCheck::Accepted(name.to_owned()),
                None => KeyCheck::Unreachable("the response is not a server".to_owned()),
            },
            Ok((403, _)) => KeyCheck::Refused,
            Ok((status, _)) => KeyCheck::Unreachable(format!("status {status}")),
            Err(why) => KeyCheck::Unreachable(why.0),
        };
        let state = find_state_folder(&settings.state_dirs);
        Ok(Self {
            url: settings.service.to_string(),
            id: settings.id.to_string(),
            fingerprint: fingerprint::from_key(&settings.key),
            service,
            state,
        })
    }

    fn journal(&self) -> Option<&JournalStatus> {
        self.state.as_ref()?.1.as_ref().ok()
    }

    fn runs(&self) -> bool {
        self.journal().is_some_and(|seen| seen.agent.is_some())
    }

    /// The exit code: 4 if the key is refused, otherwise 3 if no agent runs, otherwise 1 if the
    /// service is unreachable, otherwise 0.
    pub fn code(&self) -> u8 {
        match &self.service {
            KeyCheck::Refused => 4,
            _ if !self.runs() => 3,
            KeyCheck::Unreachable(_) => 1,
            KeyCheck::Accepted(_) => 0,
        }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let service = match &self.service {
            KeyCheck::Accepted(name) => format!("takes the key of {name}"),
            KeyCheck::Refused => {
                "refuses the key: it is wrong, or the server is deleted".to_owned()
            }
            KeyCheck::Unreachable(why) => format!("is unreachable: {why}"),
        };
        let (agent, commands) = match &self.state {
            Some((folder, Err(error))) => (format!("unknown: {}: {error}", folder.display()), None),
            state => {
                let seen = state.as_ref().and_then(|(_, seen)| seen.as_ref().ok());
                let agent = match seen.and_then(|seen| seen.agent) {
                    Some(Some(number)) => format!("runs, as process {number}"),
                    Some(None) => "runs".to_owned(),
                    None => "does not run".to_owned(),
                };
                let commands = seen.map(|seen| {
                    format!(
                        "{} running, {} waiting, {} unreported",
                        seen.running, seen.waiting, seen.unreported
                    )
                });
                (agent, commands)
            }
        };
        let commands = commands.unwrap_or_else(|| "unknown".to_owned());
        let (url, id, fingerprint, version) =
            (&self.url, &self.id, &self.fingerprint, facts::VERSION);
        let lines = [
            format!("url          {url}"),
            format!("server       {id}"),
            format!("fingerprint  {fingerprint}"),
            format!("service      {service}"),
            format!("agent        {agent}"),
            format!("commands     {commands}"),
            format!("version      {version}"),
        ];
        lines.map(|line| line.replace(char::is_control, " ")).join("\n")
    }

    /// The report as JSON.
    pub fn json(&self) -> Value {
        let (service, name) = match &self.service {
            KeyCheck::Accepted(name) => ("ok", Some(name)),
            KeyCheck::Refused => ("refused", None),
            KeyCheck::Unreachable(_) => ("unreachable", None),
        };
        let commands = self
            .journal()
            .map(|seen| json!({"running": seen.running, "waiting": seen.waiting, "unreported": seen.unreported}));
        json!({
            "url": self.url,
            "id": self.id,
            "fingerprint": self.fingerprint,
            "name": name,
            "service": service,
            "running": self.runs(),
            "pid": self.journal().and_then(|seen| seen.agent.flatten()),
            "commands": commands,
            "version": facts::VERSION,
        })
    }
}

/// Returns the folder that a running agent uses, otherwise the first folder that has a journal or
/// cannot be read.
fn find_state_folder(folders: &[PathBuf]) -> Option<(PathBuf, io::Result<JournalStatus>)> {
    let mut found = None;
    for folder in folders {
        match JournalFile::inspect(folder).transpose() {
            Some(Ok(seen)) if seen.agent.is_some() => return Some((folder.clone(), Ok(seen))),
            Some(seen) if found.is_none() => found = Some((folder.clone(), seen)),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::{Duration, Instant};

    use super::*;

    fn status(service: KeyCheck, agent: Option<Option<i32>>) -> Status {
        let seen = JournalStatus { agent, waiting: 1, running: 2, unreported: 3 };
        let state = Some((PathBuf::from("/state"), Ok(seen)));
        Status {
            url: "https://a.example".to_owned(),
            id: "x".to_owned(),
            fingerprint: "ABCD-2345".to_owned(),
            service,
            state,
        }
    }

    #[test]
    fn the_exit_code_shows_the_worst_problem() {
        let accepted = || KeyCheck::Accepted("web-1".to_owned());
        let unreachable = || KeyCheck::Unreachable("status 502".to_owned());
        for (service, agent, code) in [
            (accepted(), Some(Some(7)), 0),
            (unreachable(), Some(None), 1),
            (accepted(), None, 3),
            (unreachable(), None, 3),
            (KeyCheck::Refused, Some(Some(7)), 4),
            (KeyCheck::Refused, None, 4),
        ] {
            assert_eq!(status(service.clone(), agent).code(), code, "{service:?} {agent:?}");
        }
        let unknown = Status { state: None, ..status(accepted(), None) };
        assert_eq!((unknown.code(), unknown.json()["commands"].is_null()), (3, true));
    }

    #[test]
    fn the_report_is_text_or_json() {
        let status = status(KeyCheck::Accepted("web-1".to_owned()), Some(Some(7)));
        let text = status.text();
        assert!(
            text.contains("takes the key of web-1") && text.contains("runs, as process 7"),
            "{text}"
        );
        assert!(text.contains("fingerprint  ABCD-2345"), "{text}");
        assert!(text.contains("2 running, 1 waiting, 3 unreported"), "{text}");
        let expected = json!({
            "url": "https://a.example", "id": "x", "fingerprint": "ABCD-2345", "name": "web-1", "service": "ok", "running": true, "pid": 7,
            "commands": {"running": 2, "waiting": 1, "unreported": 3}, "version": facts::VERSION,
        });
        assert_eq!(status.json(), expected);
    }

    #[test]
    fn the_folder_of_a_running_agent_is_preferred() {
        let directory = tempfile::tempdir().unwrap();
        let folders: Vec<_> =
            ["none", "left", "used"].map(|name| directory.path().join(name)).into();
        assert!(find_state_folder(&folders).is_none());
        // A child that another test forks also holds the lock until it executes its program.
        let is_left = |folder: &PathBuf| {
            let until = Instant::now() + Duration::from_secs(20);
            while JournalFile::inspect(folder).unwrap().unwrap().agent.is_some() {
                assert!(Instant::now() < until, "the journal stays locked");
                std::thread::yield_now();
            }
        };
        drop(JournalFile::open(&folders[1], 0).unwrap());
        is_left(&folders[1]);
        assert_eq!(find_state_folder(&folders).unwrap().0, folders[1]);
        let used = JournalFile::open(&folders[2], 0).unwrap();
        let (folder, seen) = find_state_folder(&folders).unwrap();
        assert_eq!(
            (folder, seen.unwrap().agent),
            (folders[2].clone(), Some(Some(std::process::id() as i32)))
        );
        drop(used);
        is_left(&folders[2]);
        assert_eq!(find_state_folder(&folders).unwrap().0, folders[1]);
        for folder in &folders {
            JournalFile::remove(folder).unwrap();
            assert!(!folder.exists());
        }
    }
}
