//! Users and groups, their passwords and login sessions.

pub mod group;
pub mod password;
pub mod session;
pub mod user;
