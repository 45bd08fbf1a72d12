//! The output of a command (contract 7.9): in pages, as text, and as a live stream.

use farhand_domain::agent::wire::Chunk;
use farhand_domain::command::object::OrderedCommand;
use farhand_domain::error::{self, Error};
use farhand_domain::http::page::{Page, Query, last_value};
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;
use worker::Env;

use super::commands::{command_not_found, find};
use super::envelope;
use super::event_stream::{self, EventSource, event_number, last_event};
use super::output_follower::OutputFollower;
use crate::auth::audit;
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::server_link::calls::{
    self, LinkRequest, OutputPage, ReadLiveFields, ReadOutput, Refusal,
};
use crate::store::commands;

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
    let message =
        LinkRequest::ReadOutput(ReadOutput { id, from, offset: page.offset(), limit: page.size });
    let output = match calls::call_or_refusal(&call.env, server_of(&body)?, &message).await? {
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
        let message = LinkRequest::ReadOutput(ReadOutput {
            id: self.id,
            from,
            offset: 0,
            limit: CHUNKS_PER_CALL,
        });
        let chunks =
            match calls::call_or_refusal::<OutputPage>(&self.env, self.server, &message).await? {
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
    let message = LinkRequest::ReadLiveFields(ReadLiveFields { id, wait: None });
    let finished = match calls::call_or_refusal::<Finished>(&call.env, server, &message).await? {
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

/// A live stream of Server-Sent Events.
struct OutputStream {
    follower: OutputFollower,
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
    let watch = credential.watch(commands::is_readable(id));
    let follower = OutputFollower::new(watch, serde_json::from_str(&body)?, next, call.now)?;
    event_stream::respond(call, &caller, OutputStream { follower, has_ended: false }).await
}

impl EventSource for OutputStream {
    fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn subject(&self) -> Value {
        json!({"command": self.follower.id})
    }

    async fn next_text(&mut self) -> Result<Option<String>, Error> {
        let Some(events) = self.follower.next_events().await? else { return Ok(None) };
        let mut text = String::new();
        if events.was_checked {
            text.push_str(": keep-alive\n\n");
        }
        for chunk in &events.chunks {
            text.push_str(&chunk_event(chunk));
        }
        if let Some(command) = &events.end {
            self.has_ended = true;
            let command = serde_json::to_string(&OrderedCommand(command)).unwrap_or_default();
            text.push_str(&format!("event: end\ndata: {command}\n\n"));
        }
        Ok(Some(text))
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
