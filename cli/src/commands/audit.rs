//! `farhand audit`: the audit log, for staff.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{DEFAULT_LIMIT, note_rest, typed};
use crate::client::Client;
use crate::connection::Options;
use crate::error::Result;
use crate::output::{Format, Table, json_text, note, or_dash, print_list, write};
use crate::time;
use crate::types::{AuditEvent, AuditVerified};

/// The exit code if the audit log was changed.
const EXIT_CHANGED: u8 = 1;

/// Read and verify the audit log (staff)
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    List(Filters),
    /// Verify the audit chain. The exit code is 1 if the audit log was changed
    Verify,
}

/// List audit events, newest first
#[derive(Args)]
struct Filters {
    /// Only events of the user, agent or operator with this name
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// Only events with this action, such as command.create
    #[arg(long)]
    action: Option<String>,
    /// Only events about the object with this id
    #[arg(long, value_name = "ID")]
    object: Option<String>,
    /// Only events with this outcome: success, failure or denied
    #[arg(long)]
    outcome: Option<String>,
    /// Only events since a time, or in the last 30m, 2h, 7d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only events before a time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// How many to show
    #[arg(short = 'n', long, default_value = DEFAULT_LIMIT)]
    limit: usize,
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<u8> {
    let client = options.connect()?;
    match &arguments.action {
        Action::List(filters) => list(&client, options.output, filters).map(|()| 0),
        Action::Verify => verify(&client, options.output),
    }
}

fn list(client: &Client, format: Format, arguments: &Filters) -> Result<()> {
    let now = time::now();
    let past = |text: &String| time::parse_past(text, now);
    let filters = [
        ("actor", arguments.actor.clone()),
        ("action", arguments.action.clone()),
        ("object", arguments.object.clone()),
        ("outcome", arguments.outcome.clone()),
        ("occurred_at__gte", arguments.since.as_ref().map(past).transpose()?),
        ("occurred_at__lt", arguments.until.as_ref().map(past).transpose()?),
    ];
    let filters: Vec<_> =
        filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let (items, count) = client.list("/api/audit/events/", &filters, arguments.limit)?;
    print_list(&items, format, table)?;
    note_rest(items.len(), count);
    Ok(())
}

/// The outcome, and the number of requests if the event stands for several ones.
fn outcome(name: &str, details: &Value) -> String {
    match details["count"].as_i64() {
        Some(count @ 2..) => format!("{name} x{count}"),
        _ => name.to_owned(),
    }
}

fn table(items: &[Value]) -> Result<Table> {
    let mut table = Table::new(&["WHEN", "ACTOR", "ACTION", "OUTCOME", "FROM", "OBJECT"]);
    for item in items {
        let event: AuditEvent = typed(item)?;
        table.row([
            time::shown(&event.occurred_at),
            or_dash(event.actor.name),
            event.action,
            outcome(&event.outcome, &item["details"]),
            or_dash(event.remote_ip),
            or_dash(event.object.and_then(|object| object.name.or(object.id))),
        ]);
    }
    Ok(table)
}

/// Verifies all chain entries. One request verifies up to 20,000 (contract 18).
fn verify(client: &Client, format: Format) -> Result<u8> {
    let (mut first, mut entries) = (1, 0);
    loop {
        let mut json: Value =
            client.post("/api/audit/verify/", &json!({"first_link": first}))?.json()?;
        let verified: AuditVerified = typed(&json)?;
        entries += verified.links;
        if let (true, Some(next)) = (verified.valid, verified.next_link) {
            first = next;
            continue;
        }
        json["links"] = json!(entries);
        if format != Format::Table {
            write(&json_text(&json, format))?;
        } else if verified.valid {
            write(&format!("Valid: {entries} entries. Not sealed yet: {}.\n", verified.unsealed))?;
        }
        if let Some(broken) = &verified.first_broken {
            note(&format!(
                "The audit log was changed: entry {} is {}.",
                broken.link, broken.problem
            ));
        }
        return Ok(if verified.valid { 0 } else { EXIT_CHANGED });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_several_requests_shows_their_number() {
        let shown = |details: Value| outcome("denied", &details);
        assert_eq!(shown(json!({"count": 999})), "denied x999");
        assert_eq!([shown(json!({"count": 1})), shown(json!({}))], ["denied", "denied"]);
    }
}
