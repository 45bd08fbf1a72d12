//! Requests and responses of the Worker: their contents, CORS, the log line of a request, and the
//! refusal of requests to an incomplete deployment.

pub mod cors;
pub mod head;
pub mod request;
pub mod request_log;
pub mod response;
pub mod setup;
