//! Requests and responses of the Worker: their contents, CORS, the log line of each request, and
//! the 503 of an incomplete deployment.

pub mod assets;
pub mod cors;
pub mod head;
pub mod request;
pub mod request_log;
pub mod response;
pub mod setup;
