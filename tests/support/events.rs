//! A reader of Server-Sent Events. Unlike readers for applications, it also returns comments, and
//! it notices a stream that breaks off inside an event.

use std::time::Duration;

use reqwest::Response;
use serde_json::Value;

use crate::PATIENCE;
use crate::client::{Api, Reply, SentRequest};
use crate::openapi::check_event;

/// One block of a stream.
#[derive(Clone, PartialEq, Debug)]
pub enum Block {
    /// A line that clients ignore.
    Comment(String),
    /// The reconnection delay, in milliseconds.
    Retry(u64),
    /// An event with a piece of output.
    Chunk {
        /// The chunk's `seq`, which is also the event's id.
        seq: u32,
        content: String,
    },
    /// A change of a batch's target.
    Change {
        /// The event's id.
        seq: u32,
        /// The data.
        change: Value,
    },
    /// The newest output of a batch's target: the data.
    Output(Value),
    /// The last event, with the command or the batch.
    End(Value),
}

/// An open stream.
pub struct Events {
    /// The response headers.
    pub headers: reqwest::header::HeaderMap,
    response: Response,
    /// Received bytes that are not a whole block yet.
    rest: Vec<u8>,
}

impl Events {
    /// Opens a stream at its beginning.
    ///
    /// # Errors
    /// The response, if its status is not 200.
    pub async fn open(api: &Api, path: &str) -> Result<Self, Reply> {
        Self::resume(api, path, None).await
    }

    /// Opens a stream after the event with the given id.
    ///
    /// # Errors
    /// The response, if its status is not 200.
    pub async fn resume(api: &Api, path: &str, last_event_id: Option<&str>) -> Result<Self, Reply> {
        let request = api.request("GET", path);
        let request = match last_event_id {
            Some(id) => request.header("Last-Event-ID", id),
            None => request,
        };
        let (client, request) = request.build_split();
        let request = request.unwrap();
        let sent = SentRequest::new(&request);
        let response = tokio::time::timeout(PATIENCE, client.execute(request))
            .await
            .expect("no response in time")
            .unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        if status != 200 {
            let reply = Reply { status, headers, text: response.text().await.unwrap() };
            sent.check(status, &reply.headers, Some(&reply.text));
            return Err(reply);
        }
        sent.check(status, &headers, None);
        Ok(Self { headers, response, rest: Vec::new() })
    }

    /// The next block, or `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Block> {
        self.next_within(PATIENCE).await
    }

    /// Like [`Events::next`], with another time limit.
    pub async fn next_within(&mut self, patience: Duration) -> Option<Block> {
        tokio::time::timeout(patience, self.read_block())
            .await
            .unwrap_or_else(|_| panic!("nothing arrived within {patience:?}"))
    }

    async fn read_block(&mut self) -> Option<Block> {
        let mut searched = 0;
        loop {
            let end = self.rest[searched..].windows(2).position(|pair| pair == b"\n\n");
            if let Some(end) = end {
                let block: Vec<u8> = self.rest.drain(..searched + end + 2).collect();
                return Some(parse(std::str::from_utf8(&block).unwrap()));
            }
            searched = self.rest.len().saturating_sub(1);
            match self.response.chunk().await.unwrap() {
                Some(bytes) => self.rest.extend(bytes),
                None => {
                    assert!(
                        self.rest.is_empty(),
                        "the stream broke off inside a block: {:?}",
                        String::from_utf8_lossy(&self.rest)
                    );
                    return None;
                }
            }
        }
    }

    /// The next chunk or end event, or `None` at the end of the stream. Skips other blocks.
    pub async fn next_event(&mut self) -> Option<Block> {
        loop {
            match self.next().await {
                Some(Block::Comment(_) | Block::Retry(_)) => {}
                other => return other,
            }
        }
    }

    /// The next chunk: its `seq` and its text.
    pub async fn next_chunk(&mut self) -> (u32, String) {
        match self.next_event().await {
            Some(Block::Chunk { seq, content }) => (seq, content),
            other => panic!("expected a chunk, not {other:?}"),
        }
    }

    /// Reads the stream to its end. Returns the remaining chunks and the command of the end event,
    /// and asserts that nothing follows.
    pub async fn rest(&mut self) -> (Vec<(u32, String)>, Value) {
        let mut chunks = Vec::new();
        loop {
            match self.next_event().await {
                Some(Block::Chunk { seq, content }) => chunks.push((seq, content)),
                Some(Block::End(command)) => {
                    assert_eq!(self.next().await, None, "nothing follows the end event");
                    return (chunks, command);
                }
                other => panic!("the stream has no end event: {other:?}"),
            }
        }
    }
}

/// Parses a block. Only the form that the service writes is accepted.
fn parse(block: &str) -> Block {
    assert!(!block.contains('\r'), "a carriage return would end the line early: {block:?}");
    let lines: Vec<(&str, &str)> = block
        .trim_end_matches('\n')
        .split('\n')
        .map(|line| line.split_once(": ").unwrap())
        .collect();
    match lines.as_slice() {
        [("", comment)] => Block::Comment((*comment).to_owned()),
        [("retry", millis)] => Block::Retry(millis.parse().unwrap()),
        [("id", id), ("event", "chunk"), ("data", data)] => {
            let chunk: Value = serde_json::from_str(data).unwrap();
            check_event("commands", "chunk", &chunk);
            let (seq, content) = (chunk["seq"].to_string(), chunk["content"].as_str().unwrap());
            assert_eq!((*id, chunk.as_object().unwrap().len()), (seq.as_str(), 2), "{data}");
            Block::Chunk { seq: id.parse().unwrap(), content: content.to_owned() }
        }
        [("event", "end"), ("data", data)] => {
            let end: Value = serde_json::from_str(data).unwrap();
            let resource = if end.get("counts").is_some() { "batches" } else { "commands" };
            check_event(resource, "end", &end);
            Block::End(end)
        }
        [("event", "output"), ("data", data)] => {
            let output = serde_json::from_str(data).unwrap();
            check_event("batches", "output", &output);
            Block::Output(output)
        }
        [("id", id), ("event", "target"), ("data", data)] => {
            let change = serde_json::from_str(data).unwrap();
            check_event("batches", "target", &change);
            Block::Change { seq: id.parse().unwrap(), change }
        }
        other => panic!("unknown kind of block: {other:?}"),
    }
}
