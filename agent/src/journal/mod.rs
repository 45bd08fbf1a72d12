//! The journal: what the agent keeps of commands across restarts.

pub mod file;
pub mod shorten;
pub mod writer;
