//! This host: its accounts, its processes, what it reports of itself, and the agent's own program.

pub mod account;
pub mod facts;
pub mod process;
pub mod program;
