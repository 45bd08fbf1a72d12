//! The log line of each request.

use farhand_domain::http::endpoints::Access;
use serde::Serialize;
use worker::console_log;

use crate::http::request::Call;
use crate::platform::{self, cost::Cost};

/// The log line, as JSON (`docs/operations.md`).
#[derive(Serialize)]
struct RequestLine<'a> {
    event: &'static str,
    request_id: &'a str,
    workspace: Option<&'a str>,
    route: Option<&'static str>,
    method: &'a str,
    status: u16,
    /// The time from the arrival of the request to the response, without the body of a streamed
    /// response. The runtime's clock advances only during I/O, so computing time is not included.
    duration_ms: u64,
    #[serde(flatten)]
    cost: Cost,
}

/// Logs a request after its response. The line has the route instead of the path, and no query,
/// because a path or a query may contain a key.
///
/// A successful request to an open endpoint without any cost is not logged, because logging would
/// be most of its work.
pub fn write(call: &Call, status: u16, cost: Cost) {
    let is_open = call.route.is_some_and(|route| route.access == Access::Open);
    if is_open && status == 200 && cost == Cost::default() {
        return;
    }
    let line = RequestLine {
        event: "request",
        request_id: &call.id,
        workspace: call.host.workspace(),
        route: call.route.map(|route| route.path),
        method: &call.method,
        status,
        duration_ms: platform::now().as_millis().saturating_sub(call.now.as_millis()),
        cost,
    };
    console_log!("{}", serde_json::to_string(&line).unwrap_or_default());
}
