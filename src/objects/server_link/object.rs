//! The object of a server: what it has in memory, and the names of what it stores by name.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use farhand_domain::time::Timestamp;
use uuid::Uuid;
use worker::{Env, State, durable_object};

use super::d1_server::ServerFacts;
use super::tables::Tables;
use super::waiting::Waiting;
use crate::platform;

/// How many commands go to D1, or are looked at, in one go.
pub(super) const BATCH: u32 = 50;
/// The tag of connections over which commands go out.
pub(super) const BACKHAUL: &str = "backhaul";
/// The tag of control connections.
pub(super) const CONTROL: &str = "control";

/// Names of facts.
pub(super) mod fact {
    /// Who the server is: `Known`.
    pub const KNOWN: &str = "known";
    /// True while D1 is being told of another key or of the server's end, and is the only one who knows.
    pub const UNSURE: &str = "unsure";
    /// Of which server that is: `OfServer`.
    pub const ASKED: &str = "asked";
    /// True when the server was deleted. What went out to it stays.
    pub const GONE: &str = "gone";
    /// True while the workspace is deleted, and may be undeleted.
    pub const SUSPENDED: &str = "suspended";
    /// What is known of its host: `ServerFacts`.
    pub const SERVER: &str = "server";
    /// The number of the last connection.
    pub const GENERATION: &str = "generation";
    /// The number of the open connection, or null.
    pub const OPEN: &str = "open";
    /// When the agent last reported that its process began, while it is not known whether the open connection is of that
    /// process; or null.
    pub const STARTED: &str = "started";
    /// The number of the open control connection, or null.
    pub const CONTROL_OPEN: &str = "control_open";
    /// How often connections of the backhaul replaced each other lately: `Contest`.
    pub const BACKHAUL_CONTEST: &str = "backhaul_contest";
    /// The same of the control connection.
    pub const CONTROL_CONTEST: &str = "control_contest";
    /// How often flushing failed in a row.
    pub const FAILURES: &str = "failures";
    /// The last command that D1 was given again, while there are more.
    pub const RESYNCED: &str = "resynced";
}

/// Names of wakes.
pub(super) mod wake {
    /// D1 has not everything.
    pub const FLUSH: &str = "flush";
    /// The agent is to be pinged.
    pub const PING: &str = "ping";
    /// The agent has not answered.
    pub const PONG: &str = "pong";
    /// Commands are due.
    pub const HAND_OUT: &str = "hand_out";
    /// Somebody who was telling D1 of a change of the server may have died over it.
    pub const LOOK: &str = "look";
    /// D1 is being given all commands again.
    pub const RESYNC: &str = "resync";
}

/// The object.
#[durable_object]
pub struct ServerLink {
    pub(super) state: State,
    pub(super) env: Env,
    pub(super) tables: Tables,
    /// When the alarm goes off, in milliseconds, or sooner; `None` where it is not known.
    pub(super) armed: Cell<Option<i64>>,
    /// Counts the alarms that went off, so that one that does so meanwhile is noticed.
    pub(super) alarms: Cell<u64>,
    /// Whether the tables are known to exist.
    pub(super) has_tables: Cell<bool>,
    /// Counts what wiped the object, so that an `await` in between is noticed.
    pub(super) epoch: Cell<u64>,
    /// Who waits for a command's end.
    pub(super) ended: Waiting<Uuid>,
    /// Who waits for a command's output, or its end.
    pub(super) output_came: Waiting<Uuid>,
    /// Commands that a request at hand is recording.
    pub(super) recording: RefCell<HashSet<Uuid>>,
    /// Who waits for that.
    pub(super) recorded: Waiting<Uuid>,
    /// Commands whose right was checked just now; and when they are to go out, where D1 was told that already.
    pub(super) allowed: RefCell<HashMap<Uuid, Option<Timestamp>>>,
    /// Since when rights are being checked.
    pub(super) checking_since: Cell<Option<Timestamp>>,
    /// Who waits for that.
    pub(super) checked: Waiting<()>,
    /// Idempotency-Keys that a request at hand will answer to, and since when it is at it.
    pub(super) answering: RefCell<HashMap<String, Timestamp>>,
    /// Who waits for such an answer.
    pub(super) answered: Waiting<String>,
    /// Whether all that is stored is being forgotten.
    pub(super) is_wiping: Cell<bool>,
    /// Counts the changes of the server that D1 was told of.
    pub(super) changes: Cell<u64>,
    /// Since when D1 is being told of one.
    pub(super) changing_since: Cell<Option<Timestamp>>,
    /// Who waits for that.
    pub(super) changed: Waiting<()>,
    /// Counts the pongs on the open connection.
    pub(super) pongs: Cell<u64>,
    /// Who waits for a pong, or for the connection's end.
    pub(super) ponged: Waiting<()>,
    /// Since when D1 is being sent what it lacks.
    pub(super) flushing_since: Cell<Option<Timestamp>>,
    /// Who waits for the end of that.
    pub(super) flushed: Waiting<()>,
}

/// The time.
pub(super) fn now() -> Timestamp {
    platform::now()
}

impl ServerLink {
    pub(super) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Whether this object was ever used. One that was not makes no tables, whoever asks.
    pub(super) fn is_used(&self) -> worker::Result<bool> {
        if self.is_wiping.get() {
            return Ok(false);
        }
        if !self.has_tables.get() {
            self.has_tables.set(self.tables().exist()?);
        }
        Ok(self.has_tables.get())
    }

    pub(super) fn begin_use(&self) -> worker::Result<()> {
        if !self.is_used()? {
            self.tables().create()?;
            self.has_tables.set(true);
        }
        Ok(())
    }

    pub(super) fn facts(&self) -> worker::Result<ServerFacts> {
        Ok(self.tables().fact(fact::SERVER)?.unwrap_or_default())
    }

    /// Changes what is known of the host and the connection, and has D1 told.
    pub(super) fn change_facts(&self, change: impl FnOnce(&mut ServerFacts)) -> worker::Result<()> {
        let mut facts = self.facts()?;
        change(&mut facts);
        facts.revision += 1;
        self.tables().set_fact(fact::SERVER, &facts)?;
        self.flush_soon()
    }
}
