//! The dialect of `alpacon-cli` and `alpacon-mcp` (contract 21): a scripted client sends what the
//! real programs send, and reads it with their strictness (`tests/support/alpacon.rs`).

mod access_lists;
mod commands;
mod cost;
mod live;
mod login;
mod mcp;
mod people;
mod real_mcp;
mod safety;
mod servers;
mod tokens;
