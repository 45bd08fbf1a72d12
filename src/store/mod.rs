//! All SQL and KV of the Worker, one file per table. Functions are named noun_verb in the modules' own terms.

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
