//! `farhand schedules`: commands that run at times.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};

use super::fleet::Fleet;
use super::task::{Task, line};
use super::{DEFAULT_LIMIT, lookup, note_rest, report_deleted, run_batch, typed};
use crate::client::{Client, segment};
use crate::connection::Options;
use crate::error::Result;
use crate::output::{Format, Table, fields_text, json_text, note, or_dash, print_list, write, yes};
use crate::text::shortened;
use crate::time;
use crate::types::{Schedule, ScheduleRun};

const PATH: &str = "/api/events/schedules/";
/// Maximum length of a command line in the table, in characters.
const MAX_LINE: usize = 60;

/// List, create, change and run schedules
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List schedules
    List {
        /// How many to show
        #[arg(short = 'n', long, default_value = DEFAULT_LIMIT)]
        limit: usize,
    },
    /// Show a schedule, with its next and last runs
    Show(ScheduleName),
    Create(Box<Creation>),
    /// Delete schedules
    Delete {
        /// The names or ids of the schedules
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Start the runs of a schedule again
    Enable(ScheduleName),
    /// Start no further runs of a schedule
    Disable(ScheduleName),
    /// Run a schedule now, and print the id of the batch
    Run(ScheduleName),
    /// List the runs of a schedule, the latest first
    Runs {
        #[command(flatten)]
        schedule: ScheduleName,
        /// How many to show
        #[arg(short = 'n', long, default_value = DEFAULT_LIMIT)]
        limit: usize,
    },
}

#[derive(Args)]
struct ScheduleName {
    /// The name or the id of the schedule
    name: String,
}

/// Create a schedule
///
/// The servers are selected again for each run. The runs start with the credential that creates the
/// schedule, so they end when that credential ends.
#[derive(Args)]
struct Creation {
    /// The name of the schedule
    name: String,
    /// When to run: five fields such as '30 2 * * mon-fri', or @hourly, @daily, @weekly, @monthly
    #[arg(long, value_name = "TIMES")]
    cron: String,
    /// The time zone of the times, such as Asia/Seoul. The default is UTC
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// A server, by its name or id. May be repeated
    #[arg(
        short,
        long,
        value_name = "SERVER",
        required_unless_present_any = ["selector", "all"],
        conflicts_with_all = ["selector", "all"]
    )]
    server: Vec<String>,
    #[command(flatten)]
    fleet: Fleet,
    #[command(flatten)]
    task: Task,
    /// The earliest time of a run
    #[arg(long, value_name = "TIME")]
    starts_at: Option<String>,
    /// The latest time of a run
    #[arg(long, value_name = "TIME")]
    ends_at: Option<String>,
    /// What to do about times that passed while the service was down
    #[arg(long, value_enum, value_name = "WHAT")]
    misfire: Option<Misfire>,
    /// What to do if the previous run has not ended
    #[arg(long, value_enum, value_name = "WHAT")]
    overlap: Option<Overlap>,
    /// Start no runs until `farhand schedules enable`
    #[arg(long)]
    disabled: bool,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Misfire {
    /// One run for all of them. The default.
    RunOnce,
    /// No run.
    Skip,
}

#[derive(Clone, Copy, ValueEnum)]
enum Overlap {
    /// Leave the new run out. The default.
    Skip,
    /// Start the new run too.
    Allow,
    /// Start the new run when the previous run ends. At most one run waits.
    Queue,
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<()> {
    let client = options.connect()?;
    let format = options.output;
    match &arguments.action {
        Action::List { limit } => {
            let (items, count) = client.list(PATH, &[], *limit)?;
            print_list(&items, format, table)?;
            note_rest(items.len(), count);
            Ok(())
        }
        Action::Show(schedule) => {
            print_schedule(&client.get_json(&path(&client, schedule, "")?)?, format)
        }
        Action::Create(creation) => create(&client, format, creation),
        Action::Delete { names } => names.iter().try_for_each(|name| {
            let id = lookup::id_by_name(&client, PATH, "schedule", name)?;
            client.delete(&format!("{PATH}{}/", segment(&id)))?;
            report_deleted(format, "schedule", name, &id)
        }),
        Action::Enable(schedule) => enable(&client, format, schedule, true),
        Action::Disable(schedule) => enable(&client, format, schedule, false),
        Action::Run(schedule) => {
            let batch = client.create(&path(&client, schedule, "run/")?, &json!({}))?;
            run_batch::print_new(&batch, format).map(drop)
        }
        Action::Runs { schedule, limit } => {
            let (items, count) = client.list(&path(&client, schedule, "runs/")?, &[], *limit)?;
            print_list(&items, format, runs_table)?;
            note_rest(items.len(), count);
            Ok(())
        }
    }
}

fn path(client: &Client, schedule: &ScheduleName, rest: &str) -> Result<String> {
    let id = lookup::id_by_name(client, PATH, "schedule", &schedule.name)?;
    Ok(format!("{PATH}{}/{rest}", segment(&id)))
}

fn create(client: &Client, format: Format, creation: &Creation) -> Result<()> {
    let json = client.create(PATH, &Value::Object(creation.fields(client)?))?;
    if format != Format::Table {
        return write(&json_text(&json, format));
    }
    let schedule: Schedule = typed(&json)?;
    let next = schedule.next_runs.first().map(String::as_str);
    note(&format!("Created {}. Next run: {}.", schedule.name, time::shown_or(next, "none")));
    write(&format!("{}\n", schedule.id))
}

impl Creation {
    fn fields(&self, client: &Client) -> Result<Map<String, Value>> {
        let now = time::now();
        let time = |text: &Option<String>| {
            text.as_ref().map(|text| time::parse_time(text, now).map(Value::from)).transpose()
        };
        let misfire = self.misfire.map(|misfire| match misfire {
            Misfire::RunOnce => json!("run_once"),
            Misfire::Skip => json!("skip"),
        });
        let overlap = self.overlap.map(|overlap| match overlap {
            Overlap::Skip => json!("skip"),
            Overlap::Allow => json!("allow"),
            Overlap::Queue => json!("queue"),
        });
        let mut fields = self.task.fields(client)?;
        self.fleet.add_to(&mut fields, &self.server);
        let own = [
            ("name", Some(json!(self.name))),
            ("cron", Some(json!(self.cron))),
            ("timezone", self.timezone.as_ref().map(|zone| json!(zone))),
            ("starts_at", time(&self.starts_at)?),
            ("ends_at", time(&self.ends_at)?),
            ("misfire", misfire),
            ("overlap", overlap),
            ("enabled", self.disabled.then_some(Value::Bool(false))),
        ];
        fields.extend(own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        Ok(fields)
    }
}

fn enable(
    client: &Client,
    format: Format,
    schedule: &ScheduleName,
    is_enabled: bool,
) -> Result<()> {
    let path = path(client, schedule, "")?;
    let json = client.patch(&path, &json!({"enabled": is_enabled}))?;
    if format != Format::Table {
        return write(&json_text(&json, format));
    }
    let schedule: Schedule = typed(&json)?;
    let next = schedule.next_runs.first().map(String::as_str);
    let state = if schedule.enabled { "enabled" } else { "disabled" };
    note(&format!("{} is {state}. Next run: {}.", schedule.name, time::shown_or(next, "none")));
    Ok(())
}

/// What a schedule runs, on one line.
fn shown_line(schedule: &Schedule) -> String {
    let words = schedule.argv.as_deref().map(line);
    schedule.line.clone().or(words).unwrap_or_default()
}

/// The selection of servers on one line, such as `role=web`.
fn targets_text(targets: &Value) -> String {
    let list = |name: &str| targets[name].as_array().into_iter().flatten();
    let mut parts: Vec<String> =
        list("servers").filter_map(Value::as_str).map(str::to_owned).collect();
    parts.extend(list("groups").map(|group| format!("group {group}")));
    parts.extend(targets["selector"].as_str().map(|selector| format!("-l {selector}")));
    if targets["all"] == true {
        parts.push("all".to_owned());
    }
    parts.join(", ")
}

fn table(items: &[Value]) -> Result<Table> {
    let mut table = Table::new(&[
        "ID", "NAME", "ENABLED", "TIMES", "ZONE", "NEXT RUN", "LAST RUN", "OWNER", "LINE",
    ]);
    for item in items {
        let schedule: Schedule = typed(item)?;
        let line = shortened(&shown_line(&schedule), MAX_LINE);
        table.row([
            schedule.id,
            schedule.name,
            yes(schedule.enabled),
            schedule.cron,
            schedule.timezone,
            time::shown_or(schedule.next_runs.first().map(String::as_str), "none"),
            or_dash(schedule.last_run.map(|run| run.outcome)),
            or_dash(schedule.owner.map(|user| user.username)),
            line,
        ]);
    }
    Ok(table)
}

fn runs_table(items: &[Value]) -> Result<Table> {
    let mut table = Table::new(&["DUE", "STARTED", "OUTCOME", "BATCH", "REASON"]);
    for item in items {
        let run: ScheduleRun = typed(item)?;
        table.row([
            time::shown(&run.due_at),
            time::shown_or(run.started_at.as_deref(), "-"),
            run.outcome,
            or_dash(run.batch),
            run.reason.unwrap_or_default(),
        ]);
    }
    Ok(table)
}

/// Prints a schedule: a line for each field, or the JSON.
fn print_schedule(json: &Value, format: Format) -> Result<()> {
    if format != Format::Table {
        return write(&json_text(json, format));
    }
    let schedule: Schedule = typed(json)?;
    let line = shown_line(&schedule);
    let times = schedule.next_runs.iter().map(|time| time::shown(time)).collect::<Vec<_>>();
    let last = schedule.last_run.map(|run| {
        let reason = run.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("{} {}{reason}", time::shown(&run.due_at), run.outcome)
    });
    write(&fields_text([
        ("ID", schedule.id),
        ("NAME", schedule.name),
        ("ENABLED", yes(schedule.enabled)),
        ("TIMES", format!("{} ({})", schedule.cron, schedule.timezone)),
        ("SERVERS", targets_text(&schedule.targets)),
        ("LINE", line),
        ("OVERLAP", schedule.overlap),
        ("MISFIRE", schedule.misfire),
        ("OWNER", or_dash(schedule.owner.map(|user| user.username))),
        ("NEXT RUNS", if times.is_empty() { "none".to_owned() } else { times.join(", ") }),
        ("LAST RUN", or_dash(last)),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_shown_as_text() {
        let text = |targets: Value| targets_text(&targets);
        assert_eq!(
            text(json!({"servers": ["a", "b"], "groups": [7], "all": false})),
            "a, b, group 7"
        );
        assert_eq!(text(json!({"servers": [], "selector": "role=web"})), "-l role=web");
        assert_eq!(text(json!({"selector": null, "all": true})), "all");
    }
}
