//! Who calls: the credential of a request, guesses at passwords, and what the audit log tells of a
//! refusal.

pub mod audit;
pub mod credential;
pub mod guesses;
pub mod hashing;
pub mod kept_lists;
