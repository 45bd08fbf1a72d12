//! `farhand run -l SELECTOR`: runs a command on many servers as a batch, and follows it.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde_json::{Map, Value, json};

use super::{MAX_PARALLEL, typed};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::interrupts::{KillTarget, Running};
use crate::output::{Format, Table, json_text, note, print_list, write, yes};
use crate::run_output::{View, exit_code_of};
use crate::stream::{follow, follow_batch};
use crate::types::{Batch, BatchChange, BatchCounts, BatchDryRun, BatchTarget, PlannedTarget};

pub const PATH: &str = "/api/events/batches/";
/// Number of servers above which farhand asks before it runs a batch.
const MAX_UNASKED: i64 = 20;
/// Maximum number of servers that one message names.
const MAX_NAMED: usize = 10;

/// What to do with a new batch.
pub struct RunOptions {
    pub is_dry_run: bool,
    pub is_detached: bool,
    /// Whether to ask in a terminal before many servers are used.
    pub asks: bool,
}

/// Creates a batch, and follows it to its end.
pub fn execute(
    client: &Client,
    format: Format,
    fields: Map<String, Value>,
    options: &RunOptions,
) -> Result<u8> {
    let body = Value::Object(fields);
    if options.is_dry_run {
        return show_plan(&dry_run(client, &body)?, format);
    }
    if options.asks && io::stdin().is_terminal() && io::stderr().is_terminal() {
        let plan: BatchDryRun = typed(&dry_run(client, &body)?)?;
        if plan.total > MAX_UNASKED {
            confirm(plan.total)?;
        }
    }
    let json = client.create(PATH, &body)?;
    if options.is_detached {
        print_new(&json, format)
    } else {
        follow_to_end(client, &json, format)
    }
}

/// The targets of a batch that is not created.
fn dry_run(client: &Client, body: &Value) -> Result<Value> {
    let mut body = body.clone();
    body["dry_run"] = json!(true);
    client.post(PATH, &body)?.json()
}

fn show_plan(json: &Value, format: Format) -> Result<u8> {
    if format == Format::Json {
        return write(&json_text(json, format)).map(|()| 0);
    }
    let plan: BatchDryRun = typed(json)?;
    print_list(&plan.targets, format, |targets| {
        let mut table = Table::new(&["NAME", "AS", "CONNECTED"]);
        for target in targets {
            let target: PlannedTarget = typed(target)?;
            table.row([target.server_name, target.username, yes(target.is_connected)]);
        }
        Ok(table)
    })?;
    Ok(0)
}

/// Asks the user to type the number of servers.
fn confirm(total: i64) -> Result<()> {
    eprint!("This runs on {total} servers. Type {total} to go on: ");
    // Errors are ignored, because the user can type without a prompt.
    let _ = io::stderr().flush();
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    match read {
        Ok(_) if line.trim() == total.to_string() => Ok(()),
        _ => Err(Error::local("Nothing was run. `--yes` skips the question.")),
    }
}

/// Prints a new batch: its id, or the JSON.
pub fn print_new(json: &Value, format: Format) -> Result<u8> {
    if format == Format::Table {
        write(&format!("{}\n", typed::<Batch>(json)?.id))?;
    } else {
        write(&json_text(json, format))?;
    }
    Ok(0)
}

/// A command whose output this call shows.
struct CommandToShow {
    command: String,
    server: String,
    /// The position of its server among the targets.
    position: usize,
}

enum Message {
    Changed(BatchChange),
    /// The output of a command was shown to its end, or could not be shown.
    Shown {
        server: String,
        result: Result<()>,
    },
    /// The batch ended, or could not be followed.
    Ended(Result<Value>),
}

/// Shows the output of a new batch's commands as it arrives. Returns the highest exit code.
pub fn follow_to_end(client: &Client, json: &Value, format: Format) -> Result<u8> {
    let batch: Batch = typed(json)?;
    let running = Running::new(client);
    running.watch()?;
    running.add(KillTarget::Batch, &batch.id, "Batch");
    let followed = show_all(client, &batch.id, format);
    if followed.is_err() {
        let id = &batch.id;
        note(&format!(
            "The batch {id} may go on. Follow it with `farhand batch show --follow {id}`, or kill it with `farhand batch kill {id}`."
        ));
    }
    let (json, exit_code) = followed?;
    running.remove(&batch.id);
    match format {
        Format::Table => note_rest(client, &typed(&json)?)?,
        Format::Json => write(&json_text(&json, format))?,
        Format::Ndjson => write(&json_text(&json!({"event": "batch", "batch": json}), format))?,
    }
    Ok(exit_code)
}

/// Shows the output of all commands. Returns the ended batch as JSON, and the highest exit code.
fn show_all(client: &Client, id: &str, format: Format) -> Result<(Value, u8)> {
    let targets = client.targets(id, &[])?;
    let targets = targets.iter().map(typed).collect::<Result<Vec<BatchTarget>>>()?;
    let width = targets.iter().map(|target| target.server_name.chars().count()).max();
    let width = width.unwrap_or(0);
    let (sender, messages) = mpsc::channel();
    let jobs = start_workers(client, format, width, targets.len(), &sender);
    let (follower, followed) = (client.clone(), id.to_owned());
    // The threads end with farhand. Nothing waits for them after an error.
    thread::spawn(move || {
        let changed = |change| {
            // The receiver is closed only if farhand ends.
            let _ = sender.send(Message::Changed(change));
            Ok(())
        };
        let end = follow_batch(&follower, &followed, changed);
        let _ = sender.send(Message::Ended(end));
    });
    let mut names: HashMap<String, (usize, String)> = targets
        .into_iter()
        .enumerate()
        .map(|(position, target)| (target.server, (position, target.server_name)))
        .collect();
    let (mut unshown, mut exit_codes, mut end) = (0, HashMap::new(), None);
    for message in messages {
        match message {
            Message::Changed(change) => {
                let is_success = change.state == "success";
                exit_codes
                    .insert(change.server.clone(), exit_code_of(is_success, change.exit_code));
                // The first change with a command starts its output.
                let Some(command) = change.command else { continue };
                let Some((position, server)) = names.remove(&change.server) else { continue };
                unshown += 1;
                // The workers wait for jobs until farhand ends.
                let _ = jobs.send(CommandToShow { command, server, position });
            }
            Message::Shown { server, result } => {
                unshown -= 1;
                match result {
                    Err(Error::BrokenPipe) => return Err(Error::BrokenPipe),
                    Err(error) => note(&format!("{server}: {error}")),
                    Ok(()) => {}
                }
            }
            Message::Ended(batch) => end = Some(batch?),
        }
        if let Some(batch) = end.take_if(|_| unshown == 0) {
            return Ok((batch, exit_codes.into_values().max().unwrap_or(0)));
        }
    }
    Err(Error::local("farhand has a bug: a thread ended."))
}

/// Starts the threads that show the output of commands. Returns the sender of their jobs.
fn start_workers(
    client: &Client,
    format: Format,
    width: usize,
    targets: usize,
    sender: &Sender<Message>,
) -> Sender<CommandToShow> {
    let (jobs, receiver) = mpsc::channel::<CommandToShow>();
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..targets.min(MAX_PARALLEL) {
        let (client, sender, receiver) = (client.clone(), sender.clone(), Arc::clone(&receiver));
        thread::spawn(move || {
            while let Some(job) = next_job(&receiver) {
                let result = show(&client, format, width, &job);
                let shown = Message::Shown { server: job.server, result };
                if sender.send(shown).is_err() {
                    return;
                }
            }
        });
    }
    jobs
}

/// Waits for the next job. Returns `None` if there will be no more.
fn next_job(receiver: &Mutex<Receiver<CommandToShow>>) -> Option<CommandToShow> {
    receiver.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// Shows the output of a command as it arrives.
fn show(client: &Client, format: Format, width: usize, job: &CommandToShow) -> Result<()> {
    let mut view = match format {
        Format::Table => View::prefixed(&job.server, job.position, width),
        _ => View::single(format, &job.command, &job.server),
    };
    let end = follow(client, &job.command, |content| view.chunk(content))?;
    view.end(&end)
}

/// If not all targets succeeded, prints the counts, and why targets did not start.
pub fn note_rest(client: &Client, batch: &Batch) -> Result<()> {
    if batch.counts.success == batch.counts.total {
        return Ok(());
    }
    let states = "skipped,cancelled,expired".to_owned();
    let mut servers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for target in client.targets(&batch.id, &[("state", states)])? {
        let target: BatchTarget = typed(&target)?;
        if target.command.is_none() {
            let reason = target.reason.unwrap_or(target.state);
            servers.entry(reason).or_default().push(target.server_name);
        }
    }
    for (reason, servers) in servers {
        note(&format!("{}: {reason}", named(&servers)));
    }
    let (id, counts) = (&batch.id, counts_text(&batch.counts));
    note(&format!(
        "Batch {id}: {counts}. `farhand batch retry {id}` repeats it on the servers where it did not succeed."
    ));
    Ok(())
}

/// The names of servers on one line: at most [`MAX_NAMED`], and the number of others.
pub fn named(servers: &[String]) -> String {
    let names = servers.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match servers.len().saturating_sub(MAX_NAMED) {
        0 => names,
        others => format!("{names} and {others} others"),
    }
}

/// The numbers of targets in each state that has any, such as `18 success, 1 failed`.
pub fn counts_text(counts: &BatchCounts) -> String {
    let counts = [
        (counts.success, "success"),
        (counts.failed, "failed"),
        (counts.stuck, "stuck"),
        (counts.expired, "expired"),
        (counts.cancelled, "cancelled"),
        (counts.skipped, "skipped"),
        (counts.running, "running"),
        (counts.sent, "sent"),
        (counts.queued, "queued"),
        (counts.pending, "pending"),
    ];
    let texts = counts.iter().filter(|(count, _)| *count > 0);
    texts.map(|(count, state)| format!("{count} {state}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_shown_if_they_are_not_zero() {
        let json = json!({"total": 20, "pending": 0, "queued": 0, "sent": 0, "running": 1,
            "success": 17, "failed": 2, "cancelled": 0, "expired": 0, "stuck": 0, "skipped": 0});
        let counts: BatchCounts = serde_json::from_value(json).unwrap();
        assert_eq!(counts_text(&counts), "17 success, 2 failed, 1 running");
    }

    #[test]
    fn a_message_names_some_servers() {
        let servers: Vec<String> = (1..=12).map(|number| format!("s{number}")).collect();
        assert_eq!(named(&servers[..2]), "s1, s2");
        assert_eq!(named(&servers), "s1, s2, s3, s4, s5, s6, s7, s8, s9, s10 and 2 others");
    }
}
