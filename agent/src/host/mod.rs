//! This host: its accounts, its processes, its system log, the facts that the agent reports, and
//! the agent's own program.

pub mod account;
pub mod facts;
pub mod process;
pub mod program;
pub mod system;
pub mod system_log;
pub mod trusted_file;
