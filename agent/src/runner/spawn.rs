//! Forks and executes a command: session, control group, account, directory and files.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::sync::Arc;

use nix::errno::Errno;
use nix::unistd::Pid;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

use crate::host::account::Account;
use crate::host::process::{self, Identity};
use crate::host::system;
use crate::runner::cgroup::{self, Cgroup};
use crate::runner::gate::wait_at_gate;
use crate::runner::group::Containment;
use crate::runner::script::ScriptFile;
use crate::runner::supervisor::{self, Supervisor};

/// Added to the errno if a process cannot enter its working directory. A forked process can report
/// only a number, and all errno values are smaller than this offset.
pub const CANNOT_ENTER: i32 = 10_000;

/// How a process starts.
pub struct SpawnOptions {
    /// The process's stdin. If `None`, stdin is `/dev/null`.
    pub input: Option<File>,
    /// The process's control group. If `None`, the process gets a supervisor, or neither if `/proc`
    /// is not mounted.
    pub cgroup: Option<Cgroup>,
    /// The working directory. If `None`, it is the account's home, or `/` if the home cannot be
    /// entered.
    pub directory: Option<CString>,
    /// The child's end of the gate (`gate.rs`), where the child waits before exec. If `None`, the
    /// child does not wait.
    pub gate: Option<OwnedFd>,
    /// Whether no program of the command gets more permissions than its account has.
    pub no_new_privs: bool,
}

/// A command whose process has started.
pub struct SpawnedCommand {
    pub child: Child,
    pub output: pipe::Receiver,
    /// How the agent finds the process's descendants.
    pub containment: Containment,
    /// The temporary file of the command's script. Dropping it deletes the file.
    pub script: Option<ScriptFile>,
}

/// Starts a process in its own session, as `account`, with stdout and stderr in one pipe.
pub fn spawn(
    mut command: Command,
    account: Account,
    options: SpawnOptions,
) -> io::Result<SpawnedCommand> {
    let SpawnOptions { input, cgroup, directory, gate, no_new_privs } = options;
    let procs = cgroup.as_ref().map(Cgroup::open_procs).transpose()?;
    // Without `/proc` the agent could not find a supervisor's descendants.
    let supervision =
        (cgroup.is_none() && process::is_proc_mounted()).then(io::pipe).transpose()?;
    let (report, report_writer) =
        supervision.map(|(reader, writer)| (reader, OwnedFd::from(writer))).unzip();
    let report =
        report.map(|reader| pipe::Receiver::from_owned_fd(OwnedFd::from(reader))).transpose()?;
    // One pipe keeps the order of stdout and stderr.
    let (reader, writer) = io::pipe()?;
    let output = pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?;
    command
        .stdin(input.map_or_else(Stdio::null, Stdio::from))
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let home = CString::new(account.home.as_os_str().as_bytes()).unwrap_or_default();
    let agent = nix::unistd::getpid();
    let become_account = move || {
        nix::unistd::setsid()?;
        if let Some(report_writer) = &report_writer {
            if let Some(gate) = &gate {
                wait_at_gate(gate, agent, true)?;
            }
            supervisor::fork_command(report_writer)?;
            nix::unistd::setsid()?;
        }
        // Enters the group before the account changes, because the new account may have no
        // permission for control groups.
        if let Some(procs) = &procs {
            cgroup::enter(procs)?;
        }
        if let Some(child_ids) = &account.child_ids {
            // Changes the user last, because an ordinary user may not change groups.
            system::setgroups(&child_ids.groups)?;
            system::take_ids(child_ids.uid, child_ids.gid)?;
        }
        if no_new_privs {
            system::forbid_new_privileges()?;
        }
        // Marks files that the agent inherited as close-on-exec. Files that the agent opened have
        // this flag already.
        system::close_files_on_exec(3);
        // Enters the directory after the account changes, so that the account's permissions apply.
        match &directory {
            Some(directory) => nix::unistd::chdir(directory.as_c_str())
                .map_err(|error| io::Error::from_raw_os_error(CANNOT_ENTER + error as i32))?,
            None if nix::unistd::chdir(home.as_c_str()).is_err() => nix::unistd::chdir(c"/")?,
            None => {}
        }
        // Waits last, because a change of the user clears the parent-death signal.
        if let (Some(gate), None) = (&gate, &report_writer) {
            wait_at_gate(gate, agent, false)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec, the closure makes only system calls. It does not allocate,
    // because its data was prepared before the fork, and an errno becomes an error without
    // allocation.
    unsafe { command.pre_exec(become_account) };
    // When this function returns, it drops `command`. This closes the agent's write ends of the
    // pipe, so the pipe ends when the last process closes its end.
    let child = command.spawn()?;
    let containment = match (cgroup, report) {
        (Some(cgroup), _) => Containment::Cgroup(Arc::new(cgroup)),
        (None, Some(report)) => {
            let process =
                child_id(&child).and_then(|id| Identity::read(id.as_raw())).ok_or(Errno::ESRCH)?;
            Containment::Supervisor(Arc::new(Supervisor::new(process, Some(report))))
        }
        (None, None) => Containment::Nothing,
    };
    Ok(SpawnedCommand { child, output, containment, script: None })
}

pub fn child_id(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use farhand_domain::agent::wire::AgentCommand;
    use nix::unistd::{User, geteuid};

    use crate::runner::testing::*;

    #[tokio::test]
    async fn a_command_runs_in_the_requested_directory() {
        let within = |cwd: &str| AgentCommand { cwd: Some(cwd.to_owned()), ..order("pwd") };
        assert_eq!(run(&within("/usr")).await.0.result.unwrap(), "/usr\n");
        for missing in ["/no/such/directory", "/etc/passwd", "/a\0b"] {
            let (code, why) = refusal(&within(missing)).await;
            assert!(code == 126 && why.contains("directory"), "{missing}: {code} {why}");
        }
        if geteuid().is_root() {
            let closed = tempfile::tempdir().unwrap();
            std::fs::set_permissions(closed.path(), Permissions::from_mode(0o700)).unwrap();
            let order =
                AgentCommand { user: "nobody".into(), ..within(closed.path().to_str().unwrap()) };
            let (code, why) = refusal(&order).await;
            assert!(
                code == 126 && why.contains("cannot be entered as nobody: Permission denied"),
                "{code} {why}"
            );
        }
    }

    #[tokio::test]
    async fn stdin_is_empty_by_default() {
        assert_eq!(result("cat; echo done").await, (0, "done\n".to_owned()));
    }

    #[tokio::test]
    async fn a_command_has_its_own_session_and_no_open_files() {
        // An open file like one that the agent has inherited.
        let file = std::fs::File::open("/etc/passwd").unwrap();
        nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))
            .unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let line =
            format!("[ -e /proc/$$/fd/0 ] && echo input; [ -e /proc/$$/fd/{fd} ] || echo closed");
        for host in hosts() {
            assert_eq!(
                run_at(host, &order(&line), &never()).await.0.result.unwrap(),
                "input\nclosed\n"
            );
            let stat = run_at(host, &order("cat /proc/$$/stat"), &never()).await.0.result.unwrap();
            let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            // State, parent, group, session.
            let pid = stat.split(' ').next().unwrap();
            assert_eq!((fields[2], fields[3]), (pid, pid));
            // The command blocks no signals. Its supervisor blocks all of them.
            let blocked = run_at(host, &order("grep ^SigBlk /proc/self/status"), &never())
                .await
                .0
                .result
                .unwrap();
            assert_eq!(blocked, "SigBlk:\t0000000000000000\n");
        }
        // A supervisor has no inherited files either, except the pipe on which it reports to the
        // agent.
        let line = "ls -l /proc/$PPID/fd | grep -c -- '->'; cat /proc/$PPID/comm";
        let supervisor = run_at(&SUPERVISED, &order(line), &never()).await.0.result.unwrap();
        assert_eq!(supervisor, "1\nfarhand-command\n");
    }

    #[tokio::test]
    async fn a_command_starts_in_the_home_directory() {
        let user = User::from_uid(geteuid()).unwrap().unwrap();
        let home = if user.dir.is_dir() { user.dir } else { "/".into() };
        assert_eq!(result("pwd -P").await.1.trim(), home.canonicalize().unwrap().to_str().unwrap());
    }

    #[tokio::test]
    async fn an_agent_that_runs_as_root_switches_to_the_account() {
        if !geteuid().is_root() {
            let (code, why) = refusal(&AgentCommand { user: "root".into(), ..order("id") }).await;
            assert!(code == 126 && why.contains("cannot run a command as root"), "{code} {why}");
            return;
        }
        let nobody = User::from_name("nobody").unwrap().unwrap();
        let line = "id -un; id -u; id -g; id -G; pwd; grep -E '^(Uid|Gid|CapEff)' /proc/self/status | tr -s '\\t' ' '";
        let home = if nobody.dir.is_dir() { nobody.dir.clone() } else { "/".into() };
        let (uid, gid) = (nobody.uid, nobody.gid);
        let expected = format!(
            "nobody\n{uid}\n{gid}\n{gid}\n{}\nUid: {uid} {uid} {uid} {uid}\nGid: {gid} {gid} {gid} {gid}\nCapEff: 0000000000000000\n",
            home.display()
        );
        for host in hosts() {
            let order = AgentCommand { user: "nobody".into(), ..order(line) };
            assert_eq!(run_at(host, &order, &never()).await.0.result.unwrap(), expected);
        }
        let (fin, _) =
            run(&AgentCommand { user: "nobody".into(), ..order("cat /etc/shadow") }).await;
        assert!(!fin.success);
    }
}
