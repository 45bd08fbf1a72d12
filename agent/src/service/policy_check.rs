//! `policy check`: whether a policy file allows a command, without an agent and a service.

use std::path::Path;

use farhand_domain::agent::wire::AgentCommand;
use nix::unistd::{Gid, Uid};

use crate::host::account::{self, AgentAccount};
use crate::runner::builtins::BUILTIN_SHELL;
use crate::runner::policy::{Policy, Trust};
use crate::service::install::Failure;

/// Checks a command against the policy in `file`, as an agent that runs as root does.
///
/// # Errors
/// `Failed`: the rule that refuses the command. `Misuse`: an agent would refuse every command with
/// this policy, or the host does not have the account.
pub fn check(file: &Path, trust: Trust, order: &AgentCommand) -> Result<(), Failure> {
    let policy = Policy::read_one(file, trust).map_err(Failure::Misuse)?;
    let checked = if order.shell == BUILTIN_SHELL {
        policy.check_builtin(&order.line)
    } else {
        let root = AgentAccount { uid: Uid::from_raw(0), gid: Gid::from_raw(0) };
        let account = account::resolve(&order.user, "", root).map_err(Failure::Misuse)?;
        policy.check(order, account.uid)
    };
    checked.map_err(Failure::Failed)
}
