//! Records of commands: in the agent's own journal, and in the host's system log.

pub mod file;
pub mod host_journal;
pub mod shorten;
pub mod writer;
