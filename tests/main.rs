//! The end-to-end tests, through HTTP and WebSocket only. `npm test` starts the service that they
//! talk to; each test makes its own workspace, so that they run side by side.

mod agent;
mod api;
mod cost;
mod docs;
mod faults;
mod operations;
mod security;

/// The Worker's SQL for what access control lists allow, the very same file.
#[path = "../src/store/within_acl.rs"]
#[allow(dead_code)]
mod within_acl_sql;
