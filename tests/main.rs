//! The end-to-end tests. They use only HTTP and WebSocket. `npm test` starts the service for them.
//! Each test creates its own workspace, so tests can run concurrently.

mod agent;
mod api;
mod cli;
mod cost;
mod dialect;
mod docs;
mod faults;
mod operations;
mod security;

/// The Worker's own SQL for access control lists, compiled from the same file.
#[path = "../src/store/within_acl.rs"]
#[allow(dead_code)]
mod within_acl_sql;
