//! Limits that protect the service: quotas, throttles, and how full the database is.

pub mod fullness;
pub mod hashing_gate;
pub mod quota;
pub mod stream_slots;
pub mod throttle;
