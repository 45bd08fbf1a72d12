//! The live stream of a batch: the changes of its targets' states (contract 13.11).

use std::time::Duration;

use farhand_domain::error::Error;
use farhand_domain::http::page::boolean_parameter;
use farhand_domain::time::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;
use worker::Env;

use super::batch_creation::MAX_FOLLOW_WAIT;
use super::batch_live_output::LiveOutput;
use super::event_stream::{self, EventSource, MAX_SUBREQUESTS, last_event};
use crate::auth::credential::{Credential, Watch};
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::batch::calls::{self, BatchEvent};
use crate::platform;
use crate::store::batch_reads;
use crate::store::batch_targets::{self, VisibleTargets};

/// The time between two events with the output of one target.
const OUTPUT_INTERVAL: Duration = Duration::from_secs(1);

/// The state of a stream.
struct Follower {
    env: Env,
    workspace_id: i64,
    id: Uuid,
    /// Reads which targets the caller can see.
    watch: Watch,
    /// Reads the batch as the data of the `end` event.
    batch: Watch,
    visible: VisibleTargets,
    /// The number of the last event that was read.
    after: u64,
    /// The number of the last event that the client has.
    sent: u64,
    /// With `output=true`: the targets whose output is sent.
    output: Option<LiveOutput>,
    /// When output is read next.
    next_output: Timestamp,
    subrequests: u32,
    /// When the credential is checked next.
    next_check: Timestamp,
    has_ended: bool,
}

/// `GET /api/events/batches/<id>/stream/`: the changes of the targets' states as Server-Sent
/// Events, and at last the batch.
pub async fn stream(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let query = batch_targets::visible(id);
    let (caller, visible) = credential.find::<VisibleTargets>(query.clone()).await?;
    let visible = visible.ok_or_else(Error::not_found)?;
    let sent = last_event(call)?.map_or(0, u64::from);
    let has_output = boolean_parameter(&call.query(), "output")?.unwrap_or(false);
    let follower = Follower {
        env: call.env.clone(),
        workspace_id: caller.workspace_id,
        id,
        watch: credential.watch(query),
        batch: credential.watch(batch_reads::by_id(id)),
        visible,
        // Output needs all events, because they say which targets run.
        after: if has_output { 0 } else { sent },
        sent,
        output: has_output.then(LiveOutput::default),
        next_output: call.now,
        subrequests: 0,
        next_check: call.now.plus(MAX_FOLLOW_WAIT),
        has_ended: false,
    };
    event_stream::respond(call, &caller, follower).await
}

impl EventSource for Follower {
    fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn subject(&self) -> Value {
        json!({"batch": self.id})
    }

    async fn next_text(&mut self) -> Result<Option<String>, Error> {
        loop {
            if self.subrequests >= MAX_SUBREQUESTS {
                return Ok(None);
            }
            self.subrequests += 1;
            let has_output = self.output.as_ref().is_some_and(LiveOutput::is_expected);
            let until =
                if has_output { self.next_check.min(self.next_output) } else { self.next_check };
            let left = until.seconds_since(platform::now());
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
                if let Some(output) = &mut self.output {
                    output.note(event);
                }
                if event.seq > self.sent {
                    text.push_str(&self.event(event));
                }
            }
            if let Some(output) = &mut self.output
                && (self.next_output <= now || followed.is_finished)
            {
                let visible = &self.visible;
                let (events, calls) =
                    output.read(&self.env, |server| visible.contains(server)).await;
                self.subrequests += calls;
                self.next_output = now.plus(OUTPUT_INTERVAL);
                text.push_str(&events);
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
}

impl Follower {
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
