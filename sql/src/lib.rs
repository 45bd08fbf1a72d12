//! Builds SQL for D1, and for the tables of the Durable Objects. The crate does not depend on
//! Cloudflare, so tests can run the statements in SQLite.

pub mod batches;
pub mod command_counts;
pub mod command_list;
pub mod deleted_servers;
pub mod numbering;
pub mod object;
pub mod quotas;
pub mod selector;
pub mod server_changes;
pub mod statement;
