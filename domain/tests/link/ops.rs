//! The operations of a random sequence, and how they are generated.

use farhand_domain::agent::features::Features;
use farhand_domain::agent::wire::{Chunk, Fin, HostFacts};
use farhand_domain::audit::event::{AuditEvent, Source};
use farhand_domain::command::end::Cancellation;
use farhand_domain::command::lifecycle::Lifecycle;
use farhand_domain::command::request::{Command, Inputs, OnOffline, Origin, Shell};
use farhand_domain::command::script::ScriptRef;
use farhand_domain::id;
use farhand_domain::link::call::{
    AgentReport, BatchCommand, ClaimedIdentity, Create, DeleteOldCommands, DeleteServer,
    FollowOutput, IdempotencyKey, LinkRequest, ReadLiveFields, ReadOutput, Rename, ReplaceKey,
    Report, RevokedSessions, ServerLocation, UndeleteServer, UserAction,
};
use farhand_domain::link::event::{ConnectionKind, Event};
use farhand_domain::time::Timestamp;
use uuid::Uuid;

use super::d1::{CommandRow, D1, LOST_VERSION, WORKSPACE, script_of};
use super::world::{CallKind, Check, Crash, World};

/// An operation. `command`, `key`, sockets and `age` count back from the newest item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Time passes, in milliseconds.
    Pass(i64),
    /// A command is created. The bits of `how` choose its fields.
    Create {
        how: u16,
        key: Option<u8>,
        wait: u8,
    },
    /// A batch sends a command, or repeats the call.
    RunOfBatch {
        how: u16,
        is_repeated: bool,
    },
    Replay {
        key: u8,
    },
    Live {
        command: u8,
        wait: u8,
    },
    Cancel(u8),
    CancelOf,
    Kill {
        command: u8,
        is_of_batch: bool,
    },
    Chunks(u8),
    Follow {
        command: u8,
        from: u8,
        skips_gap: bool,
    },
    InitIdentity,
    Rename,
    /// The agent gets another key. `now`: the old key is refused immediately.
    Rotate {
        now: bool,
    },
    Remove {
        only_pending: bool,
    },
    Undelete,
    DeleteOld {
        command: u8,
        days: u8,
    },
    DisconnectAndWipe,
    Suspend(bool),
    /// An agent reports. `age` chooses the current key (0), an older key (1) or the next key (2).
    Ack {
        command: u8,
        age: u8,
    },
    Chunk {
        command: u8,
        seq: u8,
        age: u8,
    },
    Fin {
        command: u8,
        chunks: Option<u8>,
        age: u8,
    },
    Report {
        what: u8,
        age: u8,
    },
    Connect {
        is_control: bool,
        can_kill: bool,
        age: u8,
    },
    /// A connection closes, and the machine gets the event.
    Close(u8),
    /// A connection is lost without an event.
    Lose(u8),
    /// Sending over a connection fails from now on.
    Break(u8),
    /// The pending event that a connection closed arrives.
    Closed(u8),
    Pong(u8),
    /// The alarm goes off, this many milliseconds late.
    Alarm(i64),
    /// D1 carries out the request at this place in the list. Its answer does not arrive yet.
    Apply(u8),
    /// The answer to the request arrives. `refused`: a bit for each entry that D1 rejects.
    Answer {
        place: u8,
        refused: u8,
    },
    /// The request fails.
    Fail(u8),
    /// The request takes too long.
    TimeOut(u8),
    /// The timer of a call runs out.
    TimeUp(u8),
    /// The object crashes in the next step.
    Crash {
        after: Option<u8>,
        loss: u8,
    },
    /// The object crashes now.
    Die(u8),
    /// The permission check of a command will fail.
    Deny(u8),
    /// D1 refuses the next command because a quota is used up.
    Fill,
    /// D1 refuses users' changes of the server, or accepts them again.
    Forbid(bool),
    /// The current state of D1 is saved.
    Snapshot,
    /// D1 is restored to the snapshot, and a resync begins.
    RestoreD1,
}

impl Op {
    /// Turns 64 random bits into an operation.
    pub fn decode(bits: u64) -> Self {
        let kind = (bits & 0xff) as u8;
        let (a, b, c) = ((bits >> 8) as u8, (bits >> 16) as u8, (bits >> 24) as u8);
        // Prefers the newest commands and connections.
        let (near, age) = (a % 4, [1, 2, 2, 0, 0, 0, 0, 0][usize::from(b % 8)]);
        match kind {
            0..18 => Self::Pass(
                [
                    1, 20, 300, 800, 1_000, 2_000, 5_000, 10_000, 30_000, 61_000, 200_000,
                    3_600_000, 86_350_000,
                ][usize::from(a) % 13],
            ),
            18..22 => {
                Self::RunOfBatch { how: u16::from(a) | u16::from(c) << 8, is_repeated: b % 4 == 0 }
            }
            22..48 => Self::Create {
                how: u16::from(a) | u16::from(c) << 8,
                key: (b % 2 == 0).then_some(b % 3),
                wait: if b & 16 == 0 { 0 } else { 20 },
            },
            48..50 => Self::Replay { key: a % 3 },
            50..53 => Self::Live { command: near, wait: b % 2 * 10 },
            53..57 => Self::Cancel(near),
            57..58 => Self::CancelOf,
            58..62 => Self::Kill { command: near, is_of_batch: b % 2 == 0 },
            62..63 => Self::Chunks(near),
            63..67 => Self::Follow { command: near, from: b % 3, skips_gap: c % 4 == 0 },
            67..69 => Self::InitIdentity,
            69..70 => Self::Rename,
            70..74 => Self::Rotate { now: a % 4 == 0 },
            74..75 => Self::Remove { only_pending: a % 4 == 0 },
            75..76 => Self::Undelete,
            76..78 => Self::DeleteOld { command: near, days: b % 2 * 3 },
            78..79 if a % 4 == 0 => Self::DisconnectAndWipe,
            78..80 => Self::Suspend(a % 2 == 0),
            80..92 => Self::Ack { command: near, age },
            92..98 => Self::Chunk { command: near, seq: c % 4, age },
            98..110 => Self::Fin { command: near, chunks: (c % 2 == 0).then_some(c % 3), age },
            110..116 => Self::Report { what: c, age },
            116..132 => Self::Connect { is_control: c % 8 == 0, can_kill: a % 2 == 0, age },
            132..134 => Self::Close(a % 2),
            134..135 => Self::Lose(a % 2),
            135..137 => Self::Break(a % 2),
            137..139 => Self::Closed(a % 2),
            139..142 => Self::Pong(a % 2),
            142..172 => Self::Alarm([0, 0, 0, 5, 3_000, 70_000][usize::from(a) % 6]),
            172..178 => Self::Apply(a % 4),
            178..216 => Self::Answer { place: a % 3, refused: if b % 4 == 0 { c } else { 0 } },
            216..220 => Self::Fail(a % 3),
            220..223 => Self::TimeOut(a % 3),
            223..232 => Self::TimeUp(a % 3),
            232..238 => Self::Crash { after: (a % 4 != 0).then_some(b % 6), loss: c },
            238..240 => Self::Die(c),
            240..242 => Self::Deny(near),
            242..244 => Self::Fill,
            244..246 => Self::Forbid(a % 2 == 0),
            246..249 => Self::Snapshot,
            249..250 => Self::RestoreD1,
            250.. => Self::Answer { place: 0, refused: 0 },
        }
    }
}

/// The server's id.
pub fn server() -> Uuid {
    id::new(Timestamp::from_millis(1_790_000_000_000), [1; 10])
}

/// The server, for an object that may not have loaded its identity.
pub fn of_server() -> ServerLocation {
    ServerLocation { workspace: "acme".to_owned(), workspace_id: WORKSPACE, server: server() }
}

/// An audit event.
pub fn event(now: Timestamp, number: u64, action: &str) -> AuditEvent {
    let mut random = [9; 10];
    random[..8].copy_from_slice(&number.to_be_bytes());
    AuditEvent::new(id::new(now, random), now, Source::default(), action)
}

/// The claimed identity of an agent with this key.
pub fn identity(key: &str, features: Features) -> ClaimedIdentity {
    ClaimedIdentity {
        workspace: "acme".to_owned(),
        server: server(),
        key_hash: key.to_owned(),
        remote_ip: "192.0.2.7".to_owned(),
        features,
    }
}

impl World {
    fn command(&self, back: u8) -> Uuid {
        let place = self.commands.len().checked_sub(1 + usize::from(back));
        place.map_or(Uuid::max(), |place| self.commands[place])
    }

    fn key(&self, age: u8) -> String {
        let server = self.d1.server.as_ref();
        let next = server.and_then(|server| server.next_key.as_ref());
        match (age, next) {
            (1, _) => format!("key-{}", self.keys.saturating_sub(1)),
            (2, Some(next)) => next.key_hash.clone(),
            _ => server.map_or("key-0".to_owned(), |server| server.key_hash.clone()),
        }
    }

    fn socket(&mut self, back: u8) -> Option<usize> {
        self.sockets.len().checked_sub(1 + usize::from(back))
    }

    /// The call that creates a command.
    pub fn create(&mut self, how: u16, key: Option<u8>, wait: u8) -> (CallKind, LinkRequest) {
        let number = self.last_ticket + 1;
        let mut random = [3; 10];
        random[..8].copy_from_slice(&number.to_be_bytes());
        let id = id::new(self.now, random);
        let later = [0, 0, 0, 0, 0, 1, 30, 120][usize::from(how & 7)];
        let lasts = [0, 0, 0, 0, 0, 2, 40, 100][usize::from(how >> 3 & 7)];
        let has_inputs = how >> 6 & 7 == 1;
        let scheduled_at = (later > 0).then(|| self.now.plus_seconds(later));
        let expires_at = (lasts > 0).then(|| self.now.plus_seconds(later + lasts));
        let inputs =
            has_inputs.then(|| Inputs { cwd: Some("/tmp".to_owned()), ..Inputs::default() });
        let script = match how >> 13 & 7 {
            4 | 5 => Some((i64::from(how & 1) + 1, true)),
            6 => Some((i64::from(how & 1) + 1, false)),
            7 => Some((LOST_VERSION, false)),
            _ => None,
        };
        let script =
            script.map(|(version, is_sent)| (ScriptRef { id: Uuid::nil(), version }, is_sent));
        let key = key.map(|key| (format!("idempotency-{}", key % 2), format!("body-{}", key / 2)));
        let create = Create {
            workspace_id: WORKSPACE,
            command: Command {
                id,
                shell: Shell::System,
                line: "id".to_owned(),
                argv: None,
                script: script.map(|(reference, _)| reference),
                username: "alice".to_owned(),
                groupname: String::new(),
                server: server(),
                server_name: "web-1".to_owned(),
                requested_by: None,
                batch: None,
            },
            origin: Origin {
                api_token: None,
                session: (how >> 9 & 3 == 0).then(Uuid::nil),
                remote_ip: "192.0.2.1".to_owned(),
                has_inputs,
            },
            inputs,
            script: script
                .filter(|(_, is_sent)| *is_sent)
                .map(|(reference, _)| script_of(reference)),
            timeout: if how >> 11 & 1 == 0 { 10 } else { 600 },
            scheduled_at,
            expires_at,
            on_offline: if how >> 12 & 1 == 0 { OnOffline::Queue } else { OnOffline::Reject },
            wait: (wait > 0).then_some(wait.into()),
            key: key.clone().map(|(hash, body)| IdempotencyKey { hash, body }),
            event: event(self.now, number, "command.create"),
        };
        self.commands.push(id);
        (CallKind::Create { id, key }, LinkRequest::Create(Box::new(create)))
    }

    /// A batch sends a command, which D1 has as delivered, or repeats the last such call.
    pub fn run_of_batch(&mut self, how: u16, is_repeated: bool) -> Check {
        let earlier = self.calls.values().rev().find_map(|call| match &call.kind {
            // The batch of a purged workspace is deleted, too.
            CallKind::RunOfBatch(command) => {
                // Retention deletes no command of an open batch, and only an open batch repeats a
                // call.
                let is_deleted = self.history.deleted.contains(&command.command.id);
                Some(command.clone()).filter(|_| !self.history.was_wiped && !is_deleted)
            }
            _ => None,
        });
        let cancellation = (how & 7 == 0).then_some(Cancellation::BatchCancelled);
        let command = match earlier.filter(|_| is_repeated) {
            Some(earlier) => Box::new(BatchCommand { cancellation, ..*earlier }),
            None if self.d1.server.is_none() || self.d1.is_workspace_deleted => return Ok(()),
            None => {
                let (_, LinkRequest::Create(create)) = self.create(how >> 3 << 6, None, 0) else {
                    return Ok(());
                };
                let expires_at = self.now.plus_seconds(if how >> 12 & 1 == 0 { 30 } else { 600 });
                let mut life = Lifecycle::new(self.now, None, Some(expires_at), create.timeout);
                life.deliver(self.now);
                let row = CommandRow { revision: 0, life, output_bytes: 0, key: None };
                self.d1.commands.insert(create.command.id, row);
                let age = [0, 4, 6][usize::from(how >> 13) % 3];
                Box::new(BatchCommand {
                    workspace_id: WORKSPACE,
                    command: Command { batch: Some(create.command.id), ..create.command },
                    origin: create.origin,
                    inputs: create.inputs,
                    script: create.script,
                    timeout: create.timeout,
                    added_at: self.now,
                    expires_at,
                    output_limit: self.d1.output_limit,
                    checked_at: (how >> 15 == 0).then(|| self.now.plus_seconds(-age)),
                    cancellation,
                })
            }
        };
        let what = CallKind::RunOfBatch(command.clone());
        self.call(what, LinkRequest::RunOfBatch(command)).map(drop)
    }

    fn by_user(&self, id: Uuid, action: &str) -> UserAction {
        UserAction {
            id,
            username: "bob".to_owned(),
            event: event(self.now, self.last_ticket + 1, action),
        }
    }

    /// An agent's report.
    pub fn report(&mut self, key: &str, report: Report) -> Check {
        let identity = identity(key, Features::default());
        let call = AgentReport { identity, report, request_id: String::new() };
        // The deletion of the server waits for earlier changes, which may replace the key.
        let is_end = matches!(call.report, Report::Unregister);
        let what = if is_end { CallKind::Other } else { CallKind::Agent { key: key.to_owned() } };
        self.call(what, LinkRequest::HandleReport(call)).map(drop)
    }

    /// An agent connects.
    pub fn connect(&mut self, key: &str, kind: ConnectionKind, can_kill: bool) -> Check {
        let features =
            Features { kill: can_kill, cwd: can_kill, script: can_kill, ..Features::default() };
        let ticket = self.ticket(CallKind::Connect { kind, key: key.to_owned(), features });
        self.step(Event::Connect {
            ticket,
            identity: identity(key, features),
            kind,
            request_id: None,
        })
    }

    /// The server gets another key. `now`: the old key is refused immediately.
    pub fn rotate(&mut self, now: bool) -> Check {
        self.keys += 1;
        let key_hash = format!("key-{}", self.keys);
        let event = event(self.now, self.last_ticket + 1, "server.rotate");
        let what = CallKind::Rotate { key: key_hash.clone() };
        let rotate = ReplaceKey {
            of: of_server(),
            by: 1,
            key_hash,
            fingerprint: String::new(),
            old_key_valid_until: (!now).then(|| self.now.plus_seconds(24 * 60 * 60)),
            at: self.now,
            event,
        };
        self.call(what, LinkRequest::ReplaceKey(rotate)).map(drop)
    }

    fn fin(chunks: Option<u8>) -> Fin {
        let result = if chunks.is_none() { Some("abab".to_owned()) } else { None };
        Fin {
            success: true,
            result,
            chunks: chunks.map(u32::from),
            exit_code: Some(0),
            ..Fin::default()
        }
    }

    /// D1 is restored to the snapshot. Pending requests are cut off.
    pub fn restore_d1(&mut self) -> Check {
        let is_good = |d1: &D1| !d1.is_workspace_deleted;
        let Some(snapshot) = self.snapshot.clone().filter(is_good) else { return Ok(()) };
        if !is_good(&self.d1) {
            return Ok(());
        }
        let events = std::mem::take(&mut self.d1.events);
        self.d1 = snapshot;
        // An event from before the restore may be written again. It is counted once.
        self.d1.events.retain(|id, _| events.contains_key(id));
        self.history.revoked.clear();
        (self.history.was_restored, self.history.needs_resync) = (true, true);
        self.history.restored_at = self.last_ticket;
        self.d1_calls.retain(|d1_call| !d1_call.is_timed_out);
        while !self.d1_calls.is_empty() {
            self.fail(0)?;
        }
        self.resync()
    }

    /// The object is asked to resync.
    pub fn resync(&mut self) -> Check {
        self.call(CallKind::Resync, LinkRequest::Resync(of_server())).map(drop)
    }

    /// Runs an operation.
    pub fn run(&mut self, op: &Op) -> Check {
        self.now = self.now.plus_millis(1);
        match *op {
            Op::Pass(millis) => self.now = self.now.plus_millis(millis),
            Op::Create { how, key, wait } => {
                let (what, message) = self.create(how, key, wait);
                self.call(what, message)?;
            }
            Op::RunOfBatch { how, is_repeated } => self.run_of_batch(how, is_repeated)?,
            Op::Replay { key } => {
                let key = (format!("idempotency-{}", key % 2), format!("body-{}", key / 2));
                let message = LinkRequest::Replay(IdempotencyKey {
                    hash: key.0.clone(),
                    body: key.1.clone(),
                });
                self.call(CallKind::Replay { key }, message)?;
            }
            Op::Live { command, wait } => {
                let live = ReadLiveFields {
                    id: self.command(command),
                    wait: (wait > 0).then_some(wait.into()),
                };
                self.call(CallKind::Other, LinkRequest::ReadLiveFields(live))?;
            }
            Op::Cancel(command) => {
                let by = self.by_user(self.command(command), "command.cancel");
                self.call(CallKind::Other, LinkRequest::Cancel(by))?;
            }
            Op::CancelOf => {
                self.call(
                    CallKind::Other,
                    LinkRequest::CancelOfSessions(RevokedSessions { sessions: vec![Uuid::nil()] }),
                )?;
            }
            Op::Kill { command, is_of_batch } => {
                let by = self.by_user(self.command(command), "command.kill");
                let kill = if is_of_batch { LinkRequest::KillOfBatch } else { LinkRequest::Kill };
                self.call(CallKind::Other, kill(by))?;
            }
            Op::Chunks(command) => {
                let asked = ReadOutput { id: self.command(command), from: 0, offset: 1, limit: 2 };
                self.call(CallKind::Other, LinkRequest::ReadOutput(asked))?;
            }
            Op::Follow { command, from, skips_gap } => {
                let id = self.command(command);
                let follow = FollowOutput { id, from: from.into(), wait_millis: 8_000, skips_gap };
                self.call(CallKind::Other, LinkRequest::FollowOutput(follow))?;
            }
            Op::InitIdentity => {
                _ = self.call(CallKind::Other, LinkRequest::InitIdentity(of_server()))?
            }
            Op::Rename => {
                let rename = Rename { name: "web-2".to_owned(), at: self.now };
                self.call(CallKind::Other, LinkRequest::Rename(rename))?;
            }
            Op::Rotate { now } => self.rotate(now)?,
            Op::Remove { only_pending } => {
                let event = event(self.now, self.last_ticket + 1, "server.delete");
                let remove = DeleteServer { of: of_server(), by: Some(1), only_pending, event };
                self.call(CallKind::Other, LinkRequest::DeleteServer(remove))?;
            }
            Op::Undelete => {
                let event = event(self.now, self.last_ticket + 1, "server.undelete");
                let name = "web-1".to_owned();
                self.history.was_undeleted = true;
                let undelete = UndeleteServer { of: of_server(), by: 1, name, event };
                self.call(CallKind::Other, LinkRequest::UndeleteServer(undelete))?;
            }
            Op::DeleteOld { command, days } => {
                let ids = vec![self.command(command)];
                let until = self.now.plus_seconds(-i64::from(days) * 24 * 60 * 60);
                self.call(
                    CallKind::DeleteOld { ids: ids.clone() },
                    LinkRequest::DeleteOldCommands(DeleteOldCommands { ids, until }),
                )?;
            }
            Op::DisconnectAndWipe => {
                // A workspace is purged from D1 before its objects are wiped.
                (self.d1.server, self.d1.is_workspace_deleted) = (None, true);
                self.d1.deleted_server = None;
                self.d1.commands.clear();
                (self.snapshot, self.history.was_wiped) = (None, true);
                self.call(CallKind::DisconnectAndWipe, LinkRequest::DisconnectAndWipe)?;
            }
            // Rows of a deleted workspace that D1 lost are not restored.
            Op::Suspend(true) if self.history.was_restored => {}
            Op::Suspend(is_suspended) if !self.history.was_wiped => {
                self.d1.is_workspace_deleted = is_suspended;
                self.call(CallKind::Other, LinkRequest::Suspend(is_suspended))?;
            }
            Op::Suspend(_) => {}
            Op::Ack { command, age } => {
                let command = self.command(command);
                self.report(&self.key(age), Report::Ack { command })?;
            }
            Op::Chunk { command, seq, age } => {
                let command = self.command(command);
                let chunk = Chunk { seq: seq.into(), content: "ab".to_owned() };
                self.report(&self.key(age), Report::Chunk { command, chunk })?;
            }
            Op::Fin { command, chunks, age } => {
                let command = self.command(command);
                self.report(&self.key(age), Report::Fin { command, fin: Self::fin(chunks) })?;
            }
            Op::Report { what, age } => {
                let version = Some(format!("2.{}", what / 8 % 2));
                let facts = HostFacts { version, load: Some(0.5), ..HostFacts::default() };
                let report = match what % 8 {
                    0 | 1 => Report::Started,
                    2 => Report::Whoami,
                    3 => Report::Heartbeat { load: (what > 128).then_some(0.25) },
                    4 | 5 => Report::Facts { facts: Box::new(facts), is_commit: what > 128 },
                    6 if what > 200 => Report::Unregister,
                    _ => Report::Alive,
                };
                self.report(&self.key(age), report)?;
            }
            Op::Connect { is_control, can_kill, age } => {
                let kind =
                    if is_control { ConnectionKind::Control } else { ConnectionKind::Backhaul };
                self.connect(&self.key(age), kind, can_kill)?;
            }
            Op::Close(back) => {
                if let Some(place) = self.socket(back).filter(|place| self.sockets[*place].is_open)
                {
                    self.sockets[place].is_open = false;
                    self.step(Event::Closed(self.sockets[place].generation))?;
                }
            }
            Op::Lose(back) => {
                if let Some(place) = self.socket(back) {
                    (self.sockets[place].is_open, self.sockets[place].must_report_close) =
                        (false, false);
                }
            }
            Op::Break(back) => {
                if let Some(place) = self.socket(back) {
                    self.sockets[place].is_broken = true;
                }
            }
            Op::Closed(back) => {
                if let Some(place) =
                    self.socket(back).filter(|place| self.sockets[*place].must_report_close)
                {
                    self.sockets[place].must_report_close = false;
                    self.step(Event::Closed(self.sockets[place].generation))?;
                }
            }
            Op::Pong(back) => {
                if let Some(place) = self.socket(back).filter(|place| self.sockets[*place].is_open)
                {
                    self.step(Event::Pong(self.sockets[place].generation))?;
                }
            }
            Op::Alarm(late) => self.alarm_goes_off(late)?,
            Op::Apply(place) => self.apply(place.into(), 0),
            Op::Answer { place, refused } => self.answer(place.into(), refused.into())?,
            Op::Fail(place) => self.fail(place.into())?,
            Op::TimeOut(place) => self.time_out(place.into())?,
            Op::TimeUp(place) => self.time_is_up(place.into())?,
            Op::Crash { after, loss } => self.crash = Some(Crash { after, loss }),
            Op::Die(loss) => self.die(loss)?,
            Op::Deny(command) => _ = self.d1.denied.insert(self.command(command)),
            Op::Fill => self.d1.is_full = true,
            Op::Forbid(forbids) => self.d1.forbids_changes = forbids,
            Op::Snapshot => self.snapshot = Some(self.d1.clone()),
            Op::RestoreD1 => self.restore_d1()?,
        }
        Ok(())
    }
}
