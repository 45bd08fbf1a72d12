//! Follows the output of a command as it arrives (contract 7.9). The stream of Server-Sent Events
//! and the channels of the dialect use it.

use std::time::Duration;

use farhand_domain::agent::wire::Chunk;
use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};
use uuid::Uuid;
use worker::Delay;

use super::event_stream::MAX_SUBREQUESTS;
use crate::auth::credential::Watch;
use crate::objects::server_link::calls::{
    self, FollowOutput, FollowedOutput, LinkRequest, Refusal,
};
use crate::platform;

/// How often the credential is checked.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// How long a stream waits after output before it calls the object again. The delay reduces the
/// number of calls, because each call then returns more output.
const GATHER_DELAY: Duration = Duration::from_millis(100);
/// How long a stream waits for a missing chunk when later chunks have arrived. An agent drops a
/// report after about half a minute of retries (agent-protocol 4.3), and its command may run for
/// hours.
const GAP_TIMEOUT: Duration = Duration::from_secs(40);

/// The state of a follower.
pub struct OutputFollower {
    watch: Watch,
    /// The command's id.
    pub id: Uuid,
    server: Uuid,
    /// The command object at the start.
    command: Map<String, Value>,
    /// The next `seq`.
    next: u64,
    /// The time since which the next chunk is missing although later chunks have arrived.
    gap_since: Option<Timestamp>,
    /// Whether a missing chunk was skipped. The chunk is not returned even if it arrives later.
    has_skipped_gap: bool,
    /// Whether to wait [`GATHER_DELAY`] before the next call.
    delays_next_request: bool,
    subrequests: u32,
    /// When the credential is checked next.
    next_check: Timestamp,
}

/// What happened to the command. At least one field says something.
pub struct OutputEvents {
    /// Whether the credential was checked.
    pub was_checked: bool,
    /// The next chunks.
    pub chunks: Vec<Chunk>,
    /// The command object after its end, and whether output is missing. No events follow.
    pub end: Option<Map<String, Value>>,
}

impl OutputFollower {
    /// Follows a command from the chunk `next` on. `watch` must check that the caller can read the
    /// command. `command` is the command object.
    ///
    /// # Errors
    /// The command object has no id or no server.
    pub fn new(
        watch: Watch,
        command: Map<String, Value>,
        next: u64,
        now: Timestamp,
    ) -> Result<Self, Error> {
        let uuid = |name: &str| Uuid::deserialize(command.get(name).unwrap_or(&Value::Null));
        Ok(Self {
            watch,
            id: uuid("id")?,
            server: uuid("server")?,
            command,
            next,
            gap_since: None,
            has_skipped_gap: false,
            delays_next_request: false,
            subrequests: 0,
            next_check: now.plus(KEEP_ALIVE_INTERVAL),
        })
    }

    /// Waits for the next events. Returns `None` if the follower cannot continue, or if the caller
    /// can no longer read the command.
    ///
    /// # Errors
    /// An object or D1 failed.
    pub async fn next_events(&mut self) -> Result<Option<OutputEvents>, Error> {
        loop {
            if std::mem::take(&mut self.delays_next_request) {
                Delay::from(GATHER_DELAY).await;
            }
            if self.subrequests >= MAX_SUBREQUESTS {
                return Ok(None);
            }
            let Some(followed) = self.request_next().await? else { return Ok(None) };
            let now = platform::now();
            let was_checked = self.next_check <= now;
            if was_checked {
                if !self.can_still_read(now).await? {
                    return Ok(None);
                }
                self.next_check = now.plus(KEEP_ALIVE_INTERVAL);
            }
            for chunk in &followed.chunks {
                self.has_skipped_gap |= u64::from(chunk.seq) != self.next;
                self.next = u64::from(chunk.seq) + 1;
            }
            let is_behind_gap = followed.chunks.is_empty() && followed.has_more;
            self.gap_since = is_behind_gap.then(|| self.gap_since.unwrap_or(now));
            self.delays_next_request = !followed.chunks.is_empty() && !followed.has_more;
            let end = followed.end.map(|live| self.end(live));
            if was_checked || !followed.chunks.is_empty() || end.is_some() {
                return Ok(Some(OutputEvents { was_checked, chunks: followed.chunks, end }));
            }
        }
    }

    /// Whether the caller can still read the command.
    ///
    /// # Errors
    /// D1 failed.
    pub async fn can_still_read(&mut self, now: Timestamp) -> Result<bool, Error> {
        self.subrequests += 1;
        self.watch.can_still_read(now).await
    }

    /// Requests the next output from the server's object. Returns `None` if the object no longer
    /// has the command and the command had not ended at the start. Then a new follower can
    /// read the command from D1.
    async fn request_next(&mut self) -> Result<Option<FollowedOutput>, Error> {
        self.subrequests += 1;
        let now = platform::now();
        let check_in = self.next_check.seconds_since(now);
        let gap_ends_in = self.gap_since.map(|since| since.plus(GAP_TIMEOUT).seconds_since(now));
        let wait = gap_ends_in.map_or(check_in, |gap_ends_in| gap_ends_in.min(check_in));
        let max_wait_millis = KEEP_ALIVE_INTERVAL.as_millis() as i64;
        let message = LinkRequest::FollowOutput(FollowOutput {
            id: self.id,
            from: self.next,
            wait_millis: ((wait * 1_000.0) as i64).clamp(0, max_wait_millis),
            skips_gap: gap_ends_in.is_some_and(|seconds| seconds <= 0.0),
        });
        match calls::call_or_refusal(self.watch.env(), self.server, &message).await? {
            Ok(followed) => Ok(Some(followed)),
            // The object was wiped. If the command had already ended at the start, the state at
            // that time is final.
            Err(Refusal::NotFound) => {
                let is_handled = self.command.get("handled_at").is_some_and(|at| !at.is_null());
                let had_output = self.command.get("output_bytes").is_some_and(|bytes| bytes != 0);
                let end = Map::from_iter([("output_truncated".to_owned(), had_output.into())]);
                Ok(is_handled.then(|| FollowedOutput {
                    chunks: vec![],
                    has_more: false,
                    end: Some(end),
                }))
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// The command object after its end, and whether output is missing.
    fn end(&mut self, live: Map<String, Value>) -> Map<String, Value> {
        let mut command = std::mem::take(&mut self.command);
        command.extend(live);
        if self.has_skipped_gap {
            command.insert("output_truncated".to_owned(), true.into());
        }
        command
    }
}
