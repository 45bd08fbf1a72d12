//! The command line: actions, flags and their help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::DEFAULT_CONFIG;
use crate::labels;

/// The default of `--drain-seconds`.
pub const DRAIN_SECONDS: u64 = 20;

/// The timeout of a command that names none, in seconds (contract 7.2).
const DEFAULT_TIMEOUT: i64 = 1_800;

/// What `--version` prints: version and commit.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("FARHAND_COMMIT"), ")");

/// Runs commands on this server for a Farhand workspace.
#[derive(Parser)]
#[command(name = "farhand-agent", version = VERSION)]
pub struct CommandLine {
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Subcommand)]
pub enum Action {
    /// Connect to the service and run the commands that it sends, until stopped.
    ///
    /// As root, the agent runs each command as the account that the command names. As another
    /// account, it runs commands as itself only. On SIGTERM or SIGINT it accepts no more commands
    /// and lets running commands end. After a second signal it exits immediately.
    Run(RunArgs),
    /// Register this host as a server of a workspace, and write the agent's config file.
    ///
    /// The registration token comes from --token-file or from the environment variable
    /// FARHAND_REGISTRATION_TOKEN. It cannot be an argument, because every account on this host
    /// could read it.
    Register(RegisterArgs),
    /// Write the agent's config file for a server that exists, or replace the key in the file.
    ///
    /// The key comes from --key-file or from the environment variable FARHAND_AGENT_KEY. Nothing is
    /// written if the service does not accept the key. Other settings in the file stay.
    Configure(ConfigureArgs),
    /// Remove this server from its workspace, and delete the agent's config file and state.
    Unregister(UnregisterArgs),
    /// Install this program as a systemd service, or update the installed one.
    ///
    /// Needs root, except with --own-account. Writes /etc/farhand/policy.toml unless it exists. The
    /// environment variable FARHAND_POLICY chooses it: open (the default, no limits), accounts (no
    /// command as root), or argv (only commands that you list).
    Install(InstallArgs),
    /// Stop the systemd service and remove its unit.
    ///
    /// Needs root, except with --own-account.
    Uninstall(UninstallArgs),
    /// Show whether an agent runs on this host, and whether the service accepts its key.
    ///
    /// Exit codes: 0 both are true, 4 the service refuses the key, 3 no agent runs, 1 the service
    /// is unreachable.
    Status(StatusArgs),
    /// Answer questions about a policy of this host, without the service.
    #[command(subcommand)]
    Policy(PolicyAction),
}

#[derive(Subcommand)]
pub enum PolicyAction {
    /// Say whether a policy file allows a command, and otherwise which rule refuses it.
    ///
    /// Exit codes: 0 the command is allowed, 1 a rule refuses it, 2 the policy or an argument is
    /// invalid. With such a policy, the agent refuses every command.
    Check(PolicyCheckArgs),
}

#[derive(Args)]
pub struct PolicyCheckArgs {
    /// The policy file.
    pub file: PathBuf,
    /// The account that the command runs as.
    #[arg(long, value_name = "ACCOUNT", default_value = "root")]
    pub user: String,
    /// `system` for a command of this host, `internal` for a built-in of the agent, such as ping.
    #[arg(long, default_value = "system", value_parser = ["system", "internal"])]
    pub shell: String,
    /// Check the words as argv, which no shell reads. Without this, they are a line for the shell.
    #[arg(long)]
    pub argv: bool,
    /// The timeout of the command.
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_TIMEOUT,
        value_parser = clap::value_parser!(i64).range(1..))]
    pub timeout: i64,
    /// The file is a draft: its owner and its folders do not matter.
    #[arg(long)]
    pub draft: bool,
    /// The line, or the words of argv.
    #[arg(last = true, required = true, value_name = "LINE")]
    pub words: Vec<String>,
}

#[derive(Args)]
pub struct RunArgs {
    /// The config file: TOML with url, id and key, and optionally max_running, state_dir, policy,
    /// require_policy, syslog and allow_plain_http. A flag below overrides its key in the file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The workspace's address, such as `https://example.farhand.dev`.
    #[arg(long)]
    pub url: Option<String>,
    /// The server's id.
    #[arg(long)]
    pub id: Option<String>,
    /// A file that contains only the server's key.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// The folder where the agent keeps its state across restarts. Default: state_dir of the file,
    /// then the folder that systemd gives, then a folder beside the file, with the file's name and
    /// the ending .state.
    #[arg(long, value_name = "DIRECTORY")]
    pub state_dir: Option<PathBuf>,
    /// A policy file that applies in addition to /etc/farhand/policy.toml. It must exist.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// How long running commands may continue after a signal before the agent stops them.
    #[arg(long, value_name = "SECONDS", default_value_t = DRAIN_SECONDS as u32)]
    pub drain_seconds: u32,
    /// Log debug messages too.
    #[arg(long, short)]
    pub verbose: bool,
    /// Check that the service is reachable and accepts the key, and exit. Takes no commands, so it
    /// does not disturb a running agent.
    #[arg(long)]
    pub check_connection: bool,
}

#[derive(Args)]
pub struct RegisterArgs {
    /// The workspace's address, such as `https://example.farhand.dev`.
    #[arg(long)]
    pub url: String,
    /// The server's name. Default: the host name. If the name is taken, the service adds a number.
    #[arg(long)]
    pub name: Option<String>,
    /// A label of the server, such as env=prod. Can be given more than once. The registration token
    /// must allow the key in its label_keys. With --force, labels in the replaced file are used
    /// too.
    #[arg(long, value_name = "KEY=VALUE", value_parser = labels::read_argument)]
    pub label: Vec<(String, String)>,
    /// A file that contains only the registration token.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Where to write the agent's config file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
    /// Allow http to another host. Anyone on the network path could then run commands as root here.
    #[arg(long)]
    pub allow_plain_http: bool,
    /// Replace an existing config file. Its server stays in its workspace.
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct ConfigureArgs {
    /// The workspace's address, such as `https://example.farhand.dev`.
    #[arg(long)]
    pub url: String,
    /// The server's id.
    #[arg(long)]
    pub id: String,
    /// A file that contains only the server's key.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Where to write the agent's config file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
    /// Allow http to another host. Anyone on the network path could then run commands as root here.
    #[arg(long)]
    pub allow_plain_http: bool,
    /// Replace the config file of another server.
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct UnregisterArgs {
    /// The agent's config file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
    /// Delete the config file and the state even if the service does not know the server and its
    /// key.
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct InstallArgs {
    /// The agent's config file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
    /// The account that the agent runs as, in a sandbox. It becomes the owner of the config file.
    /// Default: root.
    #[arg(long, value_name = "ACCOUNT")]
    pub user: Option<String>,
    /// Write below this folder, to build a host image. Nothing is started or checked.
    #[arg(long, value_name = "DIRECTORY")]
    pub prefix: Option<PathBuf>,
    /// Install for the account that runs this command only: the program in ~/.local/bin, and a unit
    /// of the account's own systemd. Name the config file with --config.
    #[arg(long, conflicts_with_all = ["user", "prefix"])]
    pub own_account: bool,
    /// Do not start the agent now.
    #[arg(long)]
    pub no_start: bool,
}

#[derive(Args)]
pub struct UninstallArgs {
    /// The folder that `install --prefix` wrote below.
    #[arg(long, value_name = "DIRECTORY")]
    pub prefix: Option<PathBuf>,
    /// Remove what `install --own-account` installed.
    #[arg(long, conflicts_with = "prefix")]
    pub own_account: bool,
}

#[derive(Args)]
pub struct StatusArgs {
    /// The agent's config file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
    /// The folder of the agent's state, if the agent was started with this flag.
    #[arg(long, value_name = "DIRECTORY")]
    pub state_dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
