//! Server-Sent Events, as they come. The reader is the tests' own, as it must see what readers for
//! applications leave out: comments, and where the stream is cut off.

use std::time::Duration;

use reqwest::Response;
use serde_json::Value;

use crate::PATIENCE;
use crate::client::{Api, Asked, Reply};
use crate::openapi::check_event;

/// Of what a stream is made.
#[derive(Clone, PartialEq, Debug)]
pub enum Block {
    /// A line that is for nobody.
    Comment(String),
    /// After how many milliseconds to connect again.
    Retry(u64),
    /// A piece of output, with the event's id.
    Chunk {
        /// The event's id, which is the chunk's `seq`.
        seq: u32,
        /// The text.
        content: String,
    },
    /// The command object.
    End(Value),
}

/// An open stream.
pub struct Events {
    /// The answer's headers.
    pub headers: reqwest::header::HeaderMap,
    response: Response,
    /// What came and is no whole block yet.
    rest: Vec<u8>,
}

impl Events {
    /// Opens a stream, from the beginning.
    ///
    /// # Errors
    /// The refusal.
    pub async fn open(api: &Api, path: &str) -> Result<Self, Reply> {
        Self::resume(api, path, None).await
    }

    /// Opens a stream, after the event with that id.
    ///
    /// # Errors
    /// The refusal.
    pub async fn resume(api: &Api, path: &str, last_event_id: Option<&str>) -> Result<Self, Reply> {
        let request = api.request("GET", path);
        let request = match last_event_id {
            Some(id) => request.header("Last-Event-ID", id),
            None => request,
        };
        let (client, request) = request.build_split();
        let request = request.unwrap();
        let asked = Asked::of(&request);
        let response = tokio::time::timeout(PATIENCE, client.execute(request))
            .await
            .expect("no answer came")
            .unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        if status != 200 {
            let reply = Reply { status, headers, text: response.text().await.unwrap() };
            asked.check(status, &reply.headers, Some(&reply.text));
            return Err(reply);
        }
        asked.check(status, &headers, None);
        Ok(Self { headers, response, rest: Vec::new() })
    }

    /// The next block, or `None` where the stream is over.
    pub async fn next(&mut self) -> Option<Block> {
        self.next_within(PATIENCE).await
    }

    /// The same where it may take longer.
    pub async fn next_within(&mut self, patience: Duration) -> Option<Block> {
        tokio::time::timeout(patience, self.read_block())
            .await
            .unwrap_or_else(|_| panic!("nothing came for {patience:?}"))
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
                        "cut off within a block: {:?}",
                        String::from_utf8_lossy(&self.rest)
                    );
                    return None;
                }
            }
        }
    }

    /// The next chunk or the end, or `None` where the stream is over; comments are left out.
    pub async fn next_event(&mut self) -> Option<Block> {
        loop {
            match self.next().await {
                Some(Block::Comment(_) | Block::Retry(_)) => {}
                other => return other,
            }
        }
    }

    /// The next chunk, with its `seq`.
    pub async fn next_chunk(&mut self) -> (u32, String) {
        match self.next_event().await {
            Some(Block::Chunk { seq, content }) => (seq, content),
            other => panic!("no chunk: {other:?}"),
        }
    }

    /// All chunks that are still to come, and the command object of the end, after which nothing
    /// comes.
    pub async fn rest(&mut self) -> (Vec<(u32, String)>, Value) {
        let mut chunks = Vec::new();
        loop {
            match self.next_event().await {
                Some(Block::Chunk { seq, content }) => chunks.push((seq, content)),
                Some(Block::End(command)) => {
                    assert_eq!(self.next().await, None, "the end is the last event");
                    return (chunks, command);
                }
                other => panic!("the stream ended without an end: {other:?}"),
            }
        }
    }
}

/// Reads a block, in the one form in which the service writes it.
fn parse(block: &str) -> Block {
    assert!(!block.contains('\r'), "a carriage return would end a line: {block:?}");
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
            check_event("chunk", &chunk);
            let (seq, content) = (chunk["seq"].to_string(), chunk["content"].as_str().unwrap());
            assert_eq!((*id, chunk.as_object().unwrap().len()), (seq.as_str(), 2), "{data}");
            Block::Chunk { seq: id.parse().unwrap(), content: content.to_owned() }
        }
        [("event", "end"), ("data", data)] => {
            let command = serde_json::from_str(data).unwrap();
            check_event("end", &command);
            Block::End(command)
        }
        other => panic!("no block of this stream: {other:?}"),
    }
}
