//! Builds SQL for D1, without any code of Cloudflare. So tests can run the statements in SQLite.

pub mod command_counts;
pub mod command_list;
pub mod numbering;
pub mod selector;
pub mod statement;
