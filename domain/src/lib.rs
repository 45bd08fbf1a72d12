//! The rules of Farhand, with nothing of the platform in them.
//!
//! No clock, no randomness and no I/O: the time, random bytes and identifiers come in as arguments,
//! and decisions go out as values. So every rule is tested natively, in milliseconds, and the
//! Worker at the root of the repository only carries them out.
//!
//! `contract 7.8` in a comment is the heading 7.8 of `docs/spec/contract.md`, `agent-protocol 4.1`
//! one of `docs/spec/agent-protocol.md`. A test finds each of them (`tests/docs/citations.rs`).

pub mod account;
pub mod acl;
pub mod address;
pub mod api_token;
pub mod audit;
pub mod audit_chain;
pub mod authorization;
pub mod caller;
pub mod chunk_row;
pub mod command;
pub mod command_end;
pub mod command_list;
pub mod command_object;
pub mod contest;
pub mod cors;
pub mod endpoints;
pub mod error;
pub mod features;
pub mod fields;
pub mod fingerprint;
pub mod group;
pub mod hashing_gate;
pub mod host;
pub mod id;
pub mod lifecycle;
pub mod link;
pub mod mail;
pub mod output;
pub mod page;
pub mod password;
pub mod registration_token;
pub mod retention;
pub mod rights;
pub mod secret;
pub mod server;
pub mod session;
pub mod shell_words;
pub mod smtp;
pub mod throttle;
pub mod time;
pub mod user;
pub mod wire;
pub mod workspace;
