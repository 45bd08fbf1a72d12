//! `farhand`: runs commands on servers, and manages a workspace, over the public API.
//!
//! This crate depends on no other crate of the project. It uses only the API that
//! `docs/openapi.yaml` describes. In comments, `contract 7.9` means heading 7.9 of
//! `docs/spec/contract.md`.

mod address;
mod client;
mod commands;
mod connection;
mod error;
mod interrupts;
mod output;
mod profile;
mod run_output;
mod stream;
mod text;
mod time;
mod types;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use commands::{
    api, audit, batch, end, groups, history, login, logout, logs, manual, profiles, run, schedules,
    scripts, servers, tokens, users, whoami,
};
use connection::Options;
use error::{EXIT_FAILURE, Error, Result};

/// What `--version` prints: version and commit.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("FARHAND_COMMIT"), ")");

/// Run commands on your servers through Farhand
#[derive(Parser)]
#[command(name = "farhand", version = VERSION, propagate_version = false, after_help = EXIT_CODES)]
struct Farhand {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Subcommands,
}

const EXIT_CODES: &str = "Exit codes:
  run, logs -f  the exit code of the command; of several commands, the highest
  batch retry, batch show --follow  the same
  1             `audit verify` found a change
  124           the command was killed after its timeout
  125           farhand failed, or the command ended without an exit code
  130           you left a running command with Ctrl-C
  141           the reader of the output went away

Environment:
  FARHAND_URL, FARHAND_TOKEN  the workspace and a token, instead of a profile
  XDG_CONFIG_HOME             where farhand/profiles.json is; default ~/.config
  NO_COLOR                    if not empty, no colours";

#[derive(Subcommand)]
enum Subcommands {
    Login(login::Arguments),
    /// End the session, and delete its profile
    Logout,
    /// Show the user and the workspace
    Whoami,
    Profiles(profiles::Arguments),
    Run(run::Arguments),
    Logs(logs::Arguments),
    History(history::Arguments),
    Cancel(end::CancelArguments),
    Kill(end::KillArguments),
    Batch(batch::Arguments),
    Schedules(schedules::Arguments),
    Scripts(scripts::Arguments),
    Servers(servers::Arguments),
    Tokens(tokens::Arguments),
    Users(users::Arguments),
    Groups(groups::Arguments),
    Audit(audit::Arguments),
    Api(api::Arguments),
    Completions(manual::CompletionArguments),
    Man(manual::ManArguments),
}

fn execute(farhand: &Farhand) -> Result<u8> {
    let options = &farhand.options;
    let done = |result: Result<()>| result.map(|()| 0);
    match &farhand.command {
        Subcommands::Login(arguments) => done(login::execute(options, arguments)),
        Subcommands::Logout => done(logout::execute(options)),
        Subcommands::Whoami => done(whoami::execute(options)),
        Subcommands::Profiles(arguments) => done(profiles::execute(options, arguments)),
        Subcommands::Run(arguments) => run::execute(options, arguments),
        Subcommands::Logs(arguments) => logs::execute(options, arguments),
        Subcommands::History(arguments) => done(history::execute(options, arguments)),
        Subcommands::Cancel(arguments) => done(end::cancel(options, arguments)),
        Subcommands::Kill(arguments) => done(end::kill(options, arguments)),
        Subcommands::Batch(arguments) => batch::execute(options, arguments),
        Subcommands::Schedules(arguments) => done(schedules::execute(options, arguments)),
        Subcommands::Scripts(arguments) => done(scripts::execute(options, arguments)),
        Subcommands::Servers(arguments) => done(servers::execute(options, arguments)),
        Subcommands::Tokens(arguments) => tokens::execute(options, arguments),
        Subcommands::Users(arguments) => done(users::execute(options, arguments)),
        Subcommands::Groups(arguments) => done(groups::execute(options, arguments)),
        Subcommands::Audit(arguments) => audit::execute(options, arguments),
        Subcommands::Api(arguments) => done(api::execute(options, arguments)),
        Subcommands::Completions(arguments) => {
            done(manual::completions(Farhand::command(), arguments))
        }
        Subcommands::Man(arguments) => done(manual::man(Farhand::command(), arguments)),
    }
}

fn main() -> ExitCode {
    let farhand = match Farhand::try_parse() {
        Ok(farhand) => farhand,
        Err(error) => {
            // A failure to print cannot be reported.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EXIT_FAILURE } else { 0 });
        }
    };
    match execute(&farhand) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            if !matches!(error, Error::BrokenPipe) {
                output::note(&error.to_string());
            }
            ExitCode::from(error.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_arguments_is_consistent() {
        Farhand::command().debug_assert();
    }

    #[test]
    fn no_argument_takes_a_token_or_a_password() {
        fn names(command: &clap::Command, found: &mut Vec<String>) {
            let arguments = command.get_arguments();
            let valued = arguments.filter(|argument| argument.get_action().takes_values());
            found.extend(valued.map(|argument| argument.get_id().to_string()));
            command.get_subcommands().for_each(|command| names(command, found));
        }
        let mut found = Vec::new();
        names(&Farhand::command(), &mut found);
        let secret =
            found.iter().find(|name| ["token", "password", "key"].contains(&name.as_str()));
        assert_eq!(secret, None);
    }
}
