//! SQL for batches: the states of targets, their counts, and the quotas (contract 13).

use crate::quotas::{self, RANK_OF_ME};

/// SQL that joins the command of a row of `batch_targets t` as `commands c`. A target that has not
/// started has no command.
#[macro_export]
macro_rules! join_command {
    () => {
        "LEFT JOIN commands c
            ON c.workspace_id = t.workspace_id AND c.batch_id = t.batch_id AND c.server_id = t.server_id"
    };
}

/// SQL for the state of a row of `batch_targets t`, with the command that
/// [`join_command`](crate::join_command) joins (contract 13.7).
#[macro_export]
macro_rules! target_state {
    () => {
        "CASE c.state WHEN 'waiting' THEN 'queued' WHEN 'acked' THEN 'running'
            ELSE coalesce(c.state, t.state, 'pending') END"
    };
}

/// SQL for the number of targets of a row of `batches b` by state, as a JSON object (contract
/// 13.5). Triggers keep the counts of a batch that has not finished.
#[macro_export]
macro_rules! batch_counts {
    () => {
        "json(coalesce(b.counts, (SELECT json_object('total', b.total,
            'pending', b.total - n.queued - n.sent - n.running - n.success - n.failed - n.cancelled - n.expired
                - n.stuck - n.skipped,
            'queued', n.queued, 'sent', n.sent, 'running', n.running, 'success', n.success, 'failed', n.failed,
            'cancelled', n.cancelled, 'expired', n.expired, 'stuck', n.stuck, 'skipped', n.skipped)
            FROM batch_counts n WHERE n.workspace_id = b.workspace_id AND n.batch_id = b.id)))"
    };
}

/// SQL for the same object, from the targets of the batch.
#[macro_export]
macro_rules! counted_targets {
    () => { concat!(
    "(SELECT json_object('total', b.total,
    'pending', count(*) FILTER (WHERE n.state = 'pending'), 'queued', count(*) FILTER (WHERE n.state = 'queued'),
    'sent', count(*) FILTER (WHERE n.state = 'sent'), 'running', count(*) FILTER (WHERE n.state = 'running'),
    'success', count(*) FILTER (WHERE n.state = 'success'), 'failed', count(*) FILTER (WHERE n.state = 'failed'),
    'cancelled', count(*) FILTER (WHERE n.state = 'cancelled'), 'expired', count(*) FILTER (WHERE n.state = 'expired'),
    'stuck', count(*) FILTER (WHERE n.state = 'stuck'), 'skipped', count(*) FILTER (WHERE n.state = 'skipped'))
    FROM (SELECT ",
    $crate::target_state!(),
    " AS state FROM batch_targets t ",
    $crate::join_command!(),
    " WHERE t.workspace_id = b.workspace_id AND t.batch_id = b.id) n)"
) };
}

/// SQL for the number of targets of a workspace that have no command yet and may still get one.
/// They count for the workspace's quota of waiting commands (contract 11.4).
pub fn pending_targets(workspace: &str) -> String {
    format!(
        "(SELECT coalesce(sum(q.pending), 0) FROM batches q INDEXED BY batches_open
          WHERE q.workspace_id = {workspace} AND q.finished_at IS NULL)"
    )
}

/// SQL for the number of waiting commands that belong to no batch, at most `:waiting_of_workspace`.
pub fn waiting_commands(workspace: &str) -> String {
    format!(
        "(SELECT count(*) FROM (SELECT 1 FROM commands c INDEXED BY commands_waiting
          WHERE c.workspace_id = {workspace} AND c.delivered_at IS NULL AND c.handled_at IS NULL AND c.batch_id IS NULL
          LIMIT :waiting_of_workspace + 0))"
    )
}

/// SQL for the quota that a new batch of the caller `me` exceeds: `never` if its bytes are more than
/// the whole quota of bytes, or `batches`, `waiting` or `bytes` (contract 11.4). Null: none.
///
/// Its parameters are the quotas `:batches_of_user`, `:batches_of_workspace`,
/// `:waiting_of_workspace`, `:bytes_of_day` and `:bytes_of_user`, the batch's `:total` of targets
/// and its `:bytes`, and `:now`.
pub fn exceeded_quota() -> String {
    let open = "(SELECT count(*) FROM batches q INDEXED BY batches_open
        WHERE q.workspace_id = me.workspace_id AND q.finished_at IS NULL";
    let (waiting, pending) =
        (waiting_commands("me.workspace_id"), pending_targets("me.workspace_id"));
    let (never, left) = (quotas::never_fits(":bytes", RANK_OF_ME), quotas::bytes_left(RANK_OF_ME));
    let usage = quotas::usage("me.workspace_id", "me.user_id", ":now");
    format!(
        "CASE WHEN {never} THEN 'never'
            WHEN {open} AND q.requested_by = me.user_id) >= :batches_of_user THEN 'batches'
            WHEN {open}) >= :batches_of_workspace THEN 'batches'
            WHEN :total + {pending} + {waiting} > :waiting_of_workspace THEN 'waiting'
            WHEN :bytes > (SELECT {left} FROM {usage} u) THEN 'bytes' END"
    )
}

/// SQL for the quota that a new batch of the caller `me` exceeds, as `{quota, retry_after}`. `quota`
/// is that of [`exceeded_quota`]. `retry_after` is for the quota `bytes`.
pub fn explained_quota() -> String {
    let retry_after =
        quotas::retry_after(":bytes", "me.workspace_id", "me.user_id", RANK_OF_ME, ":now");
    format!("json_object('quota', {}, 'retry_after', {retry_after})", exceeded_quota())
}
