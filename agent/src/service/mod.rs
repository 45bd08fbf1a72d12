//! The agent as a service of this host: how it is registered, installed and checked, and how it
//! checks in.

pub mod checkin;
pub mod install;
pub mod register;
pub mod status;
