//! `/api/`.

mod auth;
pub mod events;
mod iam;
mod servers;
mod status;
mod users;
