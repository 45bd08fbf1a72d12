//! This host: its accounts, its processes, the facts that it reports, and the agent's own program.

pub mod account;
pub mod facts;
pub mod process;
pub mod program;
pub mod system;
