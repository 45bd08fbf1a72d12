//! Authentication: the credential check of a request, guesses at passwords, password hashing, and
//! the audit events of refusals.

pub mod audit;
pub mod credential;
pub mod guesses;
pub mod hashing;
pub mod list_cache;
