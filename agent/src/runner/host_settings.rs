//! Decides whether this host accepts a command: finds the account, checks the policy, and records
//! the decision in the system log.

use farhand_domain::agent::wire::AgentCommand;

use crate::host::account::{self, Account, AgentAccount};
use crate::host::system_log::SystemLog;
use crate::runner::cgroup::Cgroups;
use crate::runner::policy::PolicyFile;

/// This host's settings for commands.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// The account that the agent runs as.
    pub own: AgentAccount,
    /// The host's policy.
    pub policy: PolicyFile,
    /// The host's system log.
    pub system_log: SystemLog,
    /// Creates the commands' control groups.
    pub cgroups: Cgroups,
}

/// What a command that this host accepts may do.
#[derive(Debug)]
pub struct Admitted {
    /// The account that the command runs as.
    pub account: Account,
    /// Whether its programs get no more permissions than the account has.
    pub no_new_privs: bool,
}

impl HostSettings {
    /// Looks up the account of a command, checks the policy, and records the command or its refusal
    /// in the host's system log. Blocks.
    ///
    /// # Errors
    /// The reason why this host refuses the command, in one sentence.
    pub fn admit(&self, order: &AgentCommand) -> Result<Admitted, String> {
        let admitted = self.policy.read().and_then(|policy| {
            let account = account::resolve(&order.user, &order.group, self.own)?;
            policy.check(order, account.uid)?;
            Ok(Admitted { account, no_new_privs: policy.forbids_new_privileges() })
        });
        self.system_log.write(order, admitted.as_ref().err().map(String::as_str));
        admitted
    }

    /// Does the same as [`admit`](Self::admit) for a built-in, which has no account. Blocks.
    ///
    /// # Errors
    /// The reason why this host refuses the built-in, in one sentence.
    pub fn admit_builtin(&self, order: &AgentCommand) -> Result<(), String> {
        let admitted = self.policy.read().and_then(|policy| policy.check_builtin(&order.line));
        self.system_log.write(order, admitted.as_ref().err().map(String::as_str));
        admitted
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use nix::unistd::geteuid;
    use tokio::sync::mpsc;
    use tokio::time::sleep;

    use super::*;
    use crate::journal::writer::JournalWriter;
    use crate::runner::execute::execute;
    use crate::runner::group::Groups;
    use crate::runner::testing::*;

    #[tokio::test]
    async fn a_policy_forbids_new_privileges() {
        if !geteuid().is_root() {
            eprintln!("not tested: only root can own a policy");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        for (rules, expected) in [("", "0\n"), ("no_new_privs = true", "1\n")] {
            std::fs::write(&path, rules).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
            for host in hosts() {
                let policy = PolicyFile::new(Some(path.clone()), true);
                let host = HostSettings { policy, ..host.clone() };
                for user in ["root", "nobody"] {
                    let line = "sed -n 's/^NoNewPrivs:[^0-9]*//p' /proc/self/status";
                    let order = AgentCommand { user: user.into(), ..order(line) };
                    let (fin, _) = run_at(&host, &order, &never()).await;
                    assert_eq!(fin.result.as_deref(), Some(expected), "{user}: {fin:?}");
                }
            }
        }
    }

    #[tokio::test]
    async fn a_refused_command_is_recorded_and_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let (path, socket) = (folder.path().join("policy.toml"), folder.path().join("log"));
        let log = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
        log.set_read_timeout(Some(PATIENCE)).unwrap();
        let host = HostSettings {
            policy: PolicyFile::new(Some(path.clone()), true),
            system_log: SystemLog::new(socket),
            ..HOST.clone()
        };
        let run = async |order: AgentCommand| {
            let (queue, _reports) = mpsc::channel(2);
            let fin = execute(
                &order,
                &host,
                &Groups::default(),
                &never(),
                &JournalWriter::default(),
                &queue,
            )
            .await;
            let mut bytes = [0; 2_048];
            let length = log.recv(&mut bytes).unwrap();
            (fin, String::from_utf8_lossy(&bytes[..length]).into_owned())
        };
        let ran = folder.path().join("ran");
        let line = format!("touch {}", ran.display());
        std::fs::write(&path, format!("deny_accounts = [\"{}\"]", own_name())).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let (fin, record) = run(order(&line)).await;
        let reason = fin.reason.unwrap();
        // A policy that root does not own refuses everything.
        let rule = if geteuid().is_root() { "(deny_accounts)" } else { "its owner is not root" };
        assert!(
            (fin.exit_code, fin.result.as_deref()) == (Some(126), Some(""))
                && reason.contains(rule),
            "{reason}"
        );
        assert!(
            record.contains("refused: ") && record.contains(rule) && record.contains(&line),
            "{record}"
        );
        assert!(!ran.exists());
        if !geteuid().is_root() {
            return;
        }
        std::fs::write(&path, "").unwrap();
        let (fin, record) = run(order(&line)).await;
        assert!(fin.success && ran.exists() && !record.contains("refused"), "{record}");
        // While the agent is disabled, no command starts. Running commands continue.
        let go = folder.path().join("go");
        let running = run(order(&format!("until [ -e {} ]; do sleep 0.02; done", go.display())));
        let disable = async {
            sleep(Duration::from_millis(200)).await;
            std::fs::write(folder.path().join("disabled"), "").unwrap();
            let refused = host.admit(&order("true")).unwrap_err();
            std::fs::write(&go, "").unwrap();
            refused
        };
        let ((fin, _), refused) = tokio::join!(running, disable);
        assert!(fin.success && refused.contains("accepts no commands"), "{refused}");
    }
}
