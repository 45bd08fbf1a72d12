//! `/api/`.

mod auth;
mod events;
mod iam;
mod servers;
mod status;
mod users;
