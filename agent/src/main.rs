//! Farhand's agent: runs commands on a server, as the accounts that they name, and reports their output.
//!
//! One binary without anything around it: it reads a small file or a few flags, keeps a WebSocket to the service, and
//! runs what comes there. `agent-protocol` in the documentation of these modules is the protocol between the two.

mod account;
mod agent;
mod checkin;
mod client;
mod config;
mod group;
mod host;
mod journal;
mod link;
mod logging;
mod memory;
mod output;
mod process;
mod reports;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use farhand_domain::secret::Secret;

use crate::agent::Exit;
use crate::config::{Given, Settings};

/// The exit code for what is wrong with the command line or the configuration.
const MISUSE: u8 = 2;

/// Runs commands on this server for a Farhand workspace.
#[derive(Parser)]
#[command(name = "farhand-agent", version)]
struct CommandLine {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Connect to the service and run the commands that it sends, until stopped.
    ///
    /// As root the agent runs commands as any account that they name. As another account it runs them as itself only.
    /// SIGTERM and SIGINT drain: no more commands are taken, and those that run may end. A second one exits at once.
    Run(Run),
}

#[derive(Args)]
struct Run {
    /// A TOML file with url, id and key, and optionally max_running and state_dir.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The workspace's address, such as https://example.farhand.dev.
    #[arg(long)]
    url: Option<String>,
    /// The server's id.
    #[arg(long)]
    id: Option<String>,
    /// A file that holds the server's key and nothing else.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Where the agent keeps what it must not forget over a restart. Without it: state_dir of the file, then the folder
    /// that systemd gives, then one beside the file, named as that and ending in .state.
    #[arg(long, value_name = "DIRECTORY")]
    state_dir: Option<PathBuf>,
    /// How long running commands may go on after a signal, before they are stopped.
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    drain_seconds: u32,
    /// Log more.
    #[arg(long, short)]
    verbose: bool,
}

/// The environment variable of the key. It is not one of clap's, whose help would show its value.
const KEY_VARIABLE: &str = "FARHAND_AGENT_KEY";

/// The environment variable in which systemd names the folders of `StateDirectory=`, with colons between.
const STATE_VARIABLE: &str = "STATE_DIRECTORY";

/// The first of some folders.
fn first(paths: &str) -> Option<PathBuf> {
    paths.split(':').next().filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn main() -> ExitCode {
    let Action::Run(run) = CommandLine::parse().action;
    logging::start(run.verbose);
    let key = std::env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty()).map(Secret::new);
    let given = Given {
        config: run.config,
        url: run.url,
        id: run.id,
        key_file: run.key_file,
        key,
        state_dir: run.state_dir,
        service_state_dir: std::env::var(STATE_VARIABLE).ok().and_then(|paths| first(&paths)),
    };
    let settings = match Settings::load(given) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("farhand-agent: {error}");
            return ExitCode::from(MISUSE);
        }
    };
    for warning in &settings.warnings {
        log::warn!("{warning}");
    }
    // Two threads: one may be busy with draining a command's endless output.
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            log::error!("cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let exit = runtime.block_on(agent::run(settings, Duration::from_secs(run.drain_seconds.into())));
    // What hangs in the file system or in a look-up does not keep the agent from exiting.
    runtime.shutdown_background();
    match exit {
        Ok(Exit::Drained) => ExitCode::SUCCESS,
        Ok(Exit::AtOnce) => ExitCode::FAILURE,
        Err(error) => {
            log::error!("{error}");
            ExitCode::FAILURE
        }
    }
}
