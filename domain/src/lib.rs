//! The rules of Farhand, independent of Cloudflare.
//!
//! This crate has no clock, no randomness and no I/O. The time and random bytes are arguments, and
//! decisions are return values. So each rule has fast native tests. The Worker at the root of the
//! repository, and the agent, carry the decisions out.
//!
//! Each module is a layer. This list has the lowest first, and a module uses only those before it,
//! which `src/structure_tests.rs` checks:
//!
//! - `time`: timestamps in the form that all parts store and show.
//! - `id`: UUIDs.
//! - `hash`: SHA-256 and hexadecimal.
//! - `shell_words`: the words of `argv` as a line.
//! - `workspace`: the names of workspaces.
//! - `error`: the error of all rules.
//! - `secret`: credentials, their hashes, and keys.
//! - `http`: what a request has, and the table of endpoints.
//! - `audit`: audit events and their chain.
//! - `mail`: mails, notices and SMTP.
//! - `agent`: what the service and the agents exchange.
//! - `fleet`: servers, their labels, and selectors.
//! - `people`: users, groups, passwords and login sessions.
//! - `limits`: quotas, throttles, and how full the database is.
//! - `command`: commands, their life and output, and scripts.
//! - `access`: callers, tokens, access control lists and permissions.
//! - `turn`: the order in which the object of a state machine acts.
//! - `link`: the object of a server, as a state machine.
//! - `batch`: requests for batches, and a batch as a state machine.
//! - `schedule`: due times, and what happens at one.
//! - `dialect`: the dialect of Alpacon's clients.
//!
//! In a comment, `contract 7.8` means heading 7.8 of `docs/spec/contract.md`, and
//! `agent-protocol 4.1` a heading of `docs/spec/agent-protocol.md`. The test
//! `tests/docs/citations.rs` checks that these headings exist.

pub mod access;
pub mod agent;
pub mod audit;
pub mod batch;
pub mod command;
pub mod dialect;
pub mod error;
pub mod fleet;
pub mod hash;
pub mod http;
pub mod id;
pub mod limits;
pub mod link;
pub mod mail;
pub mod people;
pub mod schedule;
pub mod secret;
pub mod shell_words;
pub mod time;
pub mod turn;
pub mod workspace;
