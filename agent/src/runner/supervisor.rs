//! The supervisor of a command, used if the agent cannot create control groups
//! (agent-protocol 6.5).
//!
//! It is a fork of the agent, the parent of the command, and a child subreaper: all descendants of
//! the command stay below it, even after `setsid` or a double fork. So this agent finds them, and
//! so does the next agent if this one dies.
//!
//! The supervisor reports the command's exit status to the agent, and exits when it has no
//! descendants. After a normal end the agent kills it, and background processes become children of
//! init.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sys::prctl::{set_child_subreaper, set_name};
use nix::sys::signal::SigSet;
use nix::unistd::{ForkResult, dup2_stdin, fork};
use tokio::net::unix::pipe;

use crate::host::process::Identity;

/// The agent's handle of a supervisor.
#[derive(Debug)]
pub struct Supervisor {
    /// Its process.
    pub process: Identity,
    /// The pipe on which it reports the exit status. None if it belonged to the previous agent.
    report: Option<pipe::Receiver>,
    status: OnceLock<ExitStatus>,
}

impl Supervisor {
    /// The handle of `process`, which reports its command's exit status on `report`.
    pub fn new(process: Identity, report: Option<pipe::Receiver>) -> Self {
        Self { process, report, status: OnceLock::new() }
    }

    /// Waits until the command or the supervisor has ended.
    pub async fn command_ended(&self) {
        let Some(report) = &self.report else { return };
        let mut status = [0; size_of::<i32>()];
        while report.readable().await.is_ok() {
            match report.try_read(&mut status) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A pipe transfers so few bytes atomically.
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

/// Turns the calling process into a supervisor and forks. Returns in the child, which then executes
/// the command. Runs after fork, so it makes system calls only.
pub fn fork_command(report: &OwnedFd) -> nix::Result<()> {
    set_child_subreaper(true)?;
    // Only SIGKILL ends a supervisor, and none of the agent's signal handlers runs.
    SigSet::all().thread_set_mask()?;
    // SAFETY: this process has one thread, and parent and child make system calls only.
    match unsafe { fork() }? {
        ForkResult::Child => SigSet::empty().thread_set_mask(),
        ForkResult::Parent { child } => supervise(child.as_raw(), report),
    }
}

/// Reaps all descendants. Writes the command's exit status to `report`.
fn supervise(command: i32, report: &OwnedFd) -> ! {
    // Renamed, so that `killall -9 farhand-agent` spares it: the next agent needs it to find the
    // command's processes.
    let _ = set_name(c"farhand-command");
    let _ = dup2_stdin(report.as_fd());
    close_all_but_input();
    loop {
        let mut status = 0;
        // SAFETY: a system call that writes one number, into a variable.
        let ended = unsafe { libc::waitpid(-1, &raw mut status, 0) };
        if ended == command {
            // SAFETY: stdin is open until this process exits.
            let report = unsafe { BorrowedFd::borrow_raw(libc::STDIN_FILENO) };
            // Fails if the agent has died. Then the status is not needed.
            let _ = nix::unistd::write(report, &status.to_ne_bytes());
        } else if ended < 0 && Errno::last() != Errno::EINTR {
            // No descendant is left.
            // SAFETY: only ends the process.
            unsafe { libc::_exit(0) };
        }
    }
}

/// Closes inherited files: the command's output pipe, and the agent's sockets and locks.
fn close_all_but_input() {
    // SAFETY: system calls on numbers. This process uses none of these files again.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) == 0 {
            return;
        }
        // Linux before 5.9 lacks `close_range`.
        let most = i32::try_from(libc::sysconf(libc::_SC_OPEN_MAX)).unwrap_or(i32::MAX);
        for fd in 1..most {
            libc::close(fd);
        }
    }
}
