//! The Farhand agent: runs commands on a server, each as the account that the command names, and
//! reports their output.
//!
//! The agent is one self-contained binary. It reads a small config file or a few flags, keeps a
//! WebSocket to the service open, and runs the commands that arrive on it. `agent-protocol 4.1` in
//! a comment refers to heading 4.1 of `docs/spec/agent-protocol.md`.

mod agent;
mod cli;
mod config;
mod connection;
mod host;
mod journal;
mod labels;
mod logging;
mod reports;
mod runner;
mod service;
#[cfg(test)]
mod structure_tests;
mod upgrade;

use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use farhand_domain::agent::wire::AgentCommand;
use farhand_domain::secret::Secret;

use crate::agent::Exit;
use crate::cli::{
    Action, CommandLine, ConfigureArgs, InstallArgs, PolicyAction, PolicyCheckArgs, RegisterArgs,
    RunArgs, StatusArgs, UnregisterArgs,
};
use crate::config::{ConfigError, Overrides, Service, Settings};
use crate::connection::client::Client;
use crate::connection::websocket;
use crate::host::facts;
use crate::host::program::Program;
use crate::runner::policy::Trust;
use crate::service::configure::{self, Configuration};
use crate::service::install::{self, Failure, Installation};
use crate::service::key_check;
use crate::service::policy_check;
use crate::service::policy_install;
use crate::service::register::{self, Registration};
use crate::service::status::Status;
use crate::upgrade::program_file::{ProgramFile, Start};

/// The exit code for an invalid command line or configuration.
const MISUSE_EXIT_CODE: u8 = 2;

/// The environment variable of the key. Clap does not read the variable, because clap's help would
/// show its value. The same applies to the registration token.
const KEY_VARIABLE: &str = "FARHAND_AGENT_KEY";

/// The environment variable of the registration token.
const TOKEN_VARIABLE: &str = "FARHAND_REGISTRATION_TOKEN";

/// The environment variable in which systemd names the folders of `StateDirectory=`, separated by
/// colons.
const STATE_VARIABLE: &str = "STATE_DIRECTORY";

/// Returns the first folder of a list that is separated by colons.
fn first_folder(paths: &str) -> Option<PathBuf> {
    paths.split(':').next().filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Reads a credential from the environment. Returns `None` if the variable is absent or empty.
fn secret_from_env(variable: &str) -> Option<Secret> {
    std::env::var(variable).ok().filter(|value| !value.is_empty()).map(Secret::new)
}

/// The settings from the environment, and the path of the config file.
fn overrides_from_env(config: Option<PathBuf>) -> Overrides {
    Overrides {
        config,
        key: secret_from_env(KEY_VARIABLE),
        service_state_dir: std::env::var(STATE_VARIABLE)
            .ok()
            .and_then(|paths| first_folder(&paths)),
        ..Overrides::default()
    }
}

fn main() -> ExitCode {
    // Read before anything else, because the binary may be replaced at any time.
    let program = Program::current();
    let result = match CommandLine::parse().action {
        Action::Run(run) => return run_agent(run, program),
        Action::Register(register) => do_register(register),
        Action::Configure(configure) => do_configure(configure),
        Action::Unregister(unregister) => do_unregister(unregister),
        Action::Install(install) => do_install(install),
        Action::Uninstall(uninstall) => install::uninstall(uninstall.prefix, uninstall.own_account),
        Action::Status(arguments) => match do_status(arguments) {
            Ok((text, code)) => {
                println!("{text}");
                return ExitCode::from(code);
            }
            Err(failure) => Err(failure),
        },
        Action::Policy(PolicyAction::Check(arguments)) => match do_policy_check(arguments) {
            Ok(()) => Ok("allowed".to_owned()),
            Err(Failure::Failed(why)) => {
                println!("refused: {why}");
                return ExitCode::FAILURE;
            }
            Err(failure) => Err(failure),
        },
    };
    match result {
        Ok(report) => {
            println!("{report}");
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
    ExitCode::from(MISUSE_EXIT_CODE)
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Misuse(error.to_string())
    }
}

/// Prints warnings for the person who started the command.
fn warn(warnings: &[String]) {
    for warning in warnings {
        eprintln!("farhand-agent: {warning}");
    }
}

/// Runs a short task on its own runtime.
fn block_on<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Failed(format!("cannot start: {error}")))?;
    let result = runtime.block_on(work).map_err(Failure::Failed);
    // Does not wait for a thread that hangs in a name lookup.
    runtime.shutdown_background();
    result
}

fn do_register(register: RegisterArgs) -> Result<String, Failure> {
    let service = Service::parse(&register.url)?;
    service.check_transport(register.allow_plain_http)?;
    let mut warnings: Vec<_> = service.warning().into_iter().collect();
    let token = match register.token_file {
        Some(path) => Some(Secret::new(config::read_private_file(&path, &mut warnings)?.trim())),
        None => secret_from_env(TOKEN_VARIABLE),
    };
    let Some(token) = token else {
        return Err(Failure::Misuse(format!(
            "no registration token is given: use --token-file or {TOKEN_VARIABLE}"
        )));
    };
    config::check_credential("the registration token", &token)?;
    warn(&warnings);
    let RegisterArgs { name, config, force, label, .. } = register;
    let labels = labels::combine(&config, label).map_err(Failure::Misuse)?;
    block_on(register::register(Registration { service, token, name, labels, config, force }))
}

fn do_configure(configure: ConfigureArgs) -> Result<String, Failure> {
    let ConfigureArgs { url, id, key_file, config, allow_plain_http, force } = configure;
    let service = Service::parse(&url)?;
    service.check_transport(allow_plain_http)?;
    let Some(id) = farhand_domain::id::parse(id.trim()) else {
        return Err(Failure::Misuse(format!("--id: {id:?} is not the UUID of a server")));
    };
    let mut warnings: Vec<_> = service.warning().into_iter().collect();
    let key = match key_file {
        Some(path) => Some(Secret::new(config::read_private_file(&path, &mut warnings)?.trim())),
        None => secret_from_env(KEY_VARIABLE),
    };
    let Some(key) = key else {
        return Err(Failure::Misuse(format!("no key is given: use --key-file or {KEY_VARIABLE}")));
    };
    config::check_credential("the key", &key)?;
    warn(&warnings);
    block_on(configure::configure(Configuration { service, id, key, config, force }))
}

fn do_unregister(unregister: UnregisterArgs) -> Result<String, Failure> {
    let settings = Settings::load(overrides_from_env(Some(unregister.config.clone())))?;
    warn(&settings.warnings);
    block_on(register::unregister(&settings, &unregister.config, unregister.force))
}

fn do_install(install: InstallArgs) -> Result<String, Failure> {
    // A systemd unit needs an absolute path.
    let config =
        std::path::absolute(&install.config).map_err(|error| Failure::Misuse(error.to_string()))?;
    let InstallArgs { user, prefix, own_account, no_start, .. } = install;
    let policy = std::env::var(policy_install::MODE_VARIABLE).unwrap_or_default();
    let policy = policy_install::parse_mode(&policy).map_err(Failure::Misuse)?;
    install::install(&Installation { config, user, prefix, own_account, start: !no_start, policy })
}

fn do_status(arguments: StatusArgs) -> Result<(String, u8), Failure> {
    let settings = Settings::load(Overrides {
        state_dir: arguments.state_dir,
        ..overrides_from_env(Some(arguments.config))
    })?;
    warn(&settings.warnings);
    let status = block_on(Status::collect(&settings))?;
    let text = if arguments.json { status.json().to_string() } else { status.text() };
    Ok((text, status.code()))
}

fn do_policy_check(arguments: PolicyCheckArgs) -> Result<(), Failure> {
    let PolicyCheckArgs { file, user, shell, argv, timeout, draft, words } = arguments;
    let order = AgentCommand {
        user,
        shell,
        line: words.join(" "),
        argv: argv.then_some(words),
        allow_sh: !argv,
        timeout: Some(timeout),
        ..AgentCommand::default()
    };
    policy_check::check(&file, if draft { Trust::Draft } else { Trust::Required }, &order)
}

/// Checks that an agent with these settings can connect, without receiving commands.
fn check_connection(settings: &Settings) -> ExitCode {
    let check = async {
        let client = Client::new(settings)?;
        key_check::check_key(&client).await?;
        websocket::check(&client).await.map_err(|why| format!("no WebSocket: {why}"))
    };
    match block_on(check) {
        Ok(()) => {
            println!("{} is reachable and accepts the key", settings.service);
            ExitCode::SUCCESS
        }
        Err(Failure::Misuse(why) | Failure::Failed(why)) => {
            eprintln!("farhand-agent: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the agent until a signal or the service ends it.
fn run_agent(run: RunArgs, program: Program) -> ExitCode {
    logging::init(run.verbose);
    let overrides = Overrides {
        url: run.url,
        id: run.id,
        key_file: run.key_file,
        state_dir: run.state_dir,
        policy: run.policy,
        ..overrides_from_env(run.config)
    };
    let settings = match Settings::load(overrides) {
        Ok(settings) => settings,
        Err(error) => return misuse(error),
    };
    if run.check_connection {
        return check_connection(&settings);
    }
    for warning in &settings.warnings {
        log::warn!("{warning}");
    }
    let trial = match ProgramFile::new(&program, settings.id).map(ProgramFile::start) {
        Ok(Start::Trial(file)) => {
            log::info!("version {}: first start", facts::VERSION);
            Some(file)
        }
        Ok(Start::Failed(file)) => {
            log::error!("this version ended before it connected: the previous version returns");
            match file.go_back() {
                Ok(()) => log::error!("cannot start it: {}", program.replace()),
                Err(error) => log::error!("it cannot return: {error}"),
            }
            None
        }
        // Without its file, the program cannot have been replaced.
        Ok(Start::Usual) | Err(_) => None,
    };
    // Two threads, because a command with endless output can keep one of them busy.
    let runtime =
        match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                log::error!("cannot start: {error}");
                return ExitCode::FAILURE;
            }
        };
    let drain_time = Duration::from_secs(run.drain_seconds.into());
    let exit = runtime.block_on(agent::run(settings, drain_time, program.clone(), trial));
    // Does not wait for threads that hang in the file system or in a name lookup.
    runtime.shutdown_background();
    match exit {
        Ok(Exit::Drained) => ExitCode::SUCCESS,
        Ok(Exit::Immediately) => ExitCode::FAILURE,
        Ok(Exit::Restart) => {
            log::info!("restarting");
            log::error!("cannot restart: {}", program.replace());
            ExitCode::FAILURE
        }
        Err(error) => {
            log::error!("{error}");
            ExitCode::FAILURE
        }
    }
}
