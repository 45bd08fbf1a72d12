//! Servers: their fields, labels and selectors, and how a host becomes a server.

pub mod fingerprint;
pub mod installer;
pub mod labels;
pub mod selector;
pub mod server;
