//! `/api/auth/`.

mod change_password;
mod header;
mod is_authenticated;
mod login;
mod logout;
mod reset_password;
mod sessions;
mod throttle;
mod tokens;
