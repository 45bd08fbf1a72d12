//! The output of a command (contract 7.9): in pages, as text, and as a live stream.

use std::time::Duration;

use farhand_domain::command_object::OrderedCommand;
use farhand_domain::error::{self, Error};
use farhand_domain::page::{Page, Query, last_value};
use farhand_domain::time::Timestamp;
use farhand_domain::wire::Chunk;
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;
use worker::{Delay, Env};

use super::commands::{command_not_found, find};
use super::envelope;
use super::event_stream::{self, EventSource, MAX_SUBREQUESTS, event_number, last_event};
use crate::auth::audit;
use crate::auth::credential::{Credential, Watch};
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::server_link::calls::{
    self, FollowOutput, FollowedOutput, LinkRequest, OutputPage, ReadLiveFields, ReadOutput,
    Refusal,
};
use crate::platform;
use crate::store::commands;

/// How often a stream sends a comment and checks the credential.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// How long a stream waits after output before it calls the object again. The delay reduces the
/// number of calls, because each call then returns more output.
const GATHER_DELAY: Duration = Duration::from_millis(100);
/// How long a stream waits for a missing chunk when later chunks have arrived. An agent drops a
/// report after about half a minute of retries (agent-protocol 4.3), and its command may run for
/// hours.
const GAP_TIMEOUT: Duration = Duration::from_secs(40);

/// The maximum number of chunks that one call to the object returns for the full output.
const CHUNKS_PER_CALL: u64 = 64;

fn is_whole_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reads the query parameter `seq__gte`. A number that is too large for `seq` selects no chunks.
fn lowest_seq(query: &Query) -> Result<u64, Error> {
    let Some(text) = last_value(query, "seq__gte") else { return Ok(0) };
    let is_number = is_whole_number(text);
    let seq = is_number.then(|| event_number(text).map_or(u64::from(u32::MAX) + 1, u64::from));
    seq.ok_or_else(|| Error::field("seq__gte", "Enter a whole number of at least 0."))
}

/// The server's id in the JSON of a command.
fn server_of(body: &str) -> Result<Uuid, Error> {
    #[derive(Deserialize)]
    struct ServerField {
        server: Uuid,
    }
    Ok(serde_json::from_str::<ServerField>(body)?.server)
}

/// `GET /api/events/commands/<id>/chunks/`: a page of the chunks, ordered by `seq`.
pub async fn chunks(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let query = call.query();
    let id = credential.require_input(call.path_id(command_not_found)).await?;
    let (caller, body) = find(&credential, id).await?;
    audit::record_read(call, &caller, id);
    let (page, from) = error::combine(Page::from_query(&query), lowest_seq(&query))?;
    let ask =
        LinkRequest::ReadOutput(ReadOutput { id, from, offset: page.offset(), limit: page.size });
    let output = match calls::call_or_refusal(&call.env, server_of(&body)?, &ask).await? {
        Ok(output) => output,
        // The object was wiped, and the chunks with it.
        Err(Refusal::NotFound) => OutputPage { count: 0, chunks: vec![] },
        Err(refusal) => return Err(refusal.into()),
    };
    envelope(call, &query, page, serde_json::to_string(&output.chunks)?.into(), output.count)
}

/// Reads the full output of a command, [`CHUNKS_PER_CALL`] chunks at a time.
struct FullOutput {
    env: Env,
    id: Uuid,
    server: Uuid,
    /// The next `seq` to read, or `None` after the last chunk.
    next: Option<u64>,
}

impl FullOutput {
    /// The text of the next chunks. Returns `None` after the last chunk.
    async fn next_text(&mut self) -> Result<Option<String>, Error> {
        let Some(from) = self.next else { return Ok(None) };
        let ask = LinkRequest::ReadOutput(ReadOutput {
            id: self.id,
            from,
            offset: 0,
            limit: CHUNKS_PER_CALL,
        });
        let chunks =
            match calls::call_or_refusal::<OutputPage>(&self.env, self.server, &ask).await? {
                Ok(page) => page.chunks,
                // The object was wiped, and the chunks with it.
                Err(Refusal::NotFound) => vec![],
                Err(refusal) => return Err(refusal.into()),
            };
        self.next = chunks.last().map(|chunk| u64::from(chunk.seq) + 1);
        let text: String = chunks.into_iter().map(|chunk| chunk.content).collect();
        Ok(self.next.map(|_| text))
    }
}

/// The `result` of a command from the server's object, which may have a newer result than D1. If
/// the object no longer has the command, the result comes from `body`, the JSON from D1.
async fn result_of(call: &Call, id: Uuid, server: Uuid, body: &str) -> Result<String, Error> {
    #[derive(Deserialize)]
    struct Finished {
        result: Option<String>,
    }
    let ask = LinkRequest::ReadLiveFields(ReadLiveFields { id, wait: None });
    let finished = match calls::call_or_refusal::<Finished>(&call.env, server, &ask).await? {
        Ok(finished) => finished,
        Err(Refusal::NotFound) => serde_json::from_str(body)?,
        Err(refusal) => return Err(refusal.into()),
    };
    Ok(finished.result.unwrap_or_default())
}

/// `GET /api/events/commands/<id>/output/`: all stored output as plain text. If the agent sent no
/// chunks, the response is `result`.
pub async fn full(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(command_not_found)).await?;
    let (caller, body) = find(&credential, id).await?;
    audit::record_read(call, &caller, id);
    let mut output =
        FullOutput { env: call.env.clone(), id, server: server_of(&body)?, next: Some(0) };
    let first = match output.next_text().await? {
        Some(text) => text,
        None => result_of(call, id, output.server, &body).await?,
    };
    let texts = stream::unfold((output, Some(first)), |(mut output, first)| async move {
        if let Some(text) = first {
            return Some((Ok(text), (output, None)));
        }
        match output.next_text().await {
            Ok(text) => text.map(|text| (Ok(text), (output, None))),
            // An error cuts the connection, so that the client does not mistake partial output for
            // all output.
            Err(error) => Some((Err(error.detail.to_string().into()), (output, None))),
        }
    });
    Ok(Reply::stream("text/plain; charset=utf-8", texts))
}

/// The state of a live stream.
struct Follower {
    env: Env,
    watch: Watch,
    id: Uuid,
    server: Uuid,
    /// The command object at the start of the stream.
    command: Map<String, Value>,
    /// The next `seq` to send.
    next: u64,
    /// The time since which the next chunk is missing although later chunks have arrived.
    gap_since: Option<Timestamp>,
    /// Whether the stream skipped a missing chunk. The chunk is not sent even if it arrives later.
    has_skipped_gap: bool,
    /// Whether to wait [`GATHER_DELAY`] before the next call.
    delays_next_request: bool,
    subrequests: u32,
    /// When the credential is checked next.
    next_check: Timestamp,
    /// Whether the `end` event was sent.
    has_ended: bool,
}

/// `GET /api/events/commands/<id>/stream/`: the output as Server-Sent Events, as it arrives.
pub async fn stream(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let last = last_event(call);
    let id = credential.require_input(call.path_id(command_not_found)).await?;
    let (caller, body) = find(&credential, id).await?;
    audit::record_read(call, &caller, id);
    let next = last?.map_or(0, |last| u64::from(last) + 1);
    let follower = Follower {
        env: call.env.clone(),
        watch: credential.watch(commands::is_readable(id)),
        id,
        server: server_of(&body)?,
        command: serde_json::from_str(&body)?,
        next,
        gap_since: None,
        has_skipped_gap: false,
        delays_next_request: false,
        subrequests: 0,
        next_check: call.now.plus(KEEP_ALIVE_INTERVAL),
        has_ended: false,
    };
    Ok(event_stream::respond(follower))
}

impl EventSource for Follower {
    fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn subject(&self) -> Value {
        json!({"command": self.id})
    }

    async fn next_text(&mut self) -> Result<Option<String>, Error> {
        loop {
            if std::mem::take(&mut self.delays_next_request) {
                Delay::from(GATHER_DELAY).await;
            }
            if self.subrequests >= MAX_SUBREQUESTS {
                return Ok(None);
            }
            let Some(followed) = self.request_next().await? else { return Ok(None) };
            let mut text = String::new();
            let now = platform::now();
            if self.next_check <= now {
                self.subrequests += 1;
                if !self.watch.can_still_read(now).await? {
                    return Ok(None);
                }
                self.next_check = now.plus(KEEP_ALIVE_INTERVAL);
                text.push_str(": keep-alive\n\n");
            }
            for chunk in &followed.chunks {
                self.has_skipped_gap |= u64::from(chunk.seq) != self.next;
                self.next = u64::from(chunk.seq) + 1;
                text.push_str(&chunk_event(chunk));
            }
            let is_behind_gap = followed.chunks.is_empty() && followed.has_more;
            self.gap_since = is_behind_gap.then(|| self.gap_since.unwrap_or(now));
            self.delays_next_request = !followed.chunks.is_empty() && !followed.has_more;
            if let Some(live) = followed.end {
                text.push_str(&self.end(live));
            }
            if !text.is_empty() {
                return Ok(Some(text));
            }
        }
    }
}

impl Follower {
    /// Requests the next output from the server's object. Returns `None` if the object no longer
    /// has the command and the command had not ended when the stream began. Then a new stream can
    /// read the command from D1.
    async fn request_next(&mut self) -> Result<Option<FollowedOutput>, Error> {
        self.subrequests += 1;
        let now = platform::now();
        let check_in = self.next_check.seconds_since(now);
        let gap_ends_in = self.gap_since.map(|since| since.plus(GAP_TIMEOUT).seconds_since(now));
        let wait = gap_ends_in.map_or(check_in, |gap_ends_in| gap_ends_in.min(check_in));
        let max_wait_millis = KEEP_ALIVE_INTERVAL.as_millis() as i64;
        let ask = LinkRequest::FollowOutput(FollowOutput {
            id: self.id,
            from: self.next,
            wait_millis: ((wait * 1_000.0) as i64).clamp(0, max_wait_millis),
            skips_gap: gap_ends_in.is_some_and(|seconds| seconds <= 0.0),
        });
        match calls::call_or_refusal(&self.env, self.server, &ask).await? {
            Ok(followed) => Ok(Some(followed)),
            // The object was wiped. If the command had already ended when the stream began, the
            // state at that time is final.
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

    /// The `end` event: the command object, and whether output is missing from the stream.
    fn end(&mut self, live: Map<String, Value>) -> String {
        self.has_ended = true;
        self.command.extend(live);
        if self.has_skipped_gap {
            self.command.insert("output_truncated".to_owned(), true.into());
        }
        format!(
            "event: end\ndata: {}\n\n",
            serde_json::to_string(&OrderedCommand(&self.command)).unwrap_or_default()
        )
    }
}

/// The event for a chunk. Its id is the `seq`. JSON text has no line breaks, so the data is one
/// line.
fn chunk_event(chunk: &Chunk) -> String {
    format!("id: {}\nevent: chunk\ndata: {}\n\n", chunk.seq, json!(chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_event_has_one_data_line() {
        let event = chunk_event(&Chunk { seq: 3, content: "a\n\nb\r\u{2028}".into() });
        assert_eq!(
            event,
            "id: 3\nevent: chunk\ndata: {\"content\":\"a\\n\\nb\\r\u{2028}\",\"seq\":3}\n\n"
        );
    }
}
