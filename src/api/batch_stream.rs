//! The live stream of a batch: the changes of its targets' states (contract 13.11).

use farhand_domain::error::{Error, NON_FIELD};
use farhand_domain::time::Timestamp;
use futures_util::{Stream, stream};
use serde_json::json;
use uuid::Uuid;
use worker::Env;

use super::batch_creation::MAX_FOLLOW_WAIT;
use crate::auth::credential::{Credential, Watch};
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::batch::calls::{self, BatchEvent};
use crate::platform;
use crate::platform::log;
use crate::store::batch_reads;
use crate::store::batch_targets::{self, VisibleTargets};

/// The maximum number of subrequests of a stream. The stream then closes without `end`, and the
/// client resumes with a new request. The platform allows 10,000 subrequests per request.
const MAX_SUBREQUESTS: u32 = 8_000;

/// The state of a stream.
struct Follower {
    env: Env,
    workspace_id: i64,
    id: Uuid,
    /// Reads which targets the caller can see.
    watch: Watch,
    /// Reads the batch object for the `end` event.
    batch: Watch,
    visible: VisibleTargets,
    /// The number of the last event that was read.
    after: u64,
    subrequests: u32,
    /// When the credential is checked next.
    next_check: Timestamp,
    has_ended: bool,
}

/// Reads the number of the last event that the client received; 0: none.
fn last_event(call: &Call) -> Result<u64, Error> {
    let Some(text) = call.header("Last-Event-ID").filter(|id| !id.is_empty()) else { return Ok(0) };
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| text.parse::<u32>().ok()).flatten().map(u64::from);
    number.ok_or_else(|| {
        Error::field(NON_FIELD, "The header Last-Event-ID takes the id of an event of this stream.")
    })
}

/// `GET /api/events/batches/<id>/stream/`: the changes of the targets' states as Server-Sent
/// Events, and at last the batch.
pub async fn stream(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let query = batch_targets::visible(id);
    let (caller, visible) = credential.find::<VisibleTargets>(query.clone()).await?;
    let visible = visible.ok_or_else(Error::not_found)?;
    let after = last_event(call)?;
    let follower = Follower {
        env: call.env.clone(),
        workspace_id: caller.workspace_id,
        id,
        watch: credential.watch(query),
        batch: credential.watch(batch_reads::by_id(id)),
        visible,
        after,
        subrequests: 0,
        next_check: call.now.plus(MAX_FOLLOW_WAIT),
        has_ended: false,
    };
    Ok(Reply::event_stream(events(follower)))
}

/// The texts of the events. If the stream cannot continue, it closes without an `end` event. The
/// client then reconnects, and gets a refusal if it may no longer read the batch.
fn events(follower: Follower) -> impl Stream<Item = worker::Result<String>> {
    stream::unfold(
        (follower, Some("retry: 1000\n\n".to_owned())),
        |(mut follower, first)| async move {
            if let Some(text) = first {
                return Some((Ok(text), (follower, None)));
            }
            if follower.has_ended {
                return None;
            }
            match follower.next_text().await {
                Ok(Some(text)) => Some((Ok(text), (follower, None))),
                Ok(None) => None,
                Err(error) => {
                    log::error("stream_cut_off", json!({"batch": follower.id}), &error.detail);
                    None
                }
            }
        },
    )
}

impl Follower {
    /// The text of the next events. Returns `None` if the stream cannot continue.
    async fn next_text(&mut self) -> Result<Option<String>, Error> {
        loop {
            if self.subrequests >= MAX_SUBREQUESTS {
                return Ok(None);
            }
            self.subrequests += 1;
            let left = self.next_check.seconds_since(platform::now());
            let wait_millis =
                ((left * 1_000.0) as i64).clamp(0, MAX_FOLLOW_WAIT.as_millis() as i64) as u64;
            let followed =
                calls::follow(&self.env, self.workspace_id, self.id, self.after, wait_millis)
                    .await?;
            let mut text = String::new();
            let now = platform::now();
            if self.next_check <= now {
                self.subrequests += 1;
                let Some(visible) = self.watch.read(now).await? else { return Ok(None) };
                self.visible = serde_json::from_str(&visible)?;
                self.next_check = now.plus(MAX_FOLLOW_WAIT);
                text.push_str(": keep-alive\n\n");
            }
            for event in &followed.events {
                self.after = event.seq;
                text.push_str(&self.event(event));
            }
            if followed.is_finished {
                let Some(batch) = self.batch.read(now).await? else { return Ok(None) };
                self.has_ended = true;
                text.push_str(&format!("event: end\ndata: {batch}\n\n"));
            }
            if !text.is_empty() {
                return Ok(Some(text));
            }
        }
    }

    /// The text of an event, if the caller can see its target. The event of the batch's own end has
    /// no target, and `end` replaces it.
    fn event(&self, event: &BatchEvent) -> String {
        let Some(server) = event.server.filter(|server| self.visible.contains(*server)) else {
            return String::new();
        };
        let data = json!({
            "server": server,
            "command": event.command,
            "state": event.state,
            "exit_code": event.exit_code,
            "at": event.at,
        });
        format!("id: {}\nevent: target\ndata: {data}\n\n", event.seq)
    }
}
