//! Reads of batches (contract 13.5 and 13.6).

use farhand_domain::batch::list::BatchList;
use farhand_sql::statement::Value;
use uuid::Uuid;

use super::batches::OBJECT;
use super::commands::is_within_acl;
use super::db::params;
use super::list::{Filters, List, Select};
use super::scope::Query;
use super::servers::IS_ACCESSIBLE;
use super::within_acl::{COST, COST_OF_ROW, MAX_COST, line_patterns, within, word_lists};

/// The maximum number of batches that the list of a token compares with its access control list:
/// the newest ones.
const MAX_COMPARED: u32 = 1_000;

/// The maximum number of targets of these batches. Targets of older batches are not compared with
/// the servers of the list.
const MAX_COMPARED_TARGETS: u32 = 100_000;

/// SQL for whether the access control list of the API token limits the servers.
const HAS_LIMITED_SERVERS: &str = "(me.acl_servers IS NOT NULL OR me.acl_selector IS NOT NULL)";

/// SQL for whether the caller is staff or requested a row of `batches b`.
const IS_OWN: &str = "b.workspace_id = me.workspace_id
    AND (me.is_staff OR me.is_superuser OR b.requested_by = me.user_id)";

/// SQL for whether the API token can access a target of a row of `batches b`. True if its access
/// control list does not limit the servers.
fn has_accessible_target() -> String {
    format!(
        "(NOT {HAS_LIMITED_SERVERS} OR EXISTS (SELECT 1 FROM batch_targets t
            CROSS JOIN servers s ON s.id = t.server_id
            WHERE t.workspace_id = b.workspace_id AND t.batch_id = b.id AND {IS_ACCESSIBLE}))"
    )
}

/// Common tables for the list of a token, each preceded by a comma:
///
/// - `newest`: the newest batches of the caller that the filters allow, up to [`MAX_COMPARED`]. Of a
///   token whose list limits the servers, only batches with an accessible target.
///
/// `condition` is a further condition on `me`.
fn newest(filters: &str, condition: &str) -> String {
    let order = "b.added_at DESC, b.id DESC";
    // Each of the two queries reads an index in the order of the list. Only one returns rows.
    let candidates = |is_wanted: &str, is_own: &str| {
        format!(
            "SELECT * FROM (SELECT b.id, b.added_at, b.total FROM batches b
                WHERE b.workspace_id = (SELECT workspace_id FROM me WHERE {condition} AND {is_wanted}){is_own}{filters}
                ORDER BY {order} LIMIT {MAX_COMPARED})"
        )
    };
    let of_staff = candidates("(me.is_staff OR me.is_superuser)", "");
    let own = candidates(
        "NOT (me.is_staff OR me.is_superuser)",
        " AND b.requested_by = (SELECT user_id FROM me)",
    );
    format!(
        ", candidates AS MATERIALIZED ({of_staff} UNION ALL {own}),
         counted AS MATERIALIZED (SELECT b.id, coalesce(sum(b.total) OVER (ORDER BY {order}
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS targets FROM candidates b),
         accessible AS MATERIALIZED (
            SELECT s.id FROM me CROSS JOIN json_each(me.acl_servers) a CROSS JOIN servers s ON s.id = a.value
            WHERE {IS_ACCESSIBLE}
            UNION SELECT s.id FROM me CROSS JOIN servers s
            WHERE me.acl_servers IS NULL AND me.acl_selector IS NOT NULL AND {IS_ACCESSIBLE}),
         newest AS MATERIALIZED (SELECT n.id FROM me CROSS JOIN counted n
            WHERE NOT {HAS_LIMITED_SERVERS} OR n.targets < {MAX_COMPARED_TARGETS} AND EXISTS (
                SELECT 1 FROM batch_targets t WHERE t.workspace_id = me.workspace_id AND t.batch_id = n.id
                    AND t.server_id IN (SELECT id FROM accessible)))"
    )
}

/// SQL for whether an access control list allows what a row of `batches b` runs. `is_within` is SQL
/// for whether the list allows a row of `commands c`. A batch without `username` runs as several
/// accounts, which were checked when it was created. So if the list limits accounts, only the token
/// that created the batch may read it.
fn allows_batch(is_within: &str) -> String {
    format!(
        "EXISTS (SELECT 1 FROM (SELECT b.shell, b.line, b.argv, b.script, b.groupname, b.has_inputs,
            coalesce(b.username, iif(b.api_token = me.credential_id, me.acl ->> '$.usernames[0]', NULL)) AS username) c
            WHERE {is_within})"
    )
}

/// SQL for the condition that the caller can read a row of `batches b`: the requester and staff. A
/// token with an access control list reads only batches that the list allows (contract 4.13).
pub(super) fn is_readable() -> String {
    format!(
        "{IS_OWN} AND {} AND (NOT me.reads_narrowly OR {})",
        has_accessible_target(),
        allows_batch(&is_within_acl())
    )
}

/// Reads the batch object of a batch that the caller can read.
pub fn by_id(id: Uuid) -> Query {
    let sql = format!("(SELECT {OBJECT} FROM batches b WHERE b.id = :id AND {})", is_readable());
    Query::new(sql, params! { id })
}

/// Reads the batch object of a batch that the caller can read, for an action on the batch, as
/// `{is_within, batch}`. `is_within`: the access control list of the API token, if it has one,
/// allows what the batch runs, and all its targets.
///
/// D1 limits the depth of an expression, so the checks are in a subquery in FROM.
pub fn for_action(id: Uuid) -> Query {
    let (readable, allows_batch) = (is_readable(), allows_batch(&is_within_acl()));
    let sql = format!(
        "(SELECT json_object('is_within', json(iif(allowed.id IS NULL, 'false', 'true')), 'batch', {OBJECT})
          FROM batches b LEFT JOIN (SELECT b.id FROM batches b WHERE b.id = :id AND me.acl IS NULL
            UNION ALL SELECT b.id FROM batches b WHERE b.id = :id AND me.acl IS NOT NULL AND {allows_batch}
                AND NOT EXISTS (SELECT 1 FROM batch_targets t
                    WHERE t.workspace_id = b.workspace_id AND t.batch_id = b.id
                        AND NOT EXISTS (SELECT 1 FROM servers s WHERE s.id = t.server_id AND {IS_ACCESSIBLE}))
          ) allowed ON allowed.id = b.id WHERE b.id = :id AND {readable})"
    );
    Query::new(sql, params! { id })
}

/// The batches that the caller can read, newest first.
pub fn list(list: &BatchList) -> List {
    let Filters { sql: filters, parameters } = Filters::default()
        .with(
            "b.state IN (SELECT value FROM json_each(:states))",
            "states",
            list.states.as_ref().map(Value::list),
        )
        .with("b.requested_by = :requested_by", "requested_by", list.requested_by)
        .with("b.schedule_id = :schedule", "schedule", list.schedule)
        .with("b.name = :name", "name", list.name.as_ref());
    let staff = format!(
        "batches b WHERE (me.is_staff OR me.is_superuser) AND b.workspace_id = me.workspace_id
         AND NOT {HAS_LIMITED_SERVERS}{filters}"
    );
    let others = format!(
        "batches b WHERE NOT (me.is_staff OR me.is_superuser) AND b.workspace_id = me.workspace_id
         AND b.requested_by = me.user_id AND NOT {HAS_LIMITED_SERVERS}{filters}"
    );
    let limited = "newest n CROSS JOIN batches b ON b.id = n.id".to_owned();
    let tables = newest(&filters, HAS_LIMITED_SERVERS);
    let (branches, order) = ([staff, others, limited], "b.added_at DESC, b.id DESC");
    let all = List::new(&tables, ("batches b", OBJECT), &branches, order, parameters.clone());
    List { narrow: Some(narrow(&filters, &all.select)), ..all }
}

/// The list for an API token that can read only what its access control list allows. It compares
/// the newest batches with the list, up to a cost.
fn narrow(filters: &str, all: &Select) -> Select {
    let (patterns, lists) =
        (line_patterns("(SELECT me.acl FROM me)"), word_lists("(SELECT me.acl FROM me)"));
    let allows_batch = allows_batch(&within("me.acl", "patterns", "lists"));
    let newest = newest(filters, "true");
    let cost_of_row = COST_OF_ROW.replace("c.", "b.");
    let tables = format!(
        "{newest}, patterns AS MATERIALIZED ({patterns}), lists AS MATERIALIZED ({lists}),
         cost AS MATERIALIZED ({COST}),
         compared AS MATERIALIZED (SELECT b.id, sum({cost_of_row}) OVER (ORDER BY b.added_at DESC, b.id DESC
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS spent
            FROM newest n CROSS JOIN batches b ON b.id = n.id CROSS JOIN cost),
         allowed AS MATERIALIZED (SELECT b.id FROM me CROSS JOIN compared n CROSS JOIN batches b ON b.id = n.id
            WHERE coalesce(n.spent, 0) < {MAX_COST} AND {allows_batch}),
         total AS (SELECT count(*) AS total FROM allowed)"
    );
    let items = format!(
        "SELECT {OBJECT} AS body FROM me CROSS JOIN allowed a CROSS JOIN batches b ON b.id = a.id
         ORDER BY b.added_at DESC, b.id DESC LIMIT :page_size + 0 OFFSET :page_offset"
    );
    Select {
        tables,
        items,
        max_in_one_text: all.max_in_one_text,
        parameters: all.parameters.clone(),
    }
}
