//! `/api/auth/`.

mod header;
mod is_authenticated;
mod login;
mod logout;
mod tokens;
