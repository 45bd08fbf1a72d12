//! The supervisor of a command, on a host where the agent cannot create control groups (agent-protocol 7).
//!
//! It is a fork of the agent between the agent and the command, and the kernel's subreaper: whatever the command starts
//! stays below it, also after `setsid` or a double fork. There this agent finds it, and the next one if this one dies.
//!
//! It reports to the agent how the command ended, and exits when nothing is left below it. After a normal end the agent kills
//! the supervisor, and what is left goes to init.

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

/// A supervisor, as the agent sees it.
#[derive(Debug)]
pub struct Supervisor {
    /// Its process.
    pub process: Identity,
    /// Where it reports how the command ended; none if it works for an agent that died.
    report: Option<pipe::Receiver>,
    status: OnceLock<ExitStatus>,
}

impl Supervisor {
    /// Of a process, which reports the end of its command in `report`.
    pub fn new(process: Identity, report: Option<pipe::Receiver>) -> Self {
        Self { process, report, status: OnceLock::new() }
    }

    /// Waits until the command has ended, or the supervisor.
    pub async fn command_ended(&self) {
        let Some(report) = &self.report else { return };
        let mut status = [0; size_of::<i32>()];
        while report.readable().await.is_ok() {
            match report.try_read(&mut status) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // So few bytes are written whole, or not at all.
                Ok(read) if read == status.len() => {
                    self.status.get_or_init(|| ExitStatus::from_raw(i32::from_ne_bytes(status)));
                    return;
                }
                _ => return,
            }
        }
    }

    /// How the command ended, if the supervisor could report it.
    pub fn status(&self) -> Option<ExitStatus> {
        self.status.get().copied()
    }
}

/// Makes this process, a new one that is to execute a command, the supervisor of that command. Returns in another one,
/// below it, which is to execute the command now. Makes system calls only.
pub fn fork_command(report: &OwnedFd) -> nix::Result<()> {
    set_child_subreaper(true)?;
    // Nothing but SIGKILL ends a supervisor, and nothing of the agent's is done for a signal.
    SigSet::all().thread_set_mask()?;
    // SAFETY: this process has one thread, and both go on with system calls only.
    match unsafe { fork() }? {
        ForkResult::Child => SigSet::empty().thread_set_mask(),
        ForkResult::Parent { child } => supervise(child.as_raw(), report),
    }
}

/// Waits for all that is below this process; writes the end of the command to `report`.
fn supervise(command: i32, report: &OwnedFd) -> ! {
    // Else `killall -9 farhand-agent` would free what the next agent is to end.
    let _ = set_name(c"farhand-command");
    let _ = dup2_stdin(report.as_fd());
    close_all_but_input();
    loop {
        let mut status = 0;
        // SAFETY: a system call that writes one number, into a variable.
        let ended = unsafe { libc::waitpid(-1, &raw mut status, 0) };
        if ended == command {
            // SAFETY: it is open until this process exits.
            let report = unsafe { BorrowedFd::borrow_raw(libc::STDIN_FILENO) };
            // An agent that died gets no report.
            let _ = nix::unistd::write(report, &status.to_ne_bytes());
        } else if ended < 0 && Errno::last() != Errno::EINTR {
            // Nothing is left.
            // SAFETY: ends the process, and does nothing else.
            unsafe { libc::_exit(0) };
        }
    }
}

/// Closes what this process inherited open: the command's output, and what the agent waits on or has locked.
fn close_all_but_input() {
    // SAFETY: system calls on numbers; nothing of this process uses any of these files again.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) == 0 {
            return;
        }
        // Before Linux 5.9.
        let most = i32::try_from(libc::sysconf(libc::_SC_OPEN_MAX)).unwrap_or(i32::MAX);
        for fd in 1..most {
            libc::close(fd);
        }
    }
}
