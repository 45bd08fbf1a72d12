//! What the faults came to, for `docs/reliability.md`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;

use serde_json::json;

/// The figures of one kind of fault.
#[derive(Clone, Default, Debug)]
pub struct Figures {
    kind: &'static str,
    /// Faults that were done.
    pub faults: usize,
    /// Commands that were accepted.
    pub accepted: usize,
    /// Commands that were refused.
    pub refused: usize,
    /// Requests without an answer, or with 500.
    pub unanswered: usize,
    /// How often something ran, or was handed to a scripted agent.
    pub ran: usize,
    /// Commands that were accepted and then not found, or did not end.
    pub losses: usize,
    /// Commands that ran, or were handed out, twice.
    pub repeats: usize,
    /// How many commands ended how.
    pub ends: BTreeMap<String, usize>,
}

impl Figures {
    /// Those of a kind of fault, before the first.
    pub fn of(kind: &'static str) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Leaves them where `npm run faults` looks for them.
    pub fn write(&self) {
        let Ok(file) = std::env::var("FARHAND_FAULTS_FIGURES") else { return };
        let line = json!({
            "kind": self.kind, "faults": self.faults, "accepted": self.accepted, "refused": self.refused,
            "unanswered": self.unanswered, "ran": self.ran, "losses": self.losses, "repeats": self.repeats,
            "ends": self.ends,
        });
        let mut file = File::options().create(true).append(true).open(file).unwrap();
        // One write, as others write beside this.
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}
