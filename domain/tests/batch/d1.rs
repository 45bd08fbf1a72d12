//! A model of D1: the rows of a batch, its targets, their commands and servers. It carries out a
//! request as one transaction, with the conditions of `src/objects/batch/d1.rs`.

use farhand_domain::batch::event::{Answer, Batch, BatchState, Mark, Request, Rest};
use farhand_domain::batch::target::{Run, Started, Target, TargetState, Verdict};
use farhand_domain::time::Timestamp;
use uuid::Uuid;

/// A row of `commands`.
#[derive(Clone, Debug)]
pub struct CommandRow {
    pub state: TargetState,
    pub added_at: Timestamp,
    pub revision: u64,
}

/// A row of `batch_targets`, with its command and server.
#[derive(Clone, Debug)]
pub struct TargetRow {
    /// The state of a target without a command.
    pub mark: Option<TargetState>,
    pub command: Option<CommandRow>,
    pub is_connected: bool,
    pub is_denied: bool,
    pub is_deleted: bool,
    /// When a permission check allowed it for the last time.
    pub allowed_at: Option<Timestamp>,
}

impl TargetRow {
    pub fn state(&self) -> TargetState {
        match (&self.command, self.mark) {
            (Some(command), _) => command.state,
            (None, mark) => mark.unwrap_or(TargetState::Pending),
        }
    }

    fn is_waiting(&self) -> bool {
        self.command.is_none() && self.mark.is_none_or(|mark| mark == TargetState::Queued)
    }
}

/// The database.
#[derive(Clone, Debug)]
pub struct D1 {
    /// The batch. Its `targets` are empty.
    pub batch: Batch,
    pub rows: Vec<TargetRow>,
    /// Whether the requester's credential was revoked.
    pub is_revoked: bool,
    pub is_gone: bool,
}

/// The id of the server of a target.
pub fn server(position: usize) -> Uuid {
    Uuid::from_u128(position as u128 + 1)
}

impl D1 {
    pub fn count(&self, is_counted: impl Fn(TargetState) -> bool) -> u64 {
        self.rows.iter().filter(|row| is_counted(row.state())).count() as u64
    }

    /// The number of commands that were inserted and have not ended.
    pub fn open(&self) -> u64 {
        let is_open = |row: &&TargetRow| row.command.is_some() && !row.state().is_end();
        self.rows.iter().filter(is_open).count() as u64
    }

    pub fn failures(&self) -> u64 {
        self.count(TargetState::is_failure)
    }

    pub fn started(&self) -> u64 {
        self.rows.iter().filter(|row| row.command.is_some()).count() as u64
    }

    /// Carries out a request.
    pub fn apply(&mut self, request: &Request, now: Timestamp) -> Answer {
        if self.is_gone && *request == Request::Load {
            return Answer::Loaded(None);
        }
        match request {
            Request::Load => Answer::Loaded(Some(Box::new(self.load()))),
            Request::Check(positions) => {
                let batch = &mut self.batch;
                if batch.state == BatchState::Scheduled && batch.scheduled_at <= now {
                    batch.state = BatchState::Running;
                }
                if batch.state != BatchState::Running || batch.is_workspace_deleted {
                    return Answer::Checked(None);
                }
                let check = |position: &u32| self.check(*position as usize, now);
                Answer::Checked(Some(positions.iter().map(check).collect()))
            }
            Request::Insert { runs, started, added_at, marks } => {
                let is_current = self.batch.state == BatchState::Running
                    && !self.batch.is_workspace_deleted
                    && !self.is_revoked
                    && *started == self.started()
                    && !self.batch.limits.is_exceeded_by(self.failures());
                let mut inserted = vec![];
                for (position, _) in runs.iter().filter(|_| is_current) {
                    let row = &mut self.rows[*position as usize];
                    if row.is_waiting() && !row.is_deleted {
                        let (state, added_at) = (TargetState::Sent, *added_at);
                        row.command = Some(CommandRow { state, added_at, revision: 0 });
                        inserted.push(*position);
                    }
                }
                self.mark(marks);
                Answer::Inserted(inserted)
            }
            Request::Mark(marks) => {
                self.mark(marks);
                Answer::Written
            }
            Request::EndRest(rest) => {
                let may_stop =
                    matches!(self.batch.state, BatchState::Scheduled | BatchState::Running);
                if *rest == Rest::TooManyErrors && may_stop {
                    self.batch.state = BatchState::Stopping;
                }
                let is_allowed = match rest {
                    Rest::Cancelled => self.batch.state == BatchState::Cancelled,
                    Rest::TooManyErrors => self.batch.state == BatchState::Stopping,
                    Rest::Expired => self.batch.expires_at <= now,
                };
                for row in self.rows.iter_mut().filter(|row| is_allowed && row.is_waiting()) {
                    row.mark = Some(rest.state());
                }
                Answer::Written
            }
            Request::Finish => {
                let is_over = self.rows.iter().all(|row| row.state().is_end());
                if is_over && self.batch.finished_at.is_none() {
                    self.batch.finished_at = Some(now);
                    if self.batch.state != BatchState::Cancelled {
                        self.batch.state = BatchState::Finished;
                    }
                }
                Answer::Finished(is_over)
            }
        }
    }

    fn check(&mut self, position: usize, now: Timestamp) -> Verdict {
        let row = &mut self.rows[position];
        if self.is_revoked || row.is_denied || row.is_deleted {
            return Verdict::Refused("not permitted".to_owned());
        }
        if !row.is_connected {
            return Verdict::Offline;
        }
        row.allowed_at = Some(now);
        let (username, server_name) = ("alice".to_owned(), format!("web-{position}"));
        Verdict::Ready(Run { username, server_name })
    }

    fn mark(&mut self, marks: &[Mark]) {
        for mark in marks {
            let row = &mut self.rows[mark.position as usize];
            let is_queued = mark.state == TargetState::Queued;
            if row.is_waiting() && !(is_queued && row.is_connected) {
                row.mark = Some(mark.state);
            }
        }
    }

    fn load(&self) -> Batch {
        let target = |(position, row): (usize, &TargetRow)| {
            let mut target = Target::new(server(position), row.state());
            target.is_online = row.is_connected;
            target.started = row.command.as_ref().map(|command| {
                let (username, server_name) = ("alice".to_owned(), format!("web-{position}"));
                let run = Run { username, server_name };
                let mut started = Started::new(run, command.added_at, command.revision > 0);
                started.is_server_deleted = row.is_deleted;
                started
            });
            target
        };
        Batch { targets: self.rows.iter().enumerate().map(target).collect(), ..self.batch.clone() }
    }
}
