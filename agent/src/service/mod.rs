//! The agent as a service of this host: it registers, installs, shows its status, and checks in.

pub mod checkin;
pub mod install;
pub mod register;
pub mod status;
