//! Farhand's agent: runs commands on a server, as the accounts that they name, and reports their output.
//!
//! One binary without anything around it: it reads a small file or a few flags, keeps a WebSocket to the service, and
//! runs what comes there. `agent-protocol` in the documentation of these modules is the protocol between the two.

mod agent;
mod config;
mod connection;
mod host;
mod journal;
mod logging;
mod reports;
mod runner;
mod service;

use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use farhand_domain::secret::Secret;

use crate::agent::Exit;
use crate::config::{CONFIG, ConfigError, Given, Service, Settings};
use crate::host::program::Program;
use crate::service::install::{self, Failure, Installation};
use crate::service::register::{self, Registration};
use crate::service::status::Status;

/// The exit code for what is wrong with the command line or the configuration.
const MISUSE: u8 = 2;
/// How long commands have to end by themselves unless something else is said, in seconds.
const DRAIN_SECONDS: u64 = 20;

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
    /// Make this host a server of a workspace, with a registration token, and write the agent's file.
    ///
    /// The token is read from --token-file or from the environment variable FARHAND_REGISTRATION_TOKEN. It is no argument,
    /// as everyone on this host could see it.
    Register(Register),
    /// Take this server out of its workspace, and remove the agent's file and state.
    Unregister(Unregister),
    /// Install this program as a service of systemd, or bring the one that is installed up to date. Needs root.
    Install(Install),
    /// Stop the service of systemd and remove its unit. Needs root.
    Uninstall(Uninstall),
    /// Tell whether an agent runs on this host, and whether the service takes its key.
    ///
    /// Exit code 0: both. 4: the service refuses the key. 3: no agent runs. 1: the service is not reached.
    Status(Look),
}

#[derive(Args)]
struct Run {
    /// A TOML file with url, id and key, and optionally max_running, state_dir, policy, syslog and allow_plain_http. Each
    /// flag below is used in place of its key in the file.
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
    /// The host's policy, in place of /etc/farhand/policy.toml. A file that is named must exist.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// How long running commands may go on after a signal, before they are stopped.
    #[arg(long, value_name = "SECONDS", default_value_t = DRAIN_SECONDS as u32)]
    drain_seconds: u32,
    /// Log more.
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Args)]
struct Register {
    /// The workspace's address, such as https://example.farhand.dev.
    #[arg(long)]
    url: String,
    /// The server's name. Without it: the host's. Where it is taken, the service adds a number.
    #[arg(long)]
    name: Option<String>,
    /// A file that holds the registration token and nothing else.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The agent's file, which is written.
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
    /// Use http to a host other than this one: anybody on the way is then root here.
    #[arg(long)]
    allow_plain_http: bool,
    /// Replace a file that is there. The server that it is for stays in its workspace.
    #[arg(long)]
    force: bool,
}

#[derive(Args)]
struct Unregister {
    /// The agent's file.
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
    /// Remove the file also where the service does not know the server and its key.
    #[arg(long)]
    force: bool,
}

#[derive(Args)]
struct Install {
    /// The agent's file.
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
    /// The account that the agent runs as, in a sandbox. The file is given to it. Without it: root.
    #[arg(long, value_name = "ACCOUNT")]
    user: Option<String>,
    /// Write below this folder, for an image of a host; nothing is started or checked.
    #[arg(long, value_name = "DIRECTORY")]
    prefix: Option<PathBuf>,
    /// Do not start the agent now.
    #[arg(long)]
    no_start: bool,
}

#[derive(Args)]
struct Uninstall {
    /// The folder that was written below.
    #[arg(long, value_name = "DIRECTORY")]
    prefix: Option<PathBuf>,
}

#[derive(Args)]
struct Look {
    /// The agent's file.
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
    /// Where the agent keeps its state, if it was told with this flag.
    #[arg(long, value_name = "DIRECTORY")]
    state_dir: Option<PathBuf>,
    /// Tell it as JSON.
    #[arg(long)]
    json: bool,
}

/// The environment variable of the key. It is not one of clap's, whose help would show its value; neither is the next.
const KEY_VARIABLE: &str = "FARHAND_AGENT_KEY";

/// The environment variable of the registration token.
const TOKEN_VARIABLE: &str = "FARHAND_REGISTRATION_TOKEN";

/// The environment variable in which systemd names the folders of `StateDirectory=`, with colons between.
const STATE_VARIABLE: &str = "STATE_DIRECTORY";

/// The first of some folders.
fn first(paths: &str) -> Option<PathBuf> {
    paths.split(':').next().filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// A credential of the environment.
fn secret(variable: &str) -> Option<Secret> {
    std::env::var(variable).ok().filter(|value| !value.is_empty()).map(Secret::new)
}

/// What the environment says to an agent, and the file's name.
fn given(config: Option<PathBuf>) -> Given {
    Given {
        config,
        key: secret(KEY_VARIABLE),
        service_state_dir: std::env::var(STATE_VARIABLE).ok().and_then(|paths| first(&paths)),
        ..Given::default()
    }
}

fn main() -> ExitCode {
    // Before anything else, as the file may be replaced at any time.
    let program = Program::current();
    let done = match CommandLine::parse().action {
        Action::Run(run) => return serve(run, program),
        Action::Register(register) => do_register(register),
        Action::Unregister(unregister) => do_unregister(unregister),
        Action::Install(install) => do_install(install),
        Action::Uninstall(uninstall) => install::uninstall(uninstall.prefix.as_deref()),
        Action::Status(look) => match do_status(look) {
            Ok((text, code)) => {
                println!("{text}");
                return ExitCode::from(code);
            }
            Err(failure) => Err(failure),
        },
    };
    match done {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(Failure::Misuse(why)) => misuse(why),
        Err(Failure::Failed(why)) => {
            eprintln!("farhand-agent: {why}");
            ExitCode::FAILURE
        }
    }
}

fn misuse(why: impl std::fmt::Display) -> ExitCode {
    eprintln!("farhand-agent: {why}");
    ExitCode::from(MISUSE)
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Misuse(error.to_string())
    }
}

/// Shows what the one who started this should know.
fn warn(warnings: &[String]) {
    for warning in warnings {
        eprintln!("farhand-agent: {warning}");
    }
}

/// Does what is over soon.
fn wait_for<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Failed(format!("cannot start: {error}")))?;
    let done = runtime.block_on(work).map_err(Failure::Failed);
    // A look-up of a name may hang.
    runtime.shutdown_background();
    done
}

fn do_register(register: Register) -> Result<String, Failure> {
    let service = Service::parse(&register.url)?;
    service.check_transport(register.allow_plain_http)?;
    let mut warnings: Vec<_> = service.warning().into_iter().collect();
    let token = match register.token_file {
        Some(path) => Some(Secret::new(config::read(&path, &mut warnings)?.trim())),
        None => secret(TOKEN_VARIABLE),
    };
    let Some(token) = token else {
        return Err(Failure::Misuse(format!("no registration token is given: use --token-file or {TOKEN_VARIABLE}")));
    };
    config::check_credential("the registration token", &token)?;
    warn(&warnings);
    let Register { name, config, force, .. } = register;
    wait_for(register::register(Registration { service, token, name, config, force }))
}

fn do_unregister(unregister: Unregister) -> Result<String, Failure> {
    let settings = Settings::load(given(Some(unregister.config.clone())))?;
    warn(&settings.warnings);
    wait_for(register::unregister(&settings, &unregister.config, unregister.force))
}

fn do_install(install: Install) -> Result<String, Failure> {
    // A path in a unit is whole.
    let config = std::path::absolute(&install.config).map_err(|error| Failure::Misuse(error.to_string()))?;
    let Install { user, prefix, no_start, .. } = install;
    install::install(&Installation { config, user, prefix, start: !no_start })
}

fn do_status(look: Look) -> Result<(String, u8), Failure> {
    let settings = Settings::load(Given { state_dir: look.state_dir, ..given(Some(look.config)) })?;
    warn(&settings.warnings);
    let status = wait_for(Status::look(&settings))?;
    let text = if look.json { status.json().to_string() } else { status.text() };
    Ok((text, status.code()))
}

/// Runs the agent.
fn serve(run: Run, program: Program) -> ExitCode {
    logging::start(run.verbose);
    let given = Given {
        url: run.url,
        id: run.id,
        key_file: run.key_file,
        state_dir: run.state_dir,
        policy: run.policy,
        ..given(run.config)
    };
    let settings = match Settings::load(given) {
        Ok(settings) => settings,
        Err(error) => return misuse(error),
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
    let patience = Duration::from_secs(run.drain_seconds.into());
    let exit = runtime.block_on(agent::run(settings, patience, program.clone()));
    // What hangs in the file system or in a look-up does not keep the agent from exiting.
    runtime.shutdown_background();
    match exit {
        Ok(Exit::Drained) => ExitCode::SUCCESS,
        Ok(Exit::AtOnce) => ExitCode::FAILURE,
        Ok(Exit::Restart) => {
            log::info!("starting anew");
            log::error!("it cannot be started anew: {}", program.replace());
            ExitCode::FAILURE
        }
        Err(error) => {
            log::error!("{error}");
            ExitCode::FAILURE
        }
    }
}
