//! The agent as a service of this host: it registers, installs, shows its status, and checks in.

pub mod checkin;
mod config_file;
pub mod configure;
pub mod install;
pub mod key_check;
pub mod policy_check;
pub mod policy_install;
pub mod register;
pub mod status;
