//! A command's output: page by page, and while it comes (contract 7.9).

use std::time::Duration;

use farhand_domain::command_object::Shown;
use farhand_domain::error::{self, Error, NON_FIELD};
use farhand_domain::page::{Page, Query, parameter};
use farhand_domain::time::Timestamp;
use farhand_domain::wire::Chunk;
use futures_util::{Stream, stream};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;
use worker::{Delay, Env};

use super::commands::{command_not_found, find};
use super::envelope;
use crate::auth::audit;
use crate::auth::credential::{Credential, Watch};
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::server_link::calls::{
    self, Ask, ChunkPage, Chunks, Follow, Followed, Live, Refusal,
};
use crate::platform;
use crate::platform::log;
use crate::store::commands;

/// How often a stream says that it is there, and looks whether it may go on, in milliseconds
/// (contract 7.9).
const KEEP_ALIVE: i64 = 15_000;
/// How long a stream gathers output before it asks for more, in milliseconds: each question costs.
const GATHER: u64 = 100;
/// How long a stream waits for a chunk that is missing while later ones are there, in seconds. An
/// agent tries a report for half a minute and then gives it up (agent-protocol 4.3), and its
/// command may run on for hours.
const GAP_LASTS: i64 = 40;
/// How many questions a stream asks at most; the platform allows a request 10,000. Then it ends
/// without an `end`, and who follows resumes.
const MAX_QUESTIONS: u32 = 8_000;

/// How many chunks of the whole output one call to the object returns.
const WHOLE_STEP: u64 = 64;

fn is_whole_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A whole number from 0 on that `u32` holds, as `seq` does.
fn seq(text: &str) -> Option<u64> {
    is_whole_number(text).then(|| text.parse::<u32>().ok()).flatten().map(u64::from)
}

/// The parameter `seq__gte`: the lowest `seq`. One that is too large for a `seq` is past all of
/// them.
fn lowest_seq(query: &Query) -> Result<u64, Error> {
    let Some(text) = parameter(query, "seq__gte") else { return Ok(0) };
    let is_number = is_whole_number(text);
    let seq = is_number.then(|| seq(text).unwrap_or(u64::from(u32::MAX) + 1));
    seq.ok_or_else(|| Error::field("seq__gte", "Enter a whole number of at least 0."))
}

/// The server of a command, out of its object.
fn server_of(body: &str) -> Result<Uuid, Error> {
    #[derive(Deserialize)]
    struct Known {
        server: Uuid,
    }
    Ok(serde_json::from_str::<Known>(body)?.server)
}

/// `GET /api/events/commands/<id>/chunks/`: the output in pieces, in their order.
pub async fn chunks(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let query = call.query();
    let id = credential.require_input(call.path_id(command_not_found)).await?;
    let (caller, body) = find(&credential, id).await?;
    audit::record_read(call, &caller, id);
    let (page, from) = error::both(Page::of(&query), lowest_seq(&query))?;
    let ask = Ask::Chunks(Chunks { id, from, offset: page.offset(), limit: page.size });
    let told = match calls::try_ask(&call.env, server_of(&body)?, &ask).await? {
        Ok(told) => told,
        // The server's object was wiped, and the chunks with it.
        Err(Refusal::NotFound) => ChunkPage { count: 0, chunks: vec![] },
        Err(refusal) => return Err(refusal.into()),
    };
    envelope(call, &query, page, serde_json::to_string(&told.chunks)?.into(), told.count)
}

/// The first and the next pieces of a command's whole output.
struct Whole {
    env: Env,
    id: Uuid,
    server: Uuid,
    /// The next `seq` to ask for; `None` after the last chunk.
    next: Option<u64>,
}

impl Whole {
    /// The next chunks as one text; `None` after the last one.
    async fn next_text(&mut self) -> Result<Option<String>, Error> {
        let Some(from) = self.next else { return Ok(None) };
        let ask = Ask::Chunks(Chunks { id: self.id, from, offset: 0, limit: WHOLE_STEP });
        let chunks = match calls::try_ask::<ChunkPage>(&self.env, self.server, &ask).await? {
            Ok(page) => page.chunks,
            // The server's object was wiped, and the chunks with it.
            Err(Refusal::NotFound) => vec![],
            Err(refusal) => return Err(refusal.into()),
        };
        self.next = chunks.last().map(|chunk| u64::from(chunk.seq) + 1);
        let text: String = chunks.into_iter().map(|chunk| chunk.content).collect();
        Ok(self.next.map(|_| text))
    }
}

/// The result of a command: the object's own, which may be newer than D1's, or else that of its
/// command object.
async fn result_of(call: &Call, id: Uuid, server: Uuid, body: &str) -> Result<String, Error> {
    #[derive(Deserialize)]
    struct Finished {
        result: Option<String>,
    }
    let ask = Ask::Live(Live { id, wait: None });
    let finished = match calls::try_ask::<Finished>(&call.env, server, &ask).await? {
        Ok(finished) => finished,
        Err(Refusal::NotFound) => serde_json::from_str(body)?,
        Err(refusal) => return Err(refusal.into()),
    };
    Ok(finished.result.unwrap_or_default())
}

/// `GET /api/events/commands/<id>/output/`: the whole kept output as plain text. Without any chunk,
/// it is the command's result: some agents send no chunks.
pub async fn whole(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(command_not_found)).await?;
    let (caller, body) = find(&credential, id).await?;
    audit::record_read(call, &caller, id);
    let mut rest = Whole { env: call.env.clone(), id, server: server_of(&body)?, next: Some(0) };
    let first = match rest.next_text().await? {
        Some(text) => text,
        None => result_of(call, id, rest.server, &body).await?,
    };
    let texts = stream::unfold((rest, Some(first)), |(mut rest, first)| async move {
        if let Some(text) = first {
            return Some((Ok(text), (rest, None)));
        }
        match rest.next_text().await {
            Ok(text) => text.map(|text| (Ok(text), (rest, None))),
            // An error cuts the answer off, so that a client does not take a part for the whole.
            Err(error) => Some((Err(error.detail.to_string().into()), (rest, None))),
        }
    });
    Ok(Reply::stream("text/plain; charset=utf-8", texts))
}

/// Somebody who follows a command's output.
struct Follower {
    env: Env,
    watch: Watch,
    id: Uuid,
    server: Uuid,
    /// The command object as it was at the beginning.
    command: Map<String, Value>,
    /// The next `seq`.
    next: u64,
    /// Since when chunks behind a gap were there, and those of the gap were not.
    gap_since: Option<Timestamp>,
    /// Whether a gap was not waited for any longer: what fills it later is not told.
    has_skipped: bool,
    /// Whether output is gathered for a moment before the next question.
    gathers: bool,
    questions: u32,
    /// When the credential is looked at again.
    checked_next: Timestamp,
    /// Nothing more is to be told.
    is_over: bool,
}

/// `GET /api/events/commands/<id>/stream/`: the output while it comes, as Server-Sent Events.
pub async fn stream(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let malformed = || {
        Error::field(NON_FIELD, "The header Last-Event-ID takes the id of an event of this stream.")
    };
    let next = match call.header("Last-Event-ID").filter(|id| !id.is_empty()) {
        None => Ok(0),
        Some(id) => seq(&id).map(|seq| seq + 1).ok_or_else(malformed),
    };
    let id = credential.require_input(call.path_id(command_not_found)).await?;
    let (caller, body) = find(&credential, id).await?;
    audit::record_read(call, &caller, id);
    let next = next?;
    let follower = Follower {
        env: call.env.clone(),
        watch: credential.watch(commands::is_readable(id)),
        id,
        server: server_of(&body)?,
        command: serde_json::from_str(&body)?,
        next,
        gap_since: None,
        has_skipped: false,
        gathers: false,
        questions: 0,
        checked_next: call.now.plus_millis(KEEP_ALIVE),
        is_over: false,
    };
    Ok(Reply::event_stream(events(follower)))
}

/// What a follower is told, as the texts of events. Where it cannot go on it ends without an `end`,
/// and who follows resumes, or is refused then.
fn events(follower: Follower) -> impl Stream<Item = worker::Result<String>> {
    stream::unfold(
        (follower, Some("retry: 1000\n\n".to_owned())),
        |(mut follower, first)| async move {
            if let Some(text) = first {
                return Some((Ok(text), (follower, None)));
            }
            if follower.is_over {
                return None;
            }
            match follower.next_text().await {
                Ok(Some(text)) => Some((Ok(text), (follower, None))),
                Ok(None) => None,
                Err(error) => {
                    log::trouble("stream_cut_off", json!({"command": follower.id}), &error.detail);
                    None
                }
            }
        },
    )
}

impl Follower {
    /// The text of the next events; `None` where the stream may not go on.
    async fn next_text(&mut self) -> Result<Option<String>, Error> {
        loop {
            if std::mem::take(&mut self.gathers) {
                Delay::from(Duration::from_millis(GATHER)).await;
            }
            if self.questions >= MAX_QUESTIONS {
                return Ok(None);
            }
            let Some(followed) = self.ask().await? else { return Ok(None) };
            let mut text = String::new();
            let now = platform::now();
            if self.checked_next <= now {
                self.questions += 1;
                if !self.watch.can_still_read(now).await? {
                    return Ok(None);
                }
                self.checked_next = now.plus_millis(KEEP_ALIVE);
                text.push_str(": keep-alive\n\n");
            }
            for chunk in &followed.chunks {
                self.has_skipped |= u64::from(chunk.seq) != self.next;
                self.next = u64::from(chunk.seq) + 1;
                text.push_str(&chunk_event(chunk));
            }
            let is_behind_gap = followed.chunks.is_empty() && followed.has_more;
            self.gap_since = is_behind_gap.then(|| self.gap_since.unwrap_or(now));
            self.gathers = !followed.chunks.is_empty() && !followed.has_more;
            if let Some(live) = followed.end {
                text.push_str(&self.end(live));
            }
            if !text.is_empty() {
                return Ok(Some(text));
            }
        }
    }

    /// Asks the server's object for what is next; `None` where only another stream can tell.
    async fn ask(&mut self) -> Result<Option<Followed>, Error> {
        self.questions += 1;
        let now = platform::now();
        let check_in = self.checked_next.seconds_since(now);
        let gap_ends_in =
            self.gap_since.map(|since| since.plus_seconds(GAP_LASTS).seconds_since(now));
        let wait = gap_ends_in.map_or(check_in, |gap_ends_in| gap_ends_in.min(check_in));
        let ask = Ask::Follow(Follow {
            id: self.id,
            from: self.next,
            wait_millis: ((wait * 1_000.0) as i64).clamp(0, KEEP_ALIVE),
            skips_gap: gap_ends_in.is_some_and(|seconds| seconds <= 0.0),
        });
        match calls::try_ask(&self.env, self.server, &ask).await? {
            Ok(followed) => Ok(Some(followed)),
            // The server's object was wiped: what D1 knows is the end, if it knew one when this
            // stream began.
            Err(Refusal::NotFound) => {
                let is_handled = self.command.get("handled_at").is_some_and(|at| !at.is_null());
                let had_output = self.command.get("output_bytes").is_some_and(|bytes| bytes != 0);
                let end = Map::from_iter([("output_truncated".to_owned(), had_output.into())]);
                Ok(is_handled.then(|| Followed { chunks: vec![], has_more: false, end: Some(end) }))
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// The last event: the command object, and whether the stream lacks some of its output.
    fn end(&mut self, live: Map<String, Value>) -> String {
        self.is_over = true;
        self.command.extend(live);
        if self.has_skipped {
            self.command.insert("output_truncated".to_owned(), true.into());
        }
        format!(
            "event: end\ndata: {}\n\n",
            serde_json::to_string(&Shown(&self.command)).unwrap_or_default()
        )
    }
}

/// An event of a piece of output, whose id is its `seq`. JSON has no line break, so that its text
/// is one line.
fn chunk_event(chunk: &Chunk) -> String {
    format!("id: {}\nevent: chunk\ndata: {}\n\n", chunk.seq, json!(chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_chunks() {
        assert_eq!(
            (seq("0"), seq("17"), seq("4294967295")),
            (Some(0), Some(17), Some(4_294_967_295))
        );
        for bad in ["", "-1", "+1", "1.0", "x", " 1", "4294967296"] {
            assert_eq!(seq(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_event_is_one_block() {
        let event = chunk_event(&Chunk { seq: 3, content: "a\n\nb\r\u{2028}".into() });
        assert_eq!(
            event,
            "id: 3\nevent: chunk\ndata: {\"content\":\"a\\n\\nb\\r\u{2028}\",\"seq\":3}\n\n"
        );
    }
}
