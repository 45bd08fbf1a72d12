//! The command line: actions, flags and their help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::CONFIG;

/// How long commands have to end by themselves unless something else is said, in seconds.
pub const DRAIN_SECONDS: u64 = 20;

/// Runs commands on this server for a Farhand workspace.
#[derive(Parser)]
#[command(name = "farhand-agent", version)]
pub struct CommandLine {
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Subcommand)]
pub enum Action {
    /// Connect to the service and run the commands that it sends, until stopped.
    ///
    /// As root the agent runs commands as any account that they name. As another account it runs
    /// them as itself only. SIGTERM and SIGINT drain: no more commands are taken, and those that
    /// run may end. A second one exits at once.
    Run(RunArgs),
    /// Make this host a server of a workspace, with a registration token, and write the agent's
    /// file.
    ///
    /// The token is read from --token-file or from the environment variable
    /// FARHAND_REGISTRATION_TOKEN. It is no argument, as everyone on this host could see it.
    Register(RegisterArgs),
    /// Take this server out of its workspace, and remove the agent's file and state.
    Unregister(UnregisterArgs),
    /// Install this program as a service of systemd, or bring the one that is installed up to date.
    /// Needs root.
    Install(InstallArgs),
    /// Stop the service of systemd and remove its unit. Needs root.
    Uninstall(UninstallArgs),
    /// Tell whether an agent runs on this host, and whether the service takes its key.
    ///
    /// Exit code 0: both. 4: the service refuses the key. 3: no agent runs. 1: the service is not
    /// reached.
    Status(StatusArgs),
}

#[derive(Args)]
pub struct RunArgs {
    /// A TOML file with url, id and key, and optionally max_running, state_dir, policy, syslog and
    /// allow_plain_http. Each flag below is used in place of its key in the file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The workspace's address, such as https://example.farhand.dev.
    #[arg(long)]
    pub url: Option<String>,
    /// The server's id.
    #[arg(long)]
    pub id: Option<String>,
    /// A file that holds the server's key and nothing else.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Where the agent keeps what it must not forget over a restart. Without it: state_dir of the
    /// file, then the folder that systemd gives, then one beside the file, named as that and ending
    /// in .state.
    #[arg(long, value_name = "DIRECTORY")]
    pub state_dir: Option<PathBuf>,
    /// The host's policy, in place of /etc/farhand/policy.toml. A file that is named must exist.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// How long running commands may go on after a signal, before they are stopped.
    #[arg(long, value_name = "SECONDS", default_value_t = DRAIN_SECONDS as u32)]
    pub drain_seconds: u32,
    /// Log more.
    #[arg(long, short)]
    pub verbose: bool,
}

#[derive(Args)]
pub struct RegisterArgs {
    /// The workspace's address, such as https://example.farhand.dev.
    #[arg(long)]
    pub url: String,
    /// The server's name. Without it: the host's. Where it is taken, the service adds a number.
    #[arg(long)]
    pub name: Option<String>,
    /// A file that holds the registration token and nothing else.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The agent's file, which is written.
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    pub config: PathBuf,
    /// Use http to a host other than this one: anybody on the way is then root here.
    #[arg(long)]
    pub allow_plain_http: bool,
    /// Replace a file that is there. The server that it is for stays in its workspace.
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct UnregisterArgs {
    /// The agent's file.
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    pub config: PathBuf,
    /// Remove the file also where the service does not know the server and its key.
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct InstallArgs {
    /// The agent's file.
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    pub config: PathBuf,
    /// The account that the agent runs as, in a sandbox. The file is given to it. Without it: root.
    #[arg(long, value_name = "ACCOUNT")]
    pub user: Option<String>,
    /// Write below this folder, for an image of a host; nothing is started or checked.
    #[arg(long, value_name = "DIRECTORY")]
    pub prefix: Option<PathBuf>,
    /// Do not start the agent now.
    #[arg(long)]
    pub no_start: bool,
}

#[derive(Args)]
pub struct UninstallArgs {
    /// The folder that was written below.
    #[arg(long, value_name = "DIRECTORY")]
    pub prefix: Option<PathBuf>,
}

#[derive(Args)]
pub struct StatusArgs {
    /// The agent's file.
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    pub config: PathBuf,
    /// Where the agent keeps its state, if it was told with this flag.
    #[arg(long, value_name = "DIRECTORY")]
    pub state_dir: Option<PathBuf>,
    /// Tell it as JSON.
    #[arg(long)]
    pub json: bool,
}
