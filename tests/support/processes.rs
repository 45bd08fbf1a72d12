//! Processes that a test starts: each in a group of its own, which ends with the test.

use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

/// A process and all that it starts.
pub struct Process {
    child: Child,
    group: Pid,
}

impl Process {
    /// Starts a program in a process group of its own.
    pub fn spawn(command: &mut Command) -> Self {
        let child = command.process_group(0).kill_on_drop(true).spawn().unwrap();
        let group = Pid::from_raw(child.id().unwrap().try_into().unwrap());
        Self { child, group }
    }

    /// The process itself.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends a signal to the process alone, not to its group.
    pub fn signal(&self, signal: Signal) {
        kill(self.group, signal).unwrap();
    }

    /// Waits for its end.
    pub async fn ended(&mut self, within: Duration) -> ExitStatus {
        tokio::time::timeout(within, self.child.wait())
            .await
            .expect("the process did not end")
            .unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The group may be gone already.
        killpg(self.group, Signal::SIGKILL).ok();
    }
}
