//! `/api/iam/`.

mod groups;
mod memberships;
mod users;
