//! The results of the fault tests, for `docs/reliability.md`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;

use serde_json::json;

/// The results for one kind of fault.
#[derive(Clone, Default, Debug)]
pub struct Figures {
    kind: &'static str,
    /// How many faults were injected.
    pub faults: usize,
    /// How many commands were accepted.
    pub accepted: usize,
    /// How many commands were refused.
    pub refused: usize,
    /// How many requests got no response, or a 500.
    pub unanswered: usize,
    /// How many times a command ran, or was delivered to a scripted agent.
    pub ran: usize,
    /// How many accepted commands were not found afterwards, or did not end.
    pub losses: usize,
    /// How many commands ran, were delivered or were created more than once.
    pub repeats: usize,
    /// How many commands ended in each state.
    pub ends: BTreeMap<String, usize>,
}

impl Figures {
    pub fn new(kind: &'static str) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Appends the figures to the file that `npm run faults` reads.
    pub fn write(&self) {
        let Ok(file) = std::env::var("FARHAND_FAULTS_FIGURES") else { return };
        let line = json!({
            "kind": self.kind, "faults": self.faults, "accepted": self.accepted, "refused": self.refused,
            "unanswered": self.unanswered, "ran": self.ran, "losses": self.losses, "repeats": self.repeats,
            "ends": self.ends,
        });
        let mut file = File::options().create(true).append(true).open(file).unwrap();
        // A single write, because concurrent tests append to the same file.
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}
