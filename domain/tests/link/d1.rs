//! A model of D1: the part that a server's object uses.

use std::collections::{BTreeMap, BTreeSet};

use farhand_domain::access::rights::CommandPermissions;
use farhand_domain::agent::wire::Script;
use farhand_domain::command::end::Denial;
use farhand_domain::command::lifecycle::Lifecycle;
use farhand_domain::command::script::ScriptRef;
use farhand_domain::hash::sha256;
use farhand_domain::link::call::{Create, Refusal};
use farhand_domain::link::event::{
    Answer, D1Server, NextKey, OutboxEntry, Request, ServerChange, Verdicts,
};
use farhand_domain::link::server_facts::{ServerFacts, UNDELETED_REVISIONS};
use farhand_domain::link::stored_command::StoredCommand;
use uuid::Uuid;

/// The id of the server's workspace.
pub const WORKSPACE: i64 = 1;

/// The version of every script that D1 does not have.
pub const LOST_VERSION: i64 = 9;

/// The content of a script.
pub fn script_of(script: ScriptRef) -> Script {
    let body = format!("body of {script}");
    Script { interpreter: "/bin/sh".to_owned(), sha256: sha256(&body), body }
}

/// A row of `commands`.
#[derive(Clone, Debug)]
pub struct CommandRow {
    pub revision: i64,
    pub life: Lifecycle,
    pub output_bytes: u64,
    pub key: Option<String>,
}

/// The row of the server.
#[derive(Clone, Debug)]
pub struct ServerRow {
    pub key_hash: String,
    pub next_key: Option<NextKey>,
    pub revision: i64,
    pub facts: ServerFacts,
}

/// The database.
#[derive(Clone, Debug)]
pub struct D1 {
    pub server: Option<ServerRow>,
    /// The deleted server, while it can be undeleted.
    pub deleted_server: Option<ServerRow>,
    pub commands: BTreeMap<Uuid, CommandRow>,
    /// Ids of audit events, and how often each was written.
    pub events: BTreeMap<Uuid, u32>,
    pub is_workspace_deleted: bool,
    /// Whether the next command is refused because a quota is used up.
    pub is_full: bool,
    /// Whether users' changes of the server are refused.
    pub forbids_changes: bool,
    /// The bytes of output that each command may keep, if they are limited.
    pub output_limit: Option<u64>,
    /// Commands whose permission check fails.
    pub denied: BTreeSet<Uuid>,
}

impl D1 {
    /// A database with the server. `key_hash` is the hash of its agent's key.
    pub fn new(key_hash: &str) -> Self {
        let (key_hash, facts) = (key_hash.to_owned(), ServerFacts::default());
        Self {
            server: Some(ServerRow { key_hash, next_key: None, revision: 0, facts }),
            deleted_server: None,
            commands: BTreeMap::new(),
            events: BTreeMap::new(),
            is_workspace_deleted: false,
            is_full: false,
            forbids_changes: false,
            output_limit: None,
            denied: BTreeSet::new(),
        }
    }

    fn write_event(&mut self, id: Uuid) {
        *self.events.entry(id).or_default() += 1;
    }

    fn found(&self) -> Option<D1Server> {
        self.server.as_ref().map(|server| D1Server {
            workspace_id: WORKSPACE,
            name: "web-1".to_owned(),
            key_hash: server.key_hash.clone(),
            next_key: server.next_key.clone(),
            commissioned: server.facts.commissioned,
            is_connected: server.facts.is_connected,
            revision: server.revision,
        })
    }

    /// Carries out a request as one transaction.
    pub fn apply(&mut self, request: &Request) -> Answer {
        match request {
            Request::FindServer { .. } => {
                Answer::Server(self.found().filter(|_| !self.is_workspace_deleted))
            }
            Request::ChangeServer(_, change) => {
                self.change(change);
                Answer::Server(self.found())
            }
            Request::InsertCommand { create, life, .. } => {
                Answer::Inserted(self.insert(create, life))
            }
            Request::FindPermissions(commands) => Answer::Permissions(self.rights(commands)),
            Request::Flush { entries, .. } => {
                entries.iter().for_each(|entry| self.write_entry(entry));
                Answer::Flushed(entries.iter().map(|_| Ok(())).collect(), vec![])
            }
            Request::Restore(commands) => {
                commands.iter().for_each(|stored| self.restore(stored));
                Answer::Restored
            }
            Request::DeleteRestored(commands) => {
                for stored in commands {
                    let is_restored =
                        |row: &CommandRow| row.revision == 0 && row.life.handled_at.is_none();
                    if self.commands.get(&stored.command.id).is_some_and(is_restored) {
                        self.commands.remove(&stored.command.id);
                    }
                }
                Answer::Restored
            }
        }
    }

    /// Like [`Self::apply`], but rejects some entries of a flush that writes them one by one. Each
    /// bit of `rejected` stands for an entry.
    pub fn apply_in_part(&mut self, request: &Request, rejected: u64) -> Answer {
        let Request::Flush { entries, is_one_by_one: true } = request else {
            return self.apply(request);
        };
        let write = |(place, entry): (usize, &OutboxEntry)| {
            if rejected >> (place % 64) & 1 == 1 {
                return Err("refused".to_owned());
            }
            self.write_entry(entry);
            Ok(())
        };
        Answer::Flushed(entries.iter().enumerate().map(write).collect(), vec![])
    }

    fn change(&mut self, change: &ServerChange) {
        let is_forbidden = self.forbids_changes;
        match change {
            ServerChange::ReadOnly => {}
            ServerChange::ReplaceKey { .. }
            | ServerChange::Delete { by: Some(_), .. }
            | ServerChange::Undelete { .. }
                if is_forbidden => {}
            ServerChange::ReplaceKey { key_hash, old_key_valid_until, at, event, .. } => {
                if let Some(server) = &mut self.server {
                    if let Some(next) = server.next_key.take()
                        && next.old_key_valid_until <= *at
                    {
                        server.key_hash = next.key_hash;
                    }
                    match *old_key_valid_until {
                        Some(old_key_valid_until) => {
                            let key_hash = key_hash.clone();
                            server.next_key = Some(NextKey { key_hash, old_key_valid_until });
                        }
                        None => server.key_hash.clone_from(key_hash),
                    }
                    self.write_event(event.id);
                }
            }
            ServerChange::TakeNextKey(key_hash) => {
                if let Some(server) = &mut self.server
                    && server.next_key.as_ref().is_some_and(|next| next.key_hash == *key_hash)
                {
                    server.key_hash.clone_from(key_hash);
                    server.next_key = None;
                }
            }
            ServerChange::Delete { only_pending, purge_at, event, .. } => {
                let is_deletable =
                    |server: &mut ServerRow| !only_pending || !server.facts.commissioned;
                if let Some(server) = self.server.take_if(is_deletable) {
                    self.deleted_server = purge_at.map(|_| server);
                    self.write_event(event.id);
                }
            }
            ServerChange::Undelete { event, .. } => {
                if self.server.is_none()
                    && let Some(mut server) = self.deleted_server.take()
                {
                    server.facts.is_connected = false;
                    // Updates from before the deletion may arrive late.
                    server.revision += UNDELETED_REVISIONS;
                    self.server = Some(server);
                    self.write_event(event.id);
                }
            }
        }
    }

    fn insert(&mut self, create: &Create, life: &Lifecycle) -> Result<Option<u64>, Refusal> {
        let key = create.key.as_ref().map(|key| key.hash.clone());
        if self.server.is_none() || self.is_workspace_deleted {
            return Err(Refusal::NoServer);
        }
        if std::mem::take(&mut self.is_full) {
            return Err(Refusal::TooManyWaiting);
        }
        if key.is_some() && self.commands.values().any(|row| row.key == key) {
            return Err(Refusal::KeyInUse);
        }
        let row = CommandRow { revision: 0, life: life.clone(), output_bytes: 0, key };
        assert!(self.commands.insert(create.command.id, row).is_none(), "an id is used once");
        self.write_event(create.event.id);
        Ok(self.output_limit)
    }

    fn rights(&self, commands: &[StoredCommand]) -> Option<Verdicts> {
        if self.is_workspace_deleted {
            return None;
        }
        let mut scripts = BTreeMap::new();
        let mut rights = |stored: &StoredCommand| {
            if self.denied.contains(&stored.command.id) {
                return Err(Denial::Requester);
            }
            match stored.command.script {
                Some(script) if script.version == LOST_VERSION => return Err(Denial::Script),
                // A check returns only some of the scripts.
                Some(script) if scripts.is_empty() => {
                    scripts.insert(script, script_of(script));
                }
                _ => {}
            }
            Ok(CommandPermissions {
                username: stored.command.username.clone(),
                is_staff: true,
                any_account: true,
                labels: Default::default(),
                acl: None,
            })
        };
        let permissions = commands.iter().map(&mut rights).collect();
        let output_limits = commands.iter().filter_map(|_| self.output_limit).collect();
        Some(Verdicts { permissions, scripts, output_limits })
    }

    fn write_entry(&mut self, entry: &OutboxEntry) {
        match entry {
            OutboxEntry::Command(stored, output) => {
                let Some(row) = self.commands.get_mut(&stored.command.id) else { return };
                let before = row.revision;
                if before < stored.revision {
                    row.revision = stored.revision;
                    row.life = stored.life.clone();
                    row.output_bytes = output.bytes;
                }
                for event in stored.events.iter().filter(|event| before < event.revision) {
                    self.write_event(event.event.id);
                }
            }
            OutboxEntry::Withdrawal { id, .. } => {
                if self.commands.get(id).is_some_and(|row| row.life.acked_at.is_none()) {
                    self.commands.remove(id);
                }
            }
            OutboxEntry::Server { facts, .. } => {
                let Some(row) = &mut self.server else { return };
                let before = row.revision;
                if before < facts.revision {
                    row.revision = facts.revision;
                    row.facts = (**facts).clone();
                }
                for event in facts.events.iter().filter(|event| before < event.revision) {
                    self.write_event(event.event.id);
                }
            }
        }
    }

    fn restore(&mut self, stored: &StoredCommand) {
        if self.is_workspace_deleted {
            return;
        }
        // Only the fields that never change, and the delivery, are inserted. The outbox writes the
        // other fields.
        let life = Lifecycle { acked_at: None, handled_at: None, ..stored.life.clone() };
        let row = CommandRow { revision: 0, life, output_bytes: stored.output_bytes(), key: None };
        self.commands.entry(stored.command.id).or_insert(row);
    }
}
