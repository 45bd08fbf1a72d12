//! The list's filters, except its words, as conditions on a row of `commands c`.

use farhand_domain::command::list::CommandList;
use farhand_domain::command::object::state_sql;

use crate::statement::{Parameters, Value};

/// SQL that selects the deleted users whose ids are still in commands. A list shows such a command
/// without a requester.
const DELETED_USERS: &str =
    "SELECT d.user_id FROM me CROSS JOIN deleted_users d ON d.workspace_id = me.workspace_id";

/// The states of commands that have not ended.
const OPEN_STATES: [&str; 4] = ["scheduled", "queued", "sent", "acked"];

/// Whether the filter by state matches only commands that have not ended.
pub fn is_open(list: &CommandList) -> bool {
    list.states
        .as_ref()
        .is_some_and(|states| states.iter().all(|state| OPEN_STATES.contains(state)))
}

/// The conditions of the filters that the client sent, one per filter. The search for words is not
/// included.
pub fn conditions(list: &CommandList, parameters: &mut Parameters) -> Vec<String> {
    let mut conditions: Vec<String> = Vec::new();
    if let Some(server) = list.server {
        parameters.add("server", server);
        conditions.push("c.server_id = :server".to_owned());
    }
    if let Some(batch) = list.batch {
        parameters.add("batch", batch);
        conditions.push("c.batch_id = :batch".to_owned());
    }
    if let Some(schedule) = list.schedule {
        parameters.add("schedule", schedule);
        conditions.push(
            "c.batch_id IN (SELECT b.id FROM me CROSS JOIN batches b
            ON b.workspace_id = me.workspace_id AND b.schedule_id = :schedule)"
                .to_owned(),
        );
    }
    if let Some(requester) = list.requested_by {
        parameters.add("requested_by", requester);
        conditions.push(
            "c.requested_by = :requested_by AND EXISTS (SELECT 1 FROM me CROSS JOIN users u
            ON u.workspace_id = me.workspace_id AND u.id = :requested_by)"
                .to_owned(),
        );
    }
    conditions.extend(list.requested_by_isnull.map(|is_null| match is_null {
        true => format!("(c.requested_by IS NULL OR c.requested_by IN ({DELETED_USERS}))"),
        false => format!("c.requested_by IS NOT NULL AND c.requested_by NOT IN ({DELETED_USERS})"),
    }));
    conditions.extend(list.shell.map(|shell| format!("c.shell = '{}'", shell.as_str())));
    conditions.extend(
        list.is_scheduled.map(|is| format!("c.scheduled_at {} :now", if is { ">" } else { "<=" })),
    );
    if let Some(states) = &list.states {
        let is_open = if is_open(list) { "c.handled_at IS NULL AND " } else { "" };
        conditions.push(format!("{is_open}{} IN ('{}')", state_sql(":now"), states.join("', '")));
    }
    conditions.extend(list.success.map(|success| format!("c.success = {}", i32::from(success))));
    let compared: [(&str, &'static str, Option<Value>); 4] = [
        ("c.exit_code =", "exit_code", list.exit_code.map(Value::from)),
        ("c.username =", "username", list.username.as_ref().map(Value::from)),
        ("c.added_at >=", "added_from", list.added_from.map(Value::from)),
        ("c.added_at <", "added_before", list.added_before.map(Value::from)),
    ];
    for (comparison, name, value) in compared {
        if let Some(value) = value {
            parameters.add(name, value);
            conditions.push(format!("{comparison} :{name}"));
        }
    }
    conditions
}
