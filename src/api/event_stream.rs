//! What all streams of Server-Sent Events share: how many a user may have, how a client resumes
//! one, and how it ends.

use farhand_domain::access::caller::Caller;
use farhand_domain::error::{Error, NON_FIELD};
use farhand_domain::limits::stream_slots::RENEWAL_SECONDS;
use farhand_domain::time::Timestamp;
use futures_util::stream;
use serde_json::Value;
use uuid::Uuid;
use worker::Env;

use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::throttle::{self, SlotChange};
use crate::platform;
use crate::platform::log;

/// The maximum number of subrequests of a source. The stream then closes without `end`, and the
/// client resumes with a new request. The platform allows 10,000 subrequests per request. A silent
/// source makes two of them for each renewal of its slot.
pub const MAX_SUBREQUESTS: u32 = 6_000;

/// The first text of a stream: how long a client waits before it reconnects, in milliseconds.
const RETRY: &str = "retry: 1000\n\n";

/// What a stream sends.
pub trait EventSource {
    /// The text of the next events. `None`: the stream cannot continue, and closes without `end`.
    ///
    /// # Errors
    /// An object or D1 failed.
    async fn next_text(&mut self) -> Result<Option<String>, Error>;

    /// Whether the `end` event was sent.
    fn has_ended(&self) -> bool;

    /// What the stream is about, for the log.
    fn subject(&self) -> Value;
}

/// One of the streams that a user may hold open (contract 11.4). If the client disconnects, nothing
/// frees the slot, and its lease expires.
struct Slot {
    env: Env,
    user: String,
    id: Uuid,
    /// When the lease is renewed next.
    renew_at: Timestamp,
}

impl Slot {
    async fn open(call: &Call, caller: &Caller) -> Result<Self, Error> {
        let slot = Self {
            env: call.env.clone(),
            user: format!("streams {} {}", caller.workspace_id, caller.user_id),
            id: platform::new_id(call.now)?,
            renew_at: call.now.plus_seconds(RENEWAL_SECONDS),
        };
        slot.change(SlotChange::Open { max: call.config.quotas.streams_of_user }).await?;
        Ok(slot)
    }

    async fn change(&self, change: SlotChange) -> Result<(), Error> {
        throttle::change_slot(&self.env, &self.user, self.id, change).await
    }

    /// Renews the lease, if this is due.
    async fn renew(&mut self) -> Result<(), Error> {
        let now = platform::now();
        if self.renew_at <= now {
            self.change(SlotChange::Renew).await?;
            self.renew_at = now.plus_seconds(RENEWAL_SECONDS);
        }
        Ok(())
    }
}

/// The response with the events of a source. If the source cannot continue, it closes without an
/// `end` event. The client then reconnects, and gets a refusal if it may no longer read.
///
/// # Errors
/// 429 `QUOTA_EXCEEDED` if the caller has too many streams.
pub async fn respond(
    call: &Call,
    caller: &Caller,
    source: impl EventSource + 'static,
) -> Result<Reply, Error> {
    let slot = Slot::open(call, caller).await?;
    Ok(Reply::event_stream(stream::unfold(
        (source, slot, Some(RETRY.to_owned())),
        |(mut source, mut slot, first)| async move {
            if let Some(text) = first {
                return Some((Ok(text), (source, slot, None)));
            }
            let next = async {
                if source.has_ended() {
                    return Ok(None);
                }
                slot.renew().await?;
                source.next_text().await
            };
            let text = next.await.unwrap_or_else(|error| {
                log::error("stream_cut_off", source.subject(), &error.detail);
                None
            });
            if let Some(text) = text {
                return Some((Ok(text), (source, slot, None)));
            }
            if let Err(error) = slot.change(SlotChange::Close).await {
                log::error("stream_not_closed", source.subject(), &error.detail);
            }
            None
        },
    )))
}

/// The number of the last event that the client received. `None`: the request names no event.
///
/// # Errors
/// The header `Last-Event-ID` is not the number of an event.
pub fn last_event(call: &Call) -> Result<Option<u32>, Error> {
    let Some(text) = call.header("Last-Event-ID").filter(|id| !id.is_empty()) else {
        return Ok(None);
    };
    event_number(&text).map(Some).ok_or_else(|| {
        Error::field(NON_FIELD, "The header Last-Event-ID takes the id of an event of this stream.")
    })
}

/// Parses the number of an event: only digits.
pub fn event_number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::event_number;

    #[test]
    fn event_numbers_fit_into_u32() {
        assert_eq!(
            ["0", "17", "4294967295"].map(event_number),
            [Some(0), Some(17), Some(4_294_967_295)]
        );
        for bad in ["", "-1", "+1", "1.0", "x", " 1", "4294967296"] {
            assert_eq!(event_number(bad), None, "{bad}");
        }
    }
}
