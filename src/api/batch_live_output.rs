//! The live output of a batch's running targets, for `stream/?output=true` (contract 13.11). Best
//! effort: output may be missing, and the streams of the commands have all of it.

use std::collections::BTreeMap;

use farhand_domain::agent::wire::Chunk;
use futures_util::future;
use serde_json::json;
use uuid::Uuid;
use worker::Env;

use crate::objects::batch::calls::BatchEvent;
use crate::objects::server_link::calls::{self, FollowOutput, FollowedOutput, LinkRequest};

/// The maximum size of one target's output in one event, in bytes.
const MAX_BYTES: usize = 4_096;
/// The maximum number of targets that are read at a time. The others follow in turn.
const MAX_READS: usize = 50;

/// A target whose command was started.
struct LiveTarget {
    command: Uuid,
    /// The lowest `seq` that was not read.
    next: u64,
    /// Its output is read once more, and then no more.
    has_ended: bool,
}

/// The targets that may have output, by their servers.
#[derive(Default)]
pub struct LiveOutput {
    targets: BTreeMap<Uuid, LiveTarget>,
    /// The server that was read last.
    last: Option<Uuid>,
}

impl LiveOutput {
    /// Notes the state of a target.
    pub fn note(&mut self, event: &BatchEvent) {
        let (Some(server), Some(command)) = (event.server, event.command) else { return };
        let has_ended = !["queued", "sent", "running"].contains(&event.state.as_str());
        let target = LiveTarget { command, next: 0, has_ended: false };
        self.targets.entry(server).or_insert(target).has_ended = has_ended;
    }

    /// Whether a target may have new output.
    pub fn is_expected(&self) -> bool {
        !self.targets.is_empty()
    }

    /// Reads the new output of the next targets that the caller can see. Returns the events, and
    /// the number of calls.
    pub async fn read(&mut self, env: &Env, is_visible: impl Fn(Uuid) -> bool) -> (String, u32) {
        self.targets.retain(|server, _| is_visible(*server));
        let after = self.last.unwrap_or(Uuid::nil());
        let later = self.targets.range(after..).skip_while(|(server, _)| **server == after);
        let earlier = self.targets.range(..=after);
        let chosen: Vec<(Uuid, Uuid, u64)> = later
            .chain(earlier)
            .take(MAX_READS)
            .map(|(server, target)| (*server, target.command, target.next))
            .collect();
        self.last = chosen.last().map(|(server, ..)| *server);
        let reads = chosen.iter().map(async |(server, id, from)| {
            let follow = FollowOutput { id: *id, from: *from, wait_millis: 0, skips_gap: true };
            calls::call::<FollowedOutput>(env, *server, &LinkRequest::FollowOutput(follow)).await
        });
        let mut text = String::new();
        for ((server, ..), read) in chosen.iter().zip(future::join_all(reads).await) {
            // A failed call is repeated in the next turn, or the output stays missing.
            let chunks = read.map(|followed| followed.chunks).unwrap_or_default();
            let Some(target) = self.targets.get_mut(server) else { continue };
            if let Some(last) = chunks.last() {
                target.next = u64::from(last.seq) + 1;
                let command = target.command;
                let data =
                    json!({"server": server, "command": command, "content": newest(&chunks)});
                text.push_str(&format!("event: output\ndata: {data}\n\n"));
            } else if target.has_ended {
                self.targets.remove(server);
            }
        }
        (text, u32::try_from(chosen.len()).unwrap_or(u32::MAX))
    }
}

/// The last [`MAX_BYTES`] of some output, in whole characters.
fn newest(chunks: &[Chunk]) -> String {
    let all: String = chunks.iter().map(|chunk| chunk.content.as_str()).collect();
    let from = (all.len().saturating_sub(MAX_BYTES)..=all.len())
        .find(|start| all.is_char_boundary(*start));
    all[from.unwrap_or(0)..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_output_is_sent_in_whole_characters() {
        let chunk = |content: String| Chunk { seq: 0, content };
        assert_eq!(newest(&[chunk("a".into()), chunk("b\n".into())]), "ab\n");
        let long = newest(&[chunk("x".into()), chunk("ü".repeat(3_000))]);
        assert_eq!(long, "ü".repeat(2_048));
        assert_eq!(newest(&[chunk("x".repeat(2)), chunk("ü".repeat(2_048))]).len(), 4_096);
        let odd = newest(&[chunk("ü".repeat(2_048)), chunk("x".into())]);
        assert_eq!((odd.len(), odd.ends_with("üx")), (4_095, true));
    }
}
