//! `/api/iam/`.

mod users;
