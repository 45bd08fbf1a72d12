//! How long a response waits for the end of a command: the client chooses (contract 7.6).

use std::time::Duration;

use farhand_domain::error::Error;
use farhand_domain::http::page::last_value;

use crate::http::request::Call;
use crate::platform;

/// The maximum wait, in seconds.
pub const MAX_WAIT_SECONDS: u32 = 60;

/// If the response waited longer than this, the credential and its permission are checked again
/// before it is sent.
const RECHECK_AFTER: Duration = Duration::from_secs(1);

/// The seconds of `Prefer: wait=N` (RFC 7240), at most [`MAX_WAIT_SECONDS`]. Returns `None` if the
/// preference is missing or malformed.
pub fn preferred_wait(header: &str) -> Option<u32> {
    let preference = header.split(',').find_map(|part| {
        let (name, value) = part.split(';').next()?.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then_some(value)
    })?;
    let seconds: Option<u32> = preference.trim().trim_matches('"').parse().ok();
    seconds.map(|seconds| seconds.min(MAX_WAIT_SECONDS))
}

/// The seconds of the query parameter `wait`.
///
/// # Errors
/// 400 if it is not a whole number up to [`MAX_WAIT_SECONDS`].
pub fn requested_wait(call: &Call) -> Result<Option<u32>, Error> {
    let query = call.query();
    let Some(text) = last_value(&query, "wait") else { return Ok(None) };
    let seconds = text.parse().ok().filter(|seconds| *seconds <= MAX_WAIT_SECONDS);
    seconds.map(Some).ok_or_else(|| {
        Error::field("wait", format!("Enter whole seconds from 0 to {MAX_WAIT_SECONDS}."))
    })
}

/// Whether the client requested a wait and the request took longer than [`RECHECK_AFTER`].
pub fn needs_recheck(call: &Call, wait: Option<u32>) -> bool {
    wait.is_some_and(|seconds| seconds > 0) && call.now.plus(RECHECK_AFTER) < platform::now()
}

#[cfg(test)]
mod tests {
    use super::preferred_wait;

    #[test]
    fn preferences_are_parsed_and_capped() {
        assert_eq!(preferred_wait("wait=5"), Some(5));
        assert_eq!(preferred_wait("respond-async, wait=5; x=y"), Some(5));
        assert_eq!(preferred_wait("wait=600"), Some(60));
        assert_eq!(preferred_wait("Wait = \"7\""), Some(7));
        for none in ["", "wait", "wait=", "wait=x", "wait=-1", "return=minimal"] {
            assert_eq!(preferred_wait(none), None, "{none}");
        }
    }
}
