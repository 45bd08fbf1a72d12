//! Requests and responses: what a request says, how an answer is put, and whether the deployment is complete.

pub mod request;
pub mod response;
pub mod routes;
pub mod setup;
