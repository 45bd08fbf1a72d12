//! The log line of a request.

use farhand_domain::endpoints::Access;
use serde::Serialize;
use worker::console_log;

use crate::http::request::Call;
use crate::platform::{self, cost::Cost};

/// A line of the log.
#[derive(Serialize)]
struct Line<'a> {
    event: &'static str,
    request_id: &'a str,
    workspace: Option<&'a str>,
    route: Option<&'static str>,
    method: &'a str,
    status: u16,
    /// From the arrival of the request to its response, without the body of a streaming response.
    /// The platform's clock only advances during I/O, so the Worker's own computing time is not
    /// included.
    duration_ms: u64,
    #[serde(flatten)]
    cost: Cost,
}

/// Writes the line of a request at its end: a JSON object without the path or the query.
///
/// A successful request to an open endpoint that cost nothing writes no line: the line would be
/// most of the work.
pub fn write(call: &Call, status: u16, cost: Cost) {
    let is_open = call.route.is_some_and(|route| route.access == Access::Open);
    if is_open && status == 200 && cost == Cost::default() {
        return;
    }
    let line = Line {
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
