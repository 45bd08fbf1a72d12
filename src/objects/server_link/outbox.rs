//! What D1 is told of a server and its commands: all that it lacks in one round trip, and again until it has it.

use std::collections::HashSet;
use std::time::Duration;

use farhand_domain::link::stored_command::{Phase, StoredCommand};
use farhand_domain::time::Timestamp;
use serde_json::json;

use super::commands_table::Unflushed;
use super::d1;
use super::d1_server;
use super::object::{BATCH, ServerLink, fact, now, wake};
use crate::objects::audit_sealer;
use crate::platform::log;

/// How long changes gather before they go to D1 together, in milliseconds. Lists follow within a second (contract 8).
pub(super) const GATHER: i64 = 300;
/// How long a command that is under way waits for its next report, to go to D1 together with it, in milliseconds: most are over
/// within a moment. What remains of the second is for the way there.
pub(super) const GATHER_REPORTS: i64 = 800;
/// After how many failures in a row D1 is told of each thing alone, so that one that it refuses holds no other up.
const TOGETHER: u32 = 3;
/// How long a flush may take before it is taken for dead, in seconds.
const FLUSH_WITHIN: i64 = 60;
/// The slowest that a failing flush is tried again, in seconds.
const SLOWEST_RETRY: i64 = 60;

/// Something that D1 lacks.
enum Lacking {
    /// The latest of a command.
    Change(StoredCommand),
    /// That a command was withdrawn.
    Removal(StoredCommand),
    /// What is known of the host, by its revision.
    Facts(i64),
}

impl ServerLink {
    /// Notes that D1 lacks something. What comes within the next moments goes along.
    pub(super) fn flush_soon(&self) -> worker::Result<()> {
        self.flush_at(now().plus_millis(GATHER))
    }

    /// Has D1 told by a time at the latest, unless it was told in vain and is to be left alone for longer.
    pub(super) fn flush_at(&self, at: Timestamp) -> worker::Result<()> {
        let tables = self.tables();
        let farthest = now().plus_millis(GATHER_REPORTS);
        if tables.wake(wake::FLUSH)?.is_none_or(|planned| at < planned && planned <= farthest) {
            tables.set_wake(wake::FLUSH, Some(at))?;
        }
        Ok(())
    }

    /// Writes to D1 what it lacks, one flush after the other.
    pub(super) async fn flush(&self) -> worker::Result<()> {
        while self.flushing_since.get().is_some_and(|since| since.plus_seconds(FLUSH_WITHIN) > now()) {
            self.flushed.wait((), Duration::from_secs(1)).await;
        }
        if !self.is_used()? {
            return Ok(());
        }
        let _flushing = Flushing::begin(self);
        self.flush_now().await
    }

    /// Writes to D1 what it lacks, all in one round trip. A failure is tried again later, slower each time.
    async fn flush_now(&self) -> worker::Result<()> {
        let tables = self.tables();
        let (facts, known) = (self.facts()?, self.known()?);
        let (mut lacking, mut workspaces) = (Vec::new(), HashSet::new());
        for stored in tables.unflushed_commands(now().plus_millis(-GATHER_REPORTS), BATCH)? {
            if stored.phase == Phase::Withdrawing || !stored.events.is_empty() {
                workspaces.insert(stored.workspace_id);
            }
            lacking.push(match stored.phase {
                Phase::Withdrawing => {
                    // Inputs that cannot be decrypted stay counted until the day is over.
                    let inputs = self.open_inputs(&stored).unwrap_or(None);
                    let bytes = d1::bytes_of(&stored.command, inputs.as_ref());
                    (d1::delete_command(stored.workspace_id, stored.command.id, bytes)?, Lacking::Removal(stored))
                }
                _ => (d1::update_command(&stored, &tables.output(&stored)?), Lacking::Change(stored)),
            });
        }
        if let Some(known) = &known
            && facts.revision > facts.flushed
        {
            if !facts.events.is_empty() {
                workspaces.insert(known.workspace_id);
            }
            let update = d1_server::update_server(known.workspace_id, known.server, &facts);
            lacking.push((update, Lacking::Facts(facts.revision)));
        }
        let failures = tables.fact::<u32>(fact::FAILURES)?.unwrap_or(0);
        let groups: Vec<Vec<_>> =
            if failures < TOGETHER { vec![lacking] } else { lacking.into_iter().map(|one| vec![one]).collect() };
        let mut failure = None;
        for group in groups {
            let (statements, told): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            let sent = d1::send(&self.env, statements.concat()).await;
            // Meanwhile the object may have been wiped.
            if !self.is_used()? {
                return Ok(());
            }
            match sent {
                Ok(()) => told.iter().try_for_each(|lacking| self.d1_knows(lacking))?,
                Err(error) => failure = Some(error),
            }
        }
        for workspace in workspaces {
            self.seal_later(workspace);
        }
        if let Some(error) = failure {
            log::trouble("d1_not_told", json!({"server": self.state.id().name(), "try": failures + 1}), &error);
            tables.set_fact(fact::FAILURES, &(failures + 1))?;
            let delay = (1 << (failures + 1).min(6)).min(SLOWEST_RETRY);
            return tables.set_wake(wake::FLUSH, Some(now().plus_seconds(delay)));
        }
        if failures > 0 {
            tables.set_fact(fact::FAILURES, &0)?;
        }
        let facts = self.facts()?;
        let lacks_facts = known.is_some() && facts.revision > facts.flushed;
        let next = match tables.next_unflushed()? {
            _ if lacks_facts => Some(now()),
            Some(Unflushed::Now) => Some(now()),
            Some(Unflushed::After(report)) => Some(report.plus_millis(GATHER_REPORTS)),
            None => None,
        };
        tables.set_wake(wake::FLUSH, next)
    }

    /// Notes what D1 was told.
    fn d1_knows(&self, lacking: &Lacking) -> worker::Result<()> {
        let tables = self.tables();
        match lacking {
            Lacking::Change(stored) => tables.mark_flushed(stored),
            Lacking::Removal(stored) => tables.delete_command(stored.command.id),
            Lacking::Facts(revision) => {
                let mut facts = self.facts()?;
                facts.flushed = *revision;
                facts.events.retain(|noted| noted.revision > *revision);
                tables.set_fact(fact::SERVER, &facts)
            }
        }
    }

    /// Has audit events sealed that D1 was told of. Nothing waits for that.
    pub(super) fn seal_later(&self, workspace: i64) {
        let env = self.env.clone();
        self.state.wait_until(async move { audit_sealer::tell(&env, workspace).await });
    }
}

/// The time in which a flush runs. It may be dropped before its end.
struct Flushing<'a>(&'a ServerLink);

impl<'a> Flushing<'a> {
    fn begin(link: &'a ServerLink) -> Self {
        link.flushing_since.set(Some(now()));
        Self(link)
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.flushing_since.set(None);
        self.0.flushed.tell(&());
    }
}
