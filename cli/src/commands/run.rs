//! `farhand run`: runs a command on one or several servers.

use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use clap::Args;
use serde_json::{Map, Value, json};

use super::typed;
use crate::client::Client;
use crate::connection::Options;
use crate::error::{EXIT_FAILURE, Error, Result};
use crate::interrupts::Running;
use crate::output::{Format, note, write};
use crate::run_output::{View, exit_code, print_json};
use crate::stream::follow;
use crate::text::visible;
use crate::time;
use crate::types::Command;

const PATH: &str = "/api/events/commands/";
/// Maximum size of `stdin` (contract 7.3).
const MAX_STDIN_BYTES: u64 = 64 * 1024;
/// Maximum number of commands that are followed concurrently. Commands for further servers are
/// created later.
const MAX_PARALLEL: usize = 32;

/// Run a command on servers, print its output as it arrives, and exit with its exit code
///
/// One word is a line for the server's /bin/sh: 'ps aux | grep nginx'. Several words reach the
/// program as they are. The output is written as it is, so escape sequences in it reach the
/// terminal. Ctrl-C kills the command. A second Ctrl-C exits and does not wait for its end.
#[derive(Args)]
pub struct Arguments {
    /// Names or ids of servers, separated by commas
    #[arg(value_name = "SERVER", required_unless_present = "more_servers")]
    servers: Option<String>,
    /// A further server. May be repeated
    #[arg(id = "more_servers", short = 's', long = "server", value_name = "SERVER")]
    more_servers: Vec<String>,
    /// The account on the server
    #[arg(long = "as", value_name = "ACCOUNT")]
    account: Option<String>,
    /// The group on the server
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// The folder to run in
    #[arg(long, value_name = "FOLDER")]
    cwd: Option<String>,
    /// An environment variable: NAME takes its value from this shell, NAME=VALUE sets it. May be
    /// repeated
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Send the standard input, at most 64 KiB of UTF-8
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Kill the command after this time: 90s, 30m, 2h. The service's default is 30m
    #[arg(long, value_name = "TIME", value_parser = time::parse_seconds)]
    timeout: Option<u64>,
    /// Run at a time, such as 2026-12-01T02:00:00Z or +2h. Prints the id and does not wait
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Print the id and do not wait
    #[arg(short, long)]
    detach: bool,
    /// If the agent is not connected, wait for it
    #[arg(long)]
    queue: bool,
    /// Run the program without a shell. Needs an agent with the feature `argv`
    #[arg(long)]
    no_shell: bool,
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The outcome of the command on one server.
struct Outcome {
    exit_code: u8,
    /// The command as JSON. `None` if farhand failed to create or to follow it.
    json: Option<Value>,
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<u8> {
    let servers = arguments.servers();
    if servers.is_empty() {
        return Err(Error::local("Name a server. `farhand servers` lists them."));
    }
    let is_single = servers.len() == 1;
    let body = arguments.body()?;
    let client = options.connect()?;
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

    /// The body of the request, without the server.
    fn body(&self) -> Result<Map<String, Value>> {
        let mut body = Map::new();
        if self.no_shell {
            body.insert("argv".into(), json!(self.command));
        } else {
            body.insert("line".into(), json!(line(&self.command)));
        }
        let texts = [("username", &self.account), ("groupname", &self.group), ("cwd", &self.cwd)];
        for (name, value) in texts {
            body.extend(value.as_ref().map(|value| (name.to_owned(), json!(value))));
        }
        if !self.env.is_empty() {
            let variables =
                self.env.iter().map(|text| variable(text)).collect::<Result<Map<_, _>>>()?;
            body.insert("env".into(), Value::Object(variables));
        }
        if self.stdin {
            body.insert("stdin".into(), json!(read_input(io::stdin().lock())?));
        }
        body.extend(self.timeout.map(|seconds| ("timeout".to_owned(), json!(seconds))));
        if let Some(at) = &self.at {
            body.insert("scheduled_at".into(), json!(time::parse_time(at, time::now())?));
        }
        if self.queue {
            body.insert("on_offline".into(), json!("queue"));
        }
        Ok(body)
    }
}

/// The line for the shell. A single word is the line itself. Several words are quoted, so that the
/// program receives them unchanged.
fn line(words: &[String]) -> String {
    match words {
        [line] => line.clone(),
        words => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Parses `NAME=VALUE`, or looks up the value of `NAME` in farhand's own environment.
fn variable(text: &str) -> Result<(String, Value)> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), json!(value))),
        None => match std::env::var(text) {
            Ok(value) => Ok((text.to_owned(), json!(value))),
            Err(_) => Err(Error::local(format!(
                "The variable {text} is not set here. Set it, or use {text}=VALUE."
            ))),
        },
    }
}

fn read_input(input: impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    let read = input.take(MAX_STDIN_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::local(format!("Cannot read the standard input: {error}.")))?;
    if bytes.len() as u64 > MAX_STDIN_BYTES {
        return Err(Error::local("The standard input is longer than 64 KiB. Nothing was run."));
    }
    String::from_utf8(bytes)
        .map_err(|_| Error::local("The standard input is not UTF-8. Nothing was run."))
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
        self.running.add(&command.id, &command.server_name);
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
        let body = Value::Object(arguments.body().unwrap());
        assert_eq!(body, json!({"line": "ls --as -d", "username": "root", "timeout": 120}));
        assert!(!arguments.is_detached());
        assert!(parse(&["web-1", "--at", "+2h", "--", "id"]).unwrap().is_detached());
    }

    #[test]
    fn one_word_is_a_line_and_several_words_are_quoted() {
        let words =
            |words: &[&str]| line(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(words(&["ps aux | grep x"]), "ps aux | grep x");
        assert_eq!(words(&["systemctl", "restart", "nginx"]), "systemctl restart nginx");
        assert_eq!(
            words(&["echo", "a b", "it's", "", "$HOME"]),
            r"echo 'a b' 'it'\''s' '' '$HOME'"
        );
    }

    #[test]
    fn argv_goes_without_a_shell() {
        let arguments = parse(&["web-1", "--no-shell", "--queue", "--", "ls", "a b"]).unwrap();
        let body = Value::Object(arguments.body().unwrap());
        assert_eq!(body, json!({"argv": ["ls", "a b"], "on_offline": "queue"}));
    }

    #[test]
    fn input_has_a_limit() {
        assert_eq!(read_input(&b"abc"[..]).unwrap(), "abc");
        let whole = vec![b'a'; 64 * 1024];
        assert_eq!(read_input(&whole[..]).unwrap().len(), 64 * 1024);
        let longer = [&whole[..], b"b"].concat();
        assert!(read_input(&longer[..]).unwrap_err().to_string().contains("64 KiB"));
        assert!(read_input(&b"\xff"[..]).is_err());
    }
}
