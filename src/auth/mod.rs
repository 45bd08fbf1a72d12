//! Authentication: the credential check of a request, password hashing, the throttle of password
//! guesses, audit events that belong to no change in D1, and cached list statements.

pub mod audit;
pub mod credential;
pub mod guesses;
pub mod hashing;
mod joined;
pub mod list_cache;
