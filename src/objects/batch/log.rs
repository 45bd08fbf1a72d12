//! The object's own storage: its identity, a kill, and the events for `stream/`.
//!
//! Events are collected in memory and stored together, one row per flush. After a crash the object
//! compares the states in D1 with the last stored events, and adds what is missing.

use std::collections::HashMap;

use farhand_domain::batch::command_id;
use farhand_domain::batch::event::Batch;
use farhand_domain::batch::target::TargetState;
use farhand_domain::time::Timestamp;
use farhand_sql::object::batch;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use worker::SqlStorage;

use super::calls::{BatchEvent, Followed};
use crate::objects::sqlite;

/// Maximum number of events in one row and in one response.
const MAX_EVENTS: usize = 1_000;

/// Which batch the object drives.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The workspace's id.
    pub workspace_id: i64,
    /// The batch's id.
    pub batch: Uuid,
    /// The name of the user who killed the batch, if it was killed.
    pub kill: Option<String>,
}

/// The events of a batch.
#[derive(Debug, Default)]
pub struct Log {
    /// The last event of each server: its state.
    states: HashMap<Uuid, TargetState>,
    last: u64,
    /// Events that are not stored yet.
    unstored: Vec<BatchEvent>,
    /// Whether the last event is the batch's end.
    has_end: bool,
}

/// Reads the identity; `None`: the object was never used, or was wiped.
pub fn identity(sql: &SqlStorage) -> worker::Result<Option<Identity>> {
    #[derive(Deserialize)]
    struct Row {
        document: String,
    }
    if !sqlite::has_rows(sql, batch::find_tables())? {
        return Ok(None);
    }
    let found: Vec<Row> = sqlite::rows(sql, batch::identity())?;
    Ok(found.first().map(|row| serde_json::from_str(&row.document)).transpose()?)
}

/// Stores the identity.
pub fn store_identity(sql: &SqlStorage, identity: &Identity) -> worker::Result<()> {
    sqlite::exec_all(sql, batch::schema())?;
    let document = serde_json::to_string(identity)?;
    sqlite::exec(sql, batch::save_identity(document)).map(drop)
}

impl Log {
    /// Reads the stored events.
    pub fn load(sql: &SqlStorage) -> worker::Result<Self> {
        let mut log = Self::default();
        for event in stored(sql, 0, None)? {
            log.last = event.seq;
            match event.server {
                Some(server) => _ = log.states.insert(server, state(&event.state)),
                None => log.has_end = true,
            }
        }
        Ok(log)
    }

    /// Adds events for the targets at these positions whose state is new, and for the batch's end.
    pub fn record(
        &mut self,
        id: Uuid,
        added_at: Timestamp,
        batch: &Batch,
        changed: impl IntoIterator<Item = u32>,
        now: Timestamp,
    ) {
        // The end is the last event, even if a late result follows.
        if self.has_end {
            return;
        }
        for position in changed {
            let Some(target) = batch.targets.get(position as usize) else { continue };
            let before = self.states.get(&target.server);
            if before.map_or(target.state == TargetState::Pending, |before| *before == target.state)
            {
                continue;
            }
            self.states.insert(target.server, target.state);
            let command = target.started.as_ref().map(|_| command_id(added_at, id, target.server));
            self.add(BatchEvent {
                seq: 0,
                server: Some(target.server),
                state: target.state.as_str().to_owned(),
                command,
                exit_code: target.exit_code,
                at: target.at.unwrap_or(now),
            });
        }
        if let Some(at) = batch.finished_at {
            self.has_end = true;
            let state = batch.state.as_str().to_owned();
            self.add(BatchEvent {
                seq: 0,
                server: None,
                state,
                command: None,
                exit_code: None,
                at,
            });
        }
    }

    fn add(&mut self, event: BatchEvent) {
        self.last += 1;
        self.unstored.push(BatchEvent { seq: self.last, ..event });
    }

    /// Whether some events are not stored yet.
    pub fn is_unstored(&self) -> bool {
        !self.unstored.is_empty()
    }

    /// Stores the collected events.
    pub fn store(&mut self, sql: &SqlStorage) -> worker::Result<()> {
        for events in std::mem::take(&mut self.unstored).chunks(MAX_EVENTS) {
            let Some(last) = events.last() else { continue };
            sqlite::exec(sql, batch::insert_events(last.seq, serde_json::to_string(events)?))?;
        }
        Ok(())
    }

    /// The stored events after a number.
    pub fn follow(&self, sql: &SqlStorage, after: u64) -> worker::Result<Followed> {
        let events = stored(sql, after, Some(MAX_EVENTS))?;
        let last = events.last().map_or(after, |event| event.seq);
        Ok(Followed { events, is_finished: self.has_end && last >= self.last })
    }
}

/// Reads stored events after a number.
fn stored(sql: &SqlStorage, after: u64, limit: Option<usize>) -> worker::Result<Vec<BatchEvent>> {
    #[derive(Deserialize)]
    struct Row {
        events: String,
    }
    let cursor = sqlite::exec(sql, batch::events_after(after))?;
    let mut events = Vec::new();
    for row in cursor.next::<Row>() {
        let stored: Vec<BatchEvent> = serde_json::from_str(&row?.events)?;
        events.extend(stored.into_iter().filter(|event| event.seq > after));
        if limit.is_some_and(|limit| events.len() >= limit) {
            events.truncate(limit.unwrap_or_default());
            break;
        }
    }
    Ok(events)
}

fn state(text: &str) -> TargetState {
    serde_json::from_value(text.into()).unwrap_or(TargetState::Pending)
}
