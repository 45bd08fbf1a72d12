//! How long an answer may be waited for (contract 7.6).

use farhand_domain::error::Error;
use farhand_domain::page::parameter;

use crate::http::request::Call;
use crate::platform;

/// The longest time that an answer may be waited for, in seconds (contract 7.6).
pub const MAX_WAIT: u32 = 60;

/// After how long a wait the caller's permission is checked again, in milliseconds.
const RECHECKED_AFTER: i64 = 1_000;

/// N of `Prefer: wait=N` (RFC 7240). A preference that is malformed is as good as none.
pub fn preferred_wait(header: &str) -> Option<u32> {
    let preference = header.split(',').find_map(|part| {
        let (name, value) = part.split(';').next()?.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then_some(value)
    })?;
    let seconds: Option<u32> = preference.trim().trim_matches('"').parse().ok();
    seconds.map(|seconds| seconds.min(MAX_WAIT))
}

/// N of `?wait=N`.
pub fn asked_wait(call: &Call) -> Result<Option<u32>, Error> {
    let query = call.query();
    let Some(text) = parameter(&query, "wait") else { return Ok(None) };
    let seconds = text.parse().ok().filter(|seconds| *seconds <= MAX_WAIT);
    seconds
        .map(Some)
        .ok_or_else(|| Error::field("wait", format!("Enter whole seconds from 0 to {MAX_WAIT}.")))
}

/// Whether an answer waited so long that the caller may have lost permission since.
pub fn has_waited(call: &Call, wait: Option<u32>) -> bool {
    wait.is_some_and(|seconds| seconds > 0)
        && call.now.plus_millis(RECHECKED_AFTER) < platform::now()
}

#[cfg(test)]
mod tests {
    use super::preferred_wait;

    #[test]
    fn preferences() {
        assert_eq!(preferred_wait("wait=5"), Some(5));
        assert_eq!(preferred_wait("respond-async, wait=5; x=y"), Some(5));
        assert_eq!(preferred_wait("wait=600"), Some(60));
        assert_eq!(preferred_wait("Wait = \"7\""), Some(7));
        for none in ["", "wait", "wait=", "wait=x", "wait=-1", "return=minimal"] {
            assert_eq!(preferred_wait(none), None, "{none}");
        }
    }
}
