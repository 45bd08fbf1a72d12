//! The D1 table of the bytes that users stored, for changes that have no quota of their own
//! (contract 11.4).

pub use farhand_sql::quotas::GUARD;
use farhand_sql::quotas::{RANK_OF_ME, require_room as guard, retry_after};
use farhand_sql::statement::Statement;

use super::db::params;
use super::scope::{Query, Scope};
use crate::platform::Quotas;

/// The statement that aborts its transaction if the caller has no bytes left: see
/// [`farhand_sql::quotas::require_room`].
pub fn require_room(scope: &Scope<'_>, limits: Quotas) -> Statement {
    scope.statement(&guard()).bind_all(params! {
        bytes_of_day: limits.bytes_of_day, bytes_of_user: limits.bytes_of_user,
    })
}

/// Reads the seconds until the caller has bytes left.
pub fn find_retry_after(limits: Quotas) -> Query {
    let sql = retry_after("1", "me.workspace_id", "me.user_id", RANK_OF_ME, ":now");
    let parameters = params! {
        bytes_of_day: limits.bytes_of_day, bytes_of_user: limits.bytes_of_user,
    };
    Query::new(format!("CAST({sql} AS TEXT)"), parameters)
}
