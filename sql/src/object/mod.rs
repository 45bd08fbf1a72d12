//! The tables that the Durable Objects have in a SQLite database of their own, and all statements on
//! them.
//!
//! An object has no migrations. Its schema is a list of statements, which it runs when it stores
//! something. Objects that exist keep the tables that an earlier version of the program created, so
//! a change of the schema must be readable with their data.

pub mod audit_sealer;
pub mod batch;
pub mod channel;
pub mod mailer;
pub mod server_link;
pub mod throttle;
