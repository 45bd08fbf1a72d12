//! Holds a new process between fork and exec until the journal has its identity.

use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;

use nix::errno::Errno;
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use uuid::Uuid;

use crate::host::process::Identity;
use crate::host::system;
use crate::journal::writer::JournalWriter;

/// The agent's end of the socket on which a new process waits between fork and exec. If the agent
/// dies, the waiting process dies too.
pub struct ExecGate(UnixStream);

impl ExecGate {
    /// Returns the child's end of the socket, and the gate. Returns `None` if the agent has no
    /// journal.
    pub fn new(journal: &JournalWriter) -> io::Result<Option<(OwnedFd, Self)>> {
        if !journal.is_enabled() {
            return Ok(None);
        }
        let (near, far) = Socket::pair()?;
        near.set_nonblocking(true)?;
        Ok(Some((far.into(), Self(UnixStream::from_std(near)?))))
    }

    /// Waits for the process, writes its identity to the journal, and lets it continue. After that,
    /// this future never completes.
    pub async fn open(mut self, id: Uuid, journal: &JournalWriter) {
        let mut message = [0; size_of::<i32>() + 1];
        if self.0.read_exact(&mut message).await.is_err() {
            // The process exited before it reached the gate.
            return;
        }
        let [number @ .., is_supervisor] = message;
        let process = Identity::read(i32::from_ne_bytes(number));
        let process = process.map(|process| process.supervising(is_supervisor != 0));
        journal.record_started(id, process).wait().await;
        // Fails if the process has exited, which is not an error here.
        let _ = self.0.write_all(&[1]).await;
        // Keeps the socket open until the caller drops this future, because the process exits if
        // the socket closes.
        pending().await
    }
}

/// The process's side of [`ExecGate::open`]: sends the process number to the agent and waits for
/// permission to execute. It runs after fork, so it makes only system calls.
pub fn wait_at_gate(gate: &OwnedFd, agent: Pid, is_supervisor: bool) -> nix::Result<()> {
    system::die_with_parent(true)?;
    // The agent may have died before this took effect.
    if nix::unistd::getppid() != agent {
        return Err(Errno::ESRCH);
    }
    let [a, b, c, d] = nix::unistd::getpid().as_raw().to_ne_bytes();
    nix::unistd::write(gate.as_fd(), &[a, b, c, d, u8::from(is_supervisor)])?;
    let mut go = [0];
    loop {
        match nix::unistd::read(gate.as_fd(), &mut go) {
            Err(Errno::EINTR) => {}
            Ok(1) => return system::die_with_parent(false),
            Ok(_) => return Err(Errno::ESRCH),
            Err(error) => return Err(error),
        }
    }
}
