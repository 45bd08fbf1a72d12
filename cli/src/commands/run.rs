//! `farhand run`: runs a command on one or several servers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use clap::Args;
use serde_json::{Map, Value, json};

use super::fleet::Fleet;
use super::task::Task;
use super::{MAX_PARALLEL, run_batch, typed};
use crate::client::Client;
use crate::connection::Options;
use crate::error::{EXIT_FAILURE, Error, Result};
use crate::interrupts::{KillTarget, Running};
use crate::output::{Format, note, write};
use crate::run_output::{View, exit_code, print_json};
use crate::stream::follow;
use crate::text::visible;
use crate::time;
use crate::types::Command;

const PATH: &str = "/api/events/commands/";

/// Run a command on servers, print its output as it arrives, and exit with its exit code
///
/// One word is a line for the server's /bin/sh: 'ps aux | grep nginx'. Several words reach the
/// program as they are. The output is written as it is, so escape sequences in it reach the
/// terminal. Ctrl-C kills the command. A second Ctrl-C exits and does not wait for its end.
///
/// With `-l`, `--all`, `--max-concurrency`, `--ramp`, `--max-errors`, `--on-offline` or `--dry-run`
/// the service runs the command as a batch.
#[derive(Args)]
pub struct Arguments {
    /// Names or ids of servers, separated by commas
    #[arg(
        value_name = "SERVER",
        required_unless_present_any = ["more_servers", "selector", "all"],
        conflicts_with_all = ["selector", "all"]
    )]
    servers: Option<String>,
    /// A further server. May be repeated
    #[arg(
        id = "more_servers",
        short = 's',
        long = "server",
        value_name = "SERVER",
        conflicts_with_all = ["selector", "all"]
    )]
    more_servers: Vec<String>,
    #[command(flatten)]
    task: Task,
    #[command(flatten)]
    fleet: Fleet,
    /// Run at a time, such as 2026-12-01T02:00:00Z or +2h. Prints the id and does not wait
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Print the id and do not wait
    #[arg(short, long)]
    detach: bool,
    /// If the agent is not connected, wait for it
    #[arg(long, conflicts_with = "on_offline")]
    queue: bool,
    /// Show the servers, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before a batch runs on more than 20 servers
    #[arg(short, long)]
    yes: bool,
}

/// The outcome of the command on one server.
struct Outcome {
    exit_code: u8,
    /// The command as JSON. `None` if farhand failed to create or to follow it.
    json: Option<Value>,
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<u8> {
    let client = options.connect()?;
    let servers = arguments.servers();
    let is_batch = arguments.fleet.is_given() || arguments.dry_run;
    if servers.is_empty() && !arguments.fleet.selects() {
        return Err(Error::local("Name a server. `farhand servers` lists them."));
    }
    let mut body = arguments.body(&client)?;
    if is_batch {
        arguments.fleet.add_to(&mut body, &servers);
        let run_options = run_batch::RunOptions {
            is_dry_run: arguments.dry_run,
            is_detached: arguments.is_detached(),
            asks: !arguments.yes,
        };
        return run_batch::execute(&client, options.output, body, &run_options);
    }
    let is_single = servers.len() == 1;
    let running = Running::new(&client);
    let run = Run {
        client,
        running,
        format: options.output,
        is_detached: arguments.is_detached(),
        servers,
        body,
    };
    let outcomes = run.all()?;
    if options.output == Format::Json || (options.output == Format::Ndjson && run.is_detached) {
        let commands: Vec<Value> =
            outcomes.iter().filter_map(|outcome| outcome.json.clone()).collect();
        if !commands.is_empty() {
            print_json(&commands, is_single, options.output)?;
        }
    }
    Ok(outcomes.iter().map(|outcome| outcome.exit_code).max().unwrap_or(EXIT_FAILURE))
}

impl Arguments {
    /// The servers, without repetitions.
    fn servers(&self) -> Vec<String> {
        let mut servers: Vec<String> = Vec::new();
        for text in self.servers.iter().chain(&self.more_servers) {
            for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                if !servers.iter().any(|server| server == name) {
                    servers.push(name.to_owned());
                }
            }
        }
        servers
    }

    fn is_detached(&self) -> bool {
        self.detach || self.at.is_some()
    }

    /// The body of the request, without the servers.
    fn body(&self, client: &Client) -> Result<Map<String, Value>> {
        let mut body = self.task.fields(client)?;
        if let Some(at) = &self.at {
            body.insert("scheduled_at".into(), json!(time::parse_time(at, time::now())?));
        }
        if self.queue {
            body.insert("on_offline".into(), json!("queue"));
        }
        Ok(body)
    }
}

/// A command, and the servers to run it on.
struct Run {
    client: Client,
    running: Running,
    format: Format,
    is_detached: bool,
    servers: Vec<String>,
    body: Map<String, Value>,
}

impl Run {
    /// Runs the command on all servers. Returns the outcomes in the order of the servers.
    fn all(&self) -> Result<Vec<Outcome>> {
        if !self.is_detached {
            self.running.watch()?;
        }
        let next = AtomicUsize::new(0);
        let work = || {
            let mut outcomes = Vec::new();
            loop {
                let position = next.fetch_add(1, Ordering::Relaxed);
                let Some(server) = self.servers.get(position) else { return Ok(outcomes) };
                let outcome = match self.one(position, server) {
                    Err(Error::BrokenPipe) => return Err(Error::BrokenPipe),
                    Err(error) if self.servers.len() == 1 => return Err(error),
                    Err(error) => {
                        note(&format!("{server}: {error}"));
                        Outcome { exit_code: error.exit_code(), json: None }
                    }
                    Ok(outcome) => outcome,
                };
                outcomes.push((position, outcome));
            }
        };
        let mut outcomes = thread::scope(|scope| {
            let count = self.servers.len().min(MAX_PARALLEL);
            let workers: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
            let mut outcomes = Vec::new();
            for worker in workers {
                let done: Result<Vec<_>> = worker
                    .join()
                    .unwrap_or_else(|_| Err(Error::local("farhand has a bug: a thread ended.")));
                outcomes.extend(done?);
            }
            Ok::<_, Error>(outcomes)
        })?;
        outcomes.sort_by_key(|(position, _)| *position);
        Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
    }

    /// Runs the command on one server.
    fn one(&self, position: usize, server: &str) -> Result<Outcome> {
        if self.running.is_stopping() {
            return Err(Error::local("Not started."));
        }
        let mut body = self.body.clone();
        body.insert("server".into(), json!(server));
        let json = self.client.create(PATH, &Value::Object(body))?;
        let command: Command = typed(&json)?;
        if self.is_detached {
            self.print_id(&command)?;
            return Ok(Outcome { exit_code: 0, json: Some(json) });
        }
        self.running.add(KillTarget::Command, &command.id, &command.server_name);
        let mut view = if self.servers.len() > 1 && self.format == Format::Table {
            let width = self.servers.iter().map(|name| name.chars().count()).max().unwrap_or(0);
            View::prefixed(server, position, width)
        } else {
            View::single(self.format, &command.id, &command.server_name)
        };
        let end = follow(&self.client, &command.id, |content| view.chunk(content));
        if end.is_err() {
            let id = &command.id;
            note(&format!(
                "{server}: {id} may go on. Follow it with `farhand logs -f {id}`, or kill it with `farhand kill {id}`."
            ));
        }
        let end = end?;
        self.running.remove(&command.id);
        view.end(&end)?;
        Ok(Outcome { exit_code: exit_code(&end.command), json: Some(end.json) })
    }

    /// Prints the id of a detached command as text. JSON is printed after all commands were
    /// created.
    fn print_id(&self, command: &Command) -> Result<()> {
        match (self.format, self.servers.len()) {
            (Format::Table, 1) => write(&format!("{}\n", visible(&command.id))),
            (Format::Table, _) => {
                write(&format!("{}\t{}\n", visible(&command.server_name), visible(&command.id)))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: Arguments,
    }

    /// A client that sends nothing in these tests.
    fn client() -> Client {
        let address = crate::address::Address::parse("http://127.0.0.1:1", false).unwrap();
        Client::new(address, None).unwrap()
    }

    fn parse(arguments: &[&str]) -> std::result::Result<Arguments, clap::Error> {
        Line::try_parse_from([&["run"], arguments].concat()).map(|line| line.run)
    }

    #[test]
    fn servers_are_a_list_or_repeated() {
        let servers = |arguments: &[&str]| parse(arguments).unwrap().servers();
        assert_eq!(servers(&["web-1,web-2,web-1", "--", "id"]), ["web-1", "web-2"]);
        assert_eq!(servers(&["-s", "a", "-s", "b", "--", "id"]), ["a", "b"]);
        assert_eq!(servers(&["a", "-s", "b", "--", "id"]), ["a", "b"]);
        assert!(parse(&["--", "id"]).is_err());
        assert!(parse(&["web-1"]).is_err());
        assert!(parse(&["web-1", "id"]).is_err());
    }

    #[test]
    fn options_after_the_dashes_belong_to_the_command() {
        let arguments =
            parse(&["web-1", "--as", "root", "--timeout", "2m", "--", "ls", "--as", "-d"]).unwrap();
        let body = Value::Object(arguments.body(&client()).unwrap());
        assert_eq!(body, json!({"line": "ls --as -d", "username": "root", "timeout": 120}));
        assert!(!arguments.is_detached());
        assert!(parse(&["web-1", "--at", "+2h", "--", "id"]).unwrap().is_detached());
    }

    #[test]
    fn argv_goes_without_a_shell() {
        let arguments = parse(&["web-1", "--no-shell", "--queue", "--", "ls", "a b"]).unwrap();
        let body = Value::Object(arguments.body(&client()).unwrap());
        assert_eq!(body, json!({"argv": ["ls", "a b"], "on_offline": "queue"}));
    }

    #[test]
    fn a_selector_or_an_option_of_batches_makes_a_batch() {
        let fields = |arguments: &[&str]| {
            let arguments = parse(&[arguments, &["--", "id"]].concat()).unwrap();
            assert!(arguments.fleet.is_given());
            let mut body = arguments.body(&client()).unwrap();
            arguments.fleet.add_to(&mut body, &arguments.servers());
            Value::Object(body)
        };
        assert_eq!(
            fields(&["-l", "role=web", "--ramp", "--queue"]),
            json!({"line": "id", "targets": {"selector": "role=web"}, "ramp": true, "on_offline": "queue"})
        );
        assert_eq!(
            fields(&[
                "--all",
                "--max-concurrency",
                "25%",
                "--max-errors",
                "0",
                "--on-offline",
                "reject"
            ]),
            json!({"line": "id", "targets": {"all": true}, "max_concurrency": "25%", "max_errors": 0, "on_offline": "reject"})
        );
        assert_eq!(
            fields(&["a,b", "--max-concurrency", "1"]),
            json!({"line": "id", "targets": {"servers": ["a", "b"]}, "max_concurrency": 1})
        );
        for wrong in [
            &["a", "-l", "x"][..],
            &["-s", "a", "--all"],
            &["-l", "x", "--all"],
            &["-l", "x", "--queue", "--on-offline", "skip"],
            &["--ramp"],
        ] {
            assert!(parse(&[wrong, &["--", "id"]].concat()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_script_replaces_the_command() {
        assert!(parse(&["a", "--script", "backup", "--param", "A=b"]).is_ok());
        assert!(parse(&["a", "--script", "backup", "--", "id"]).is_err());
        assert!(parse(&["a", "--script", "backup", "--no-shell"]).is_err());
        assert!(parse(&["a", "--param", "A=b", "--", "id"]).is_err());
    }
}
