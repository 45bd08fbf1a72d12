//! What all streams of Server-Sent Events share: how a client resumes one, and how it ends.

use farhand_domain::error::{Error, NON_FIELD};
use futures_util::stream;
use serde_json::Value;

use crate::http::request::Call;
use crate::http::response::Reply;
use crate::platform::log;

/// The maximum number of subrequests of a stream. The stream then closes without `end`, and the
/// client resumes with a new request. The platform allows 10,000 subrequests per request.
pub const MAX_SUBREQUESTS: u32 = 8_000;

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

/// The response with the events of a source. If the source cannot continue, it closes without an
/// `end` event. The client then reconnects, and gets a refusal if it may no longer read.
pub fn respond(source: impl EventSource + 'static) -> Reply {
    Reply::event_stream(stream::unfold(
        (source, Some(RETRY.to_owned())),
        |(mut source, first)| async move {
            if let Some(text) = first {
                return Some((Ok(text), (source, None)));
            }
            if source.has_ended() {
                return None;
            }
            match source.next_text().await {
                Ok(text) => text.map(|text| (Ok(text), (source, None))),
                Err(error) => {
                    log::error("stream_cut_off", source.subject(), &error.detail);
                    None
                }
            }
        },
    ))
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
