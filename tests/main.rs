//! The end-to-end tests, through HTTP and WebSocket only. `npm test` starts the service that they talk to; each test
//! makes its own workspace, so that they run side by side.

mod access;
mod acl;
mod agent;
mod api;
mod audit;
mod backup;
mod bad_input;
mod bench;
mod cloud;
mod conventions;
mod d1_calls;
mod dependencies;
mod docs;
mod endpoints;
mod faults;
mod fleet;
mod hosts;
mod idempotency_keys;
mod isolation;
mod mail;
mod openapi;
mod operator;
mod properties;
mod request_log;
mod reset_page;
mod retention;
mod rotation;
mod secrets;
mod set_up;
mod start;
mod transport;
mod unknown_fields;

/// The Worker's SQL for what access control lists allow, the very same file.
#[path = "../src/store/within_acl.rs"]
#[allow(dead_code)]
mod within_acl_sql;
