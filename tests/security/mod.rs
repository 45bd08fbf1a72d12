//! Access, isolation and credentials (contract 4 and 5; `docs/security.md`).

mod access;
pub mod acl;
mod fleet;
mod isolation;
mod ports;
mod refusals;
mod rotation;
mod secrets;
mod transport;
