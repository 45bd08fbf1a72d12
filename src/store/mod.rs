//! All SQL and KV of the Worker, one file per table.
//!
//! A function fails if D1 or KV does, or if a row does not have the form that the code expects:
//! both are faults of the service.

pub mod anonymous_events;
pub mod api_tokens;
pub mod audit;
pub mod audit_chain;
pub mod batch;
pub mod command_list;
pub mod commands;
pub mod db;
pub mod groups;
pub mod idempotency_keys;
pub mod list;
pub mod login_tokens;
pub mod registration_tokens;
pub mod reset_requests;
pub mod retention;
pub mod scope;
pub mod servers;
pub mod sessions;
pub mod users;
pub mod within_acl;
pub mod workspaces;
