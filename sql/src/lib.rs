//! SQL for D1, without Cloudflare: the statements are built here and tested natively against SQLite.

pub mod command_list;
pub mod statement;
