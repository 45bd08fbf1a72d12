//! The API as clients see it. The files mirror the URL tree. Some files test rules for all
//! endpoints.

mod audit;
mod auth;
mod bad_input;
mod batches;
mod console;
mod conventions;
mod docs_page;
pub mod endpoints;
pub mod events;
mod hosts;
mod iam;
mod idempotency_keys;
mod reset_page;
mod schedules;
mod scripts;
mod servers;
mod status;
mod unknown_fields;
mod users;
