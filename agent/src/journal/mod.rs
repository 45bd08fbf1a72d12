//! Records of commands: the agent's own journal, and the host's system log.

pub mod file;
pub mod host_journal;
pub mod shorten;
pub mod writer;
