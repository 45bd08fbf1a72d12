//! SQL for D1, without Cloudflare: statements are built here, and tested natively in SQLite.

pub mod command_counts;
pub mod command_list;
pub mod numbering;
pub mod statement;
