//! `farhand batch`: lists, shows, stops and retries batches.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::run_batch::{PATH, counts_text, follow_to_end, named, print_new};
use super::{DEFAULT_LIMIT, note_rest, typed};
use crate::client::{Client, segment};
use crate::connection::Options;
use crate::error::{EXIT_FAILURE, Result};
use crate::output::{Format, Table, fields_text, json_text, note, or_dash, print_list, write};
use crate::run_output::exit_code_of;
use crate::stream::follow_batch;
use crate::text::{shortened, visible, visible_lines};
use crate::time;
use crate::types::{Batch, BatchOutput, BatchTarget};

/// Maximum length of a command line in the table, in characters.
const MAX_LINE: usize = 60;

/// List, show, stop and retry batches
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List batches, the latest first
    List {
        /// Only batches in these states, separated by commas: scheduled, running, stopping,
        /// finished, cancelled
        #[arg(long)]
        state: Option<String>,
        /// Only batches with exactly this name
        #[arg(long)]
        name: Option<String>,
        /// How many to show
        #[arg(short = 'n', long, default_value = DEFAULT_LIMIT)]
        limit: usize,
    },
    /// Show a batch, with the number of servers in each state
    Show {
        /// The id of the batch
        id: String,
        /// Wait for the end, with a line of progress on a terminal. The exit code is the highest of
        /// the commands
        #[arg(short, long)]
        follow: bool,
    },
    /// List the servers of a batch, and how its command ended on each
    Targets {
        /// The id of the batch
        id: String,
        /// Only servers in these states, separated by commas: pending, queued, sent, running,
        /// success, failed, cancelled, expired, stuck, skipped
        #[arg(long)]
        state: Option<String>,
        /// How many to show
        #[arg(short = 'n', long, default_value = DEFAULT_LIMIT)]
        limit: usize,
    },
    /// Compare the outputs: each different output once, the most frequent first
    Outputs {
        /// The id of the batch
        id: String,
        /// How many to show
        #[arg(short = 'n', long, default_value = DEFAULT_LIMIT)]
        limit: usize,
    },
    /// Start no further command. Running commands go on
    Cancel {
        /// The id of the batch
        id: String,
    },
    /// Start no further command, and kill those that run
    Kill {
        /// The id of the batch
        id: String,
    },
    /// Run an ended batch again on the servers on which it did not succeed
    Retry {
        /// The id of the batch
        id: String,
        /// Print the id of the new batch and do not wait
        #[arg(short, long)]
        detach: bool,
    },
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<u8> {
    let client = options.connect()?;
    let format = options.output;
    let done = |result: Result<()>| result.map(|()| 0);
    match &arguments.action {
        Action::List { state, name, limit } => {
            let filters = [("state", state.clone()), ("name", name.clone())];
            let filters: Vec<_> =
                filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
            done(print_part(&client, format, PATH, &filters, *limit, batches_table))
        }
        Action::Show { id, follow: true } => follow(&client, format, id),
        Action::Show { id, follow: false } => {
            done(print_batch(&client.get_json(&path(id, ""))?, format))
        }
        Action::Targets { id, state, limit } => {
            let filters: Vec<_> = state.clone().map(|state| ("state", state)).into_iter().collect();
            done(print_part(
                &client,
                format,
                &path(id, "targets/"),
                &filters,
                *limit,
                targets_table,
            ))
        }
        Action::Outputs { id, limit } => done(outputs(&client, format, id, *limit)),
        Action::Cancel { id } => done(stop(&client, format, id, "cancel")),
        Action::Kill { id } => done(stop(&client, format, id, "kill")),
        Action::Retry { id, detach } => {
            let json = client.create(&path(id, "retry-failed/"), &json!({}))?;
            if *detach { print_new(&json, format) } else { follow_to_end(&client, &json, format) }
        }
    }
}

fn path(id: &str, rest: &str) -> String {
    format!("{PATH}{}/{rest}", segment(id))
}

/// Prints the first items of a list.
fn print_part(
    client: &Client,
    format: Format,
    path: &str,
    filters: &[(&str, String)],
    limit: usize,
    table: fn(&[Value]) -> Result<Table>,
) -> Result<()> {
    let (items, count) = client.list(path, filters, limit)?;
    print_list(&items, format, table)?;
    note_rest(items.len(), count);
    Ok(())
}

fn batches_table(items: &[Value]) -> Result<Table> {
    let mut table = Table::new(&["ID", "STATE", "SERVERS", "BY", "WHEN", "NAME", "LINE"]);
    for item in items {
        let batch: Batch = typed(item)?;
        table.row([
            batch.id,
            batch.state,
            counts_text(&batch.counts),
            or_dash(batch.requested_by.map(|user| user.username)),
            time::shown(&batch.scheduled_at),
            batch.name,
            shortened(&batch.line, MAX_LINE),
        ]);
    }
    Ok(table)
}

fn targets_table(items: &[Value]) -> Result<Table> {
    let mut table = Table::new(&["SERVER", "STATE", "EXIT", "TOOK", "COMMAND", "REASON"]);
    for item in items {
        let target: BatchTarget = typed(item)?;
        table.row([
            target.server_name,
            target.state,
            or_dash(target.exit_code),
            or_dash(target.elapsed_time.map(|seconds| format!("{seconds:.1}s"))),
            or_dash(target.command),
            target.reason.unwrap_or_default(),
        ]);
    }
    Ok(table)
}

/// Prints a batch: a line for each field, or the JSON.
fn print_batch(json: &Value, format: Format) -> Result<()> {
    if format != Format::Table {
        return write(&json_text(json, format));
    }
    let batch: Batch = typed(json)?;
    let errors = batch.max_errors.map_or_else(|| "no limit".to_owned(), |max| max.to_string());
    write(&fields_text([
        ("ID", batch.id),
        ("NAME", batch.name),
        ("STATE", batch.state),
        ("LINE", batch.line),
        ("AS", batch.username.unwrap_or_else(|| "the default account of each server".to_owned())),
        ("BY", or_dash(batch.requested_by.map(|user| user.username))),
        ("STARTS", time::shown(&batch.scheduled_at)),
        ("FINISHED", time::shown_or(batch.finished_at.as_deref(), "-")),
        ("SERVERS", format!("{}: {}", batch.counts.total, counts_text(&batch.counts))),
        ("CONCURRENCY", batch.max_concurrency.to_string()),
        ("MAX ERRORS", errors),
        ("STOPPED BY", or_dash(batch.stopped_by)),
    ]))
}

/// The line of progress, in the place of the line before.
struct Progress {
    total: i64,
    is_shown: bool,
    states: HashMap<String, String>,
}

impl Progress {
    fn text(&self) -> String {
        let count = |states: &[&str]| {
            self.states.values().filter(|state| states.contains(&state.as_str())).count()
        };
        let ended = count(&["success", "failed", "cancelled", "expired", "stuck", "skipped"]);
        let running = count(&["sent", "running"]);
        let failed = count(&["failed", "expired", "stuck"]);
        format!("{ended} of {} ended, {running} running, {failed} failed", self.total)
    }

    /// Shows the line. Ignores errors, because they cannot be reported.
    fn show(&self, end: &str) {
        if self.is_shown {
            // A shorter line overwrites a longer one.
            let _ = write!(io::stderr(), "\r{:60}{end}", self.text());
        }
    }
}

/// Waits for the end of a batch. Returns the highest exit code of its commands.
fn follow(client: &Client, format: Format, id: &str) -> Result<u8> {
    let batch: Batch = typed(&client.get_json(&path(id, ""))?)?;
    let is_shown = io::stderr().is_terminal();
    let mut progress = Progress { total: batch.counts.total, is_shown, states: HashMap::new() };
    let mut exit_codes = HashMap::new();
    progress.show("");
    let ended = follow_batch(client, id, |change| {
        let exit_code = exit_code_of(change.state == "success", change.exit_code);
        exit_codes.insert(change.server.clone(), exit_code);
        progress.states.insert(change.server, change.state);
        progress.show("");
        Ok(())
    });
    progress.show("\n");
    let ended = ended?;
    print_batch(&ended, format)?;
    // Retention deletes the changes of a batch before the batch.
    let is_success = typed::<Batch>(&ended)?.counts.success == batch.counts.total;
    let unknown = if is_success { 0 } else { EXIT_FAILURE };
    Ok(exit_codes.into_values().max().unwrap_or(unknown))
}

/// Prints each different output once, after a line with its servers.
fn outputs(client: &Client, format: Format, id: &str, limit: usize) -> Result<()> {
    let (items, count) = client.list(&path(id, "outputs/"), &[], limit)?;
    if format != Format::Table {
        return print_list(&items, format, |_| Ok(Table::new(&[])));
    }
    for item in &items {
        let output: BatchOutput = typed(item)?;
        write(&output_text(&output))?;
    }
    note_rest(items.len(), count);
    Ok(())
}

fn output_text(output: &BatchOutput) -> String {
    let servers = output.targets.iter().map(|target| target.server_name.clone());
    let mut names = named(&servers.collect::<Vec<_>>());
    let result = match output.exit_code {
        Some(code) => format!("{}, exit code {code}", output.state),
        None => output.state.clone(),
    };
    names = visible(&names);
    let mut text = format!("== {}: {result}: {names}\n", output.count);
    let shown = visible_lines(output.result.as_deref().unwrap_or_default());
    text.push_str(&shown);
    if !shown.is_empty() && !shown.ends_with('\n') {
        text.push('\n');
    }
    if output.result_truncated {
        text.push_str("(The rest of the output is not shown.)\n");
    }
    text
}

/// Cancels or kills a batch.
fn stop(client: &Client, format: Format, id: &str, action: &str) -> Result<()> {
    let json: Value = client.post(&path(id, &format!("{action}/")), &json!({}))?.json()?;
    if format != Format::Table {
        return write(&json_text(&json, format));
    }
    let batch: Batch = typed(&json)?;
    note(&format!("{}: {}: {}", batch.id, batch.state, counts_text(&batch.counts)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_counts_the_last_state_of_each_server() {
        let states = [("a", "success"), ("b", "failed"), ("c", "running"), ("d", "queued")];
        let states = states.map(|(server, state)| (server.to_owned(), state.to_owned()));
        let progress = Progress { total: 5, is_shown: false, states: states.into() };
        assert_eq!(progress.text(), "2 of 5 ended, 1 running, 1 failed");
    }

    #[test]
    fn an_output_stands_below_its_servers() {
        let json = json!({"count": 2, "state": "failed", "exit_code": 3, "result": "a\x1b[2J\nb",
            "result_truncated": true,
            "targets": [{"server_name": "web-1"}, {"server_name": "web-2"}]});
        let output: BatchOutput = serde_json::from_value(json).unwrap();
        assert_eq!(
            output_text(&output),
            "== 2: failed, exit code 3: web-1, web-2\na\\u{1b}[2J\nb\n(The rest of the output is not shown.)\n"
        );
    }
}
