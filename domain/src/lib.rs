//! The rules of Farhand, independent of Cloudflare.
//!
//! This crate has no clock, no randomness and no I/O. The time and random bytes are arguments, and
//! decisions are return values. So each rule has fast native tests. The Worker at the root of the
//! repository, and the agent, carry the decisions out.
//!
//! In a comment, `contract 7.8` means heading 7.8 of `docs/spec/contract.md`, and
//! `agent-protocol 4.1` a heading of `docs/spec/agent-protocol.md`. The test
//! `tests/docs/citations.rs` checks that these headings exist.

pub mod account;
pub mod acl;
pub mod acl_limit;
pub mod acl_pattern;
pub mod address;
pub mod api_token;
pub mod audit;
pub mod audit_chain;
pub mod authorization;
pub mod batch;
pub mod batch_list;
pub mod batch_request;
pub mod caller;
pub mod chunk_row;
pub mod command;
pub mod command_audit;
pub mod command_end;
pub mod command_list;
pub mod command_object;
pub mod console;
pub mod contest;
pub mod cors;
pub mod dialect;
pub mod endpoints;
pub mod error;
pub mod features;
pub mod fields;
pub mod fingerprint;
pub mod fullness;
pub mod group;
pub mod hashing_gate;
pub mod host;
pub mod id;
pub mod inputs;
pub mod installer;
pub mod labels;
pub mod lifecycle;
pub mod link;
pub mod mail;
pub mod notice;
pub mod output;
pub mod page;
pub mod password;
pub mod quota;
pub mod registration_token;
pub mod retention;
pub mod rights;
pub mod schedule;
pub mod script;
pub mod secret;
pub mod selector;
pub mod server;
pub mod session;
pub mod shell_words;
pub mod smtp;
pub mod stream_slots;
pub mod throttle;
pub mod time;
pub mod user;
pub mod wire;
pub mod workspace;
