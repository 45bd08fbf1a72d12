//! Child processes of a test. Each has its own process group, which is killed when the test ends.

use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

/// A child process and its process group. Dropping it kills the whole group.
pub struct Process {
    child: Child,
    group: Pid,
}

impl Process {
    /// Starts a program as the leader of a new process group.
    pub fn spawn(command: &mut Command) -> Self {
        let child = command.process_group(0).kill_on_drop(true).spawn().unwrap();
        let group = Pid::from_raw(child.id().unwrap().try_into().unwrap());
        Self { child, group }
    }

    /// The number of the process.
    pub fn id(&self) -> i32 {
        self.group.as_raw()
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends a signal to the process alone, not to its group.
    pub fn signal(&self, signal: Signal) {
        kill(self.group, signal).unwrap();
    }

    /// Waits for the process to exit.
    ///
    /// # Panics
    /// After `within`.
    pub async fn wait_for_exit(&mut self, within: Duration) -> ExitStatus {
        tokio::time::timeout(within, self.child.wait())
            .await
            .expect("the process did not end")
            .unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The group may have ended already.
        killpg(self.group, Signal::SIGKILL).ok();
    }
}
