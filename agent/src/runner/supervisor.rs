//! The supervisor of a command, used if the agent cannot create control groups
//! (agent-protocol 6.5).
//!
//! The supervisor is a fork of the agent, the parent of the command, and a child subreaper: all
//! descendants of the command remain descendants of the supervisor, even after `setsid` or a double
//! fork. So this agent can find all of them. If this agent dies, the next agent can.
//!
//! The supervisor reports the command's exit status to the agent, and exits when it has no
//! descendants. After a normal end of the command, the agent kills the supervisor, and background
//! processes become children of init.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sys::signal::SigSet;
use nix::unistd::{ForkResult, dup2_stdin, fork};
use tokio::net::unix::pipe;

use crate::host::process::Identity;
use crate::host::system;

/// The agent's handle of a supervisor.
#[derive(Debug)]
pub struct Supervisor {
    /// The supervisor's process.
    pub process: Identity,
    /// The pipe on which the supervisor reports the exit status. It is `None` if the previous agent
    /// started the supervisor.
    report: Option<pipe::Receiver>,
    status: OnceLock<ExitStatus>,
}

impl Supervisor {
    /// Creates the handle of `process`, which reports its command's exit status on `report`.
    pub fn new(process: Identity, report: Option<pipe::Receiver>) -> Self {
        Self { process, report, status: OnceLock::new() }
    }

    /// Waits until the command or the supervisor has ended. Returns immediately if the previous
    /// agent started the supervisor.
    pub async fn command_ended(&self) {
        let Some(report) = &self.report else { return };
        let mut status = [0; size_of::<i32>()];
        while report.readable().await.is_ok() {
            match report.try_read(&mut status) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A pipe transfers up to `PIPE_BUF` bytes atomically.
                Ok(read) if read == status.len() => {
                    self.status.get_or_init(|| ExitStatus::from_raw(i32::from_ne_bytes(status)));
                    return;
                }
                _ => return,
            }
        }
    }

    /// The command's exit status, if the supervisor reported it.
    pub fn status(&self) -> Option<ExitStatus> {
        self.status.get().copied()
    }
}

/// Turns the calling process into a supervisor and forks. Returns only in the child, which then
/// executes the command. It runs after fork, so it makes only system calls.
pub fn fork_command(report: &OwnedFd) -> nix::Result<()> {
    system::adopt_orphans()?;
    // No signal except SIGKILL ends the supervisor, and the agent's signal handlers do not run
    // here.
    SigSet::all().thread_set_mask()?;
    // SAFETY: this process has one thread, and parent and child make system calls only.
    match unsafe { fork() }? {
        ForkResult::Child => SigSet::empty().thread_set_mask(),
        ForkResult::Parent { child } => supervise(child.as_raw(), report),
    }
}

/// Reaps all descendants. Writes the command's exit status to `report`.
fn supervise(command: i32, report: &OwnedFd) -> ! {
    // Changes the process name, so that `killall -9 farhand-agent` does not kill the supervisor.
    // The next agent needs the supervisor to find the command's processes.
    let _ = system::name_process(c"farhand-command");
    let _ = dup2_stdin(report.as_fd());
    close_all_but_input();
    loop {
        let mut status = 0;
        // SAFETY: the pointer is valid for writes during the call.
        let ended = unsafe { libc::waitpid(-1, &raw mut status, 0) };
        if ended == command {
            // SAFETY: stdin is open until this process exits.
            let report = unsafe { BorrowedFd::borrow_raw(libc::STDIN_FILENO) };
            // Fails if the agent has died. Then no process needs the status.
            let _ = nix::unistd::write(report, &status.to_ne_bytes());
        } else if ended < 0 && Errno::last() != Errno::EINTR {
            // The process has no more descendants. SAFETY: this call only ends the process.
            unsafe { libc::_exit(0) };
        }
    }
}

/// Closes all files except stdin, among them the command's output pipe, and the agent's sockets and
/// locks.
fn close_all_but_input() {
    if system::close_files(1) {
        return;
    }
    // SAFETY: these system calls take only integers. This process does not use these files again.
    unsafe {
        let most = i32::try_from(libc::sysconf(libc::_SC_OPEN_MAX)).unwrap_or(i32::MAX);
        for fd in 1..most {
            libc::close(fd);
        }
    }
}
