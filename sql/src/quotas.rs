//! SQL for the quotas of bytes (contract 11.4). `docs/contributing/quotas.md` explains them.
//!
//! A quota is for the last 24 hours. `quota_bytes` has the bytes of each hour, for a workspace and
//! for each user. The bytes of uncounted commands are read from their rows.
//!
//! The functions that limit something have the parameters `:bytes_of_day` and `:bytes_of_user`, or
//! `:output_of_day` and `:output_of_user`. A tenth of the first is kept for staff, who have no share
//! of their own. Of the bytes, half of it is kept for superusers.

use farhand_domain::command::output::MAX_KEPT;
use farhand_domain::limits::quota::STAFF_OUTPUT;

use crate::command_counts::{self, behind};

/// The number of hours that a quota includes: the current one, and the 24 hours before it.
const HOURS: i64 = 25;

/// The columns of `quota_bytes`, in the order of the insertions.
const COLUMNS: &str = "workspace_id, user_id, slot, hour, stored, output";

/// The end of an insertion into `quota_bytes`: adds to the row of the same hour.
const ADD: &str = "ON CONFLICT (workspace_id, user_id, slot) DO UPDATE SET
    stored = iif(hour = excluded.hour, stored, 0) + excluded.stored,
    output = iif(hour = excluded.hour, output, 0) + excluded.output, hour = excluded.hour
    WHERE excluded.hour >= hour";

/// SQL for the hour of a time, in hours since 1970.
fn hour(time: &str) -> String {
    format!("(unixepoch({time}) / 3600)")
}

/// SQL for the beginning of the first hour that a quota includes, which timestamps are compared
/// with.
fn since(now: &str) -> String {
    format!("strftime('%Y-%m-%dT%H', {now}, '-{} hours')", HOURS - 1)
}

/// SQL for the bytes of a row of `commands c` in D1. The bytes of restored commands are null.
const STORED: &str = "coalesce(c.stored_bytes, 0)";

/// SQL for the bytes of output that are kept of a row of `commands c`. Restored commands do not
/// count again.
fn kept_output() -> String {
    format!("iif(c.stored_bytes IS NULL, 0, min(c.output_bytes - c.output_skipped, {MAX_KEPT}))")
}

/// SQL for the time to which the output of a row of `commands c` belongs.
fn output_time(now: &str) -> String {
    format!("coalesce(c.handled_at, {now})")
}

/// SQL for the rows of `quota_bytes` of a workspace and of one of its users, with the columns
/// `hour`, `stored`, `output`, `user_stored` and `user_output`.
fn counted(workspace: &str, user: &str, now: &str) -> String {
    let rows = |id: &str, columns: &str| {
        format!(
            "SELECT q.hour AS hour, {columns} FROM quota_bytes q
             WHERE q.workspace_id = {workspace} AND q.user_id = {id} AND q.hour > {} - {HOURS}",
            hour(now)
        )
    };
    let of_all =
        rows("0", "q.stored AS stored, q.output AS output, 0 AS user_stored, 0 AS user_output");
    format!("{of_all} UNION ALL {}", rows(user, "0, 0, q.stored, q.output"))
}

/// SQL for the bytes of the last 24 hours: a table with one row and the columns `stored`, `output`,
/// `user_stored` and `user_output`. `user` is SQL for a user's id, which may be null.
pub fn usage(workspace: &str, user: &str, now: &str) -> String {
    let since = since(now);
    let stored = format!("iif(c.added_at >= {since}, {STORED}, 0)");
    let output = format!("iif({} >= {since}, {}, 0)", output_time(now), kept_output());
    let of_user = |bytes: &str| format!("iif(c.requested_by = {user}, {bytes}, 0)");
    let columns = ["stored", "output", "user_stored", "user_output"]
        .map(|column| format!("coalesce(sum(p.{column}), 0) AS {column}"));
    format!(
        "(SELECT {} FROM ({} UNION ALL
            SELECT 0, {stored}, {output}, {}, {} FROM commands c NOT INDEXED WHERE {}) p)",
        columns.join(", "),
        counted(workspace, user, now),
        of_user(&stored),
        of_user(&output),
        behind(workspace)
    )
}

/// SQL for the rank of the caller `me`: 2 for superusers, 1 for other staff, 0 for others.
pub const RANK_OF_ME: &str = "iif(me.is_superuser, 2, me.is_staff)";

/// SQL for the part of a workspace's quota of bytes that a rank may use. `rank` is SQL like
/// [`RANK_OF_ME`]. A tenth is kept for staff, and half of it for superusers: so neither users nor
/// one staff session can take the tools from those who must stop them.
fn share_of_rank(rank: &str) -> String {
    format!(":bytes_of_day * (CASE {rank} WHEN 2 THEN 20 WHEN 1 THEN 19 ELSE 18 END) / 20")
}

/// SQL for the bytes that may still be stored, from a row of [`usage`] named `u`. `rank` is SQL like
/// [`RANK_OF_ME`].
pub fn bytes_left(rank: &str) -> String {
    let all = share_of_rank(rank);
    // D1 passes numbers as doubles.
    format!(
        "CAST(min({all} - u.stored, iif({rank} > 0, {all}, :bytes_of_user - u.user_stored)) AS INTEGER)"
    )
}

/// SQL for the bytes of output that a command may keep, from a row of [`usage`] named `u`. `is_staff`
/// is SQL that is not null. A rank fits too.
pub fn output_limit(is_staff: &str) -> String {
    let all = format!("(:output_of_day - iif({is_staff}, 0, :output_of_day / 10))");
    format!(
        "CAST(max(min({all} - u.output, iif({is_staff}, {MAX_KEPT}, :output_of_user - u.user_output), {MAX_KEPT}),
            iif({is_staff}, {STAFF_OUTPUT}, 0)) AS INTEGER)"
    )
}

/// SQL for whether `bytes` are more than the quota would allow on a day without anything else.
pub fn never_fits(bytes: &str, rank: &str) -> String {
    let all = share_of_rank(rank);
    format!("{bytes} > min({all}, iif({rank} > 0, {all}, :bytes_of_user))")
}

/// SQL for the seconds until `bytes` more fit. Null: they never fit. `rank`: see
/// [`bytes_left`].
pub fn retry_after(bytes: &str, workspace: &str, user: &str, rank: &str, now: &str) -> String {
    let stored = format!(
        "SELECT {}, {STORED}, 0, iif(c.requested_by = {user}, {STORED}, 0), 0 FROM commands c NOT INDEXED
         WHERE {} AND c.added_at >= {}",
        hour("c.added_at"),
        behind(workspace),
        since(now)
    );
    // What still counts when an hour no longer does.
    let later = |column: &str| {
        format!(
            "coalesce(sum(sum(p.{column})) OVER (ORDER BY p.hour ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING), 0)
                AS {column}"
        )
    };
    format!(
        "(SELECT (min(u.hour) + {HOURS}) * 3600 - unixepoch({now}) FROM (
            SELECT p.hour, {}, {} FROM ({} UNION ALL {stored}) p GROUP BY p.hour) u WHERE {bytes} <= {})",
        later("stored"),
        later("user_stored"),
        counted(workspace, user, now),
        bytes_left(rank)
    )
}

/// The statement that adds `:stored_bytes` to what the caller `me` stored, if the statement before
/// it changed rows. It is for what is stored besides commands. `:now` is the current time.
pub fn add_bytes() -> String {
    let hour = hour(":now");
    format!(
        "INSERT INTO quota_bytes ({COLUMNS})
         SELECT me.workspace_id, u.value, {hour} % {HOURS}, {hour}, :stored_bytes, 0
         FROM me CROSS JOIN json_each(json_array(0, me.user_id)) u WHERE changes() > 0 {ADD}"
    )
}

/// The statements that add the uncounted commands of the workspace `:workspace_id` to the bytes of
/// its quotas and to its counters. Run them in one transaction.
pub fn count_commands() -> [String; 3] {
    let [counts, total] = command_counts::add();
    [add_commands(), counts, total]
}

/// The statement that adds the uncounted commands of the workspace `:workspace_id`. Run it before
/// the counters include them.
fn add_commands() -> String {
    let now = "strftime('%Y-%m-%dT%H:%M:%S', 'now')";
    let (since, time, output, behind) =
        (since(now), output_time(now), kept_output(), behind(":workspace_id"));
    let rows = |user: &str, column: &str, time: &str, columns: &str| {
        format!(
            "SELECT {user} AS user_id, {} AS hour, {columns} FROM commands c NOT INDEXED
             WHERE {behind} AND {user} IS NOT NULL AND {column} > 0 AND {time} >= {since}",
            hour(time)
        )
    };
    let parts = ["0", "c.requested_by"].map(|user| {
        [
            rows(user, STORED, "c.added_at", &format!("{STORED} AS stored, 0 AS output")),
            rows(user, "c.output_bytes", &time, &format!("0, {output}")),
        ]
        .join(" UNION ALL ")
    });
    format!(
        "INSERT INTO quota_bytes ({COLUMNS})
         SELECT :workspace_id, p.user_id, p.hour % {HOURS}, p.hour, sum(p.stored), sum(p.output)
         FROM ({}) p WHERE true GROUP BY p.user_id, p.hour {ADD}",
        parts.join(" UNION ALL ")
    )
}

/// The column that a statement of [`require_room`] violates.
pub const GUARD: &str = "quota_bytes.stored";

/// The statement that aborts its transaction if changes of the caller `me` have no bytes left, by a
/// null in the column [`GUARD`]. It writes nothing.
pub fn require_room() -> String {
    format!(
        "INSERT INTO quota_bytes ({COLUMNS})
         SELECT me.workspace_id, me.user_id, 0, 0, NULL, 0 FROM me
         WHERE (SELECT {} FROM {} u) <= 0",
        bytes_left(RANK_OF_ME),
        usage("me.workspace_id", "me.user_id", ":now")
    )
}
