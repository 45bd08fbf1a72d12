//! Requests for batches: one command on many servers (contract 13).
//!
//! | file | job |
//! |---|---|
//! | `selection` | which servers a request selects |
//! | `amount` | numbers of targets, or percentages of all targets |
//! | `authorize` | whether the caller may run the batch on the selected servers |

mod amount;
mod authorize;
mod selection;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use amount::Amount;
pub use authorize::{BatchPlan, Candidate, Candidates, PlannedTarget, authorize};
pub use selection::TargetSelection;

use crate::audit::event::add_ids;
use crate::command::lifecycle::DEFAULT_EXPIRY;
use crate::command::request::{CommandSpec, MAX_TARGETS, read_times};
use crate::error::Error;
use crate::http::fields::Fields;
use crate::secret::SecretKey;
use crate::time::Timestamp;

/// The default of `max_concurrency`.
const DEFAULT_CONCURRENCY: Amount = Amount::Targets(50);
/// Maximum length of a batch's name, in characters.
const MAX_NAME: usize = 128;

/// The error of a selection of more than [`MAX_TARGETS`] servers.
fn too_many_targets() -> Error {
    Error::field("targets", format!("A batch has at most {MAX_TARGETS} targets."))
}

/// What happens to targets whose agent is not connected (contract 13.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OfflineTargets {
    /// They end skipped.
    Skip,
    /// They wait for their agent until the batch's `expires_at`.
    Queue,
    /// The request is refused if a target is offline. A target whose agent disconnects later is
    /// skipped.
    Reject,
}

impl OfflineTargets {
    /// The name in requests, responses and D1.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Queue => "queue",
            Self::Reject => "reject",
        }
    }
}

/// What a batch runs, where and how: the fields that batches and schedules share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchSpec {
    /// What to run.
    pub command: CommandSpec,
    /// Where to run it.
    pub targets: TargetSelection,
    /// Maximum number of commands that run concurrently.
    pub max_concurrency: Amount,
    /// Maximum number of failures, before no further command starts; `None`: no limit.
    pub max_errors: Option<Amount>,
    /// Whether the batch starts with one command, and then doubles the number.
    pub ramp: bool,
    /// What happens to targets whose agent is not connected.
    pub on_offline: OfflineTargets,
}

impl BatchSpec {
    /// Reads the fields. Returns `None` if one of them was rejected.
    pub fn read(fields: &mut Fields) -> Option<Self> {
        let command = CommandSpec::read(fields);
        let targets = TargetSelection::read(fields);
        let max_concurrency = Amount::read(fields, "max_concurrency", 1..=MAX_TARGETS as u32, 1)
            .unwrap_or(DEFAULT_CONCURRENCY);
        let max_errors = Amount::read(fields, "max_errors", 0..=u32::MAX, 0);
        let ramp = fields.optional_boolean("ramp").unwrap_or(false);
        let on_offline = match fields.value("on_offline").map(Value::as_str) {
            None | Some(Some("skip")) => OfflineTargets::Skip,
            Some(Some("queue")) => OfflineTargets::Queue,
            Some(Some("reject")) => OfflineTargets::Reject,
            Some(_) => {
                fields.reject("on_offline", "Choose skip, queue or reject.");
                return None;
            }
        };
        let (command, targets) = command.zip(targets)?;
        Some(Self { command, targets, max_concurrency, max_errors, ramp, on_offline })
    }
}

impl BatchSpec {
    /// The details of an audit event about a batch: what runs, where and how. `total`: the number
    /// of targets.
    ///
    /// # Errors
    /// None in practice: an environment can be written as JSON.
    pub fn audit_details(&self, total: usize, key: &SecretKey) -> Result<Value, Error> {
        let mut details = self.command.audit_details(key)?;
        details["total"] = json!(total);
        details["max_concurrency"] = json!(self.max_concurrency);
        details["max_errors"] = json!(self.max_errors);
        details["on_offline"] = json!(self.on_offline);
        let TargetSelection { servers, groups, selector, all } = &self.targets;
        details["targets"] = json!({"selector": selector, "all": all});
        add_ids(&mut details["targets"], "servers", servers);
        add_ids(&mut details["targets"], "groups", groups);
        Ok(details)
    }
}

/// A valid request for a batch. Servers, accounts and permissions are not checked yet.
#[derive(Clone, Debug)]
pub struct NewBatch {
    /// What to run, where and how.
    pub spec: BatchSpec,
    /// A name for people; empty: no name.
    pub name: String,
    /// Whether to select and check the targets only, and create nothing.
    pub dry_run: bool,
    /// When to start; `None` or a past time: now.
    pub scheduled_at: Option<Timestamp>,
    /// The latest time at which a target starts; `None`: an hour after the start.
    pub expires_at: Option<Timestamp>,
}

impl NewBatch {
    /// Reads a request for a batch. `now` is the time of the request. `max_days_ahead` limits
    /// `scheduled_at`.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(mut fields: Fields, now: Timestamp, max_days_ahead: i64) -> Result<Self, Error> {
        let spec = BatchSpec::read(&mut fields);
        let name = fields.optional_text("name", 0..=MAX_NAME).unwrap_or_default();
        let dry_run = fields.optional_boolean("dry_run").unwrap_or(false);
        let (scheduled_at, expires_at) = read_times(&mut fields, now, max_days_ahead);
        if fields.has("server") {
            fields.reject("server", "A batch has targets instead.");
        }
        let spec = fields.finish_with(spec)?;
        Ok(Self { spec, name, dry_run, scheduled_at, expires_at })
    }

    /// When the batch starts, and the latest time at which one of its targets starts.
    pub fn times(&self, now: Timestamp) -> (Timestamp, Timestamp) {
        let start = self.scheduled_at.map_or(now, |scheduled| scheduled.max(now));
        (start, self.expires_at.unwrap_or_else(|| start.plus(DEFAULT_EXPIRY)))
    }
}
