//! Cross-origin requests (contract 3.2). `farhand_domain::http::cors` decides which origins are allowed.

use farhand_domain::http::cors;

use crate::http::head::is_of_operator;
use crate::http::request::Call;
use crate::http::response::Reply;

/// Adds the CORS headers that let pages of the web client's origin read the response. The operator
/// API has no CORS headers.
pub fn add_headers(call: &Call, reply: Reply) -> Reply {
    let Some(origin) = call.header("Origin").filter(|_| !is_of_operator(&call.path)) else {
        return reply;
    };
    let web_client = call.config.separate_web_client().unwrap_or(&call.origin);
    let reply = reply.header("Vary", "Origin");
    if !cors::allows(web_client, &origin) {
        return reply;
    }
    let reply = reply.header("Access-Control-Allow-Origin", origin).header(
        "Access-Control-Expose-Headers",
        "X-Request-Id, X-Error-Code, Retry-After, Location, Idempotent-Replayed, Preference-Applied",
    );
    if call.method != "OPTIONS" {
        return reply;
    }
    reply
        .header("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
        .header(
            "Access-Control-Allow-Headers",
            "Authorization, Content-Type, Prefer, Idempotency-Key, Last-Event-ID, X-Request-Id",
        )
        .header("Access-Control-Max-Age", "600")
}
