//! Requests of HTTP: their host, address and credential, their bodies and queries, and the table of
//! endpoints.

pub mod address;
pub mod authorization;
pub mod console;
pub mod cors;
pub mod endpoints;
pub mod fields;
pub mod host;
pub mod page;
