//! Requests and responses: what a request says, how an answer is put, CORS, the log line of a
//! request, and whether the deployment is complete.

pub mod cors;
pub mod head;
pub mod request;
pub mod request_log;
pub mod response;
pub mod setup;
