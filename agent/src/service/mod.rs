//! The agent as a service of this host: register, install, check status, and check in at start.

pub mod checkin;
pub mod install;
pub mod register;
pub mod status;
