//! Kills processes that the previous agent left running.

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::host::process::Identity;
use crate::runner::cgroup::Cgroup;
use crate::runner::group::{Containment, Groups};
use crate::runner::supervisor::Supervisor;

/// The maximum number of attempts to kill a leftover control group.
const KILL_ATTEMPTS: usize = 100;
/// The pause between two of these attempts.
const KILL_PAUSE: Duration = Duration::from_millis(20);

/// Kills the processes of a command of the previous agent. Returns false if none of them runs, or
/// if the agent cannot identify them.
pub async fn kill_leftover(
    process: Option<Identity>,
    cgroup: Option<Cgroup>,
    groups: &Groups,
) -> bool {
    let Some(process) = process.filter(Identity::exists) else {
        // The process has exited or is unknown. Other processes of the command may still be in its
        // control group, which is named after the command.
        let Some(cgroup) = cgroup.filter(Cgroup::runs) else {
            return false;
        };
        for _ in 0..KILL_ATTEMPTS {
            cgroup.signal(Signal::SIGKILL, None);
            tokio::time::sleep(KILL_PAUSE).await;
            if !cgroup.runs() {
                break;
            }
        }
        return true;
    };
    let id = Pid::from_raw(process.pid);
    let containment = match cgroup {
        _ if process.is_supervisor => {
            Containment::Supervisor(Arc::new(Supervisor::new(process.clone(), None)))
        }
        Some(cgroup) => Containment::Cgroup(Arc::new(cgroup)),
        None => Containment::Nothing,
    };
    groups.add(id, containment).end().await;
    true
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tokio::sync::mpsc;

    use super::*;
    use crate::journal::writer::JournalWriter;
    use crate::runner::execute::execute;
    use crate::runner::testing::*;

    #[tokio::test]
    async fn the_next_agent_kills_descendants_of_a_supervisor() {
        let directory = tempfile::tempdir().unwrap();
        let pids = directory.path().join("pids");
        let left = format!(
            "setsid setsid -f sh -c 'echo $$ > {}; trap \"\" TERM; sleep 60; sleep 60'; sleep 60",
            pids.display()
        );
        let (order, groups) = (order(&left), Groups::default());
        let (queue, _reports) = mpsc::channel(2);
        let (never, journal) = (never(), JournalWriter::default());
        let begun = async {
            eventually(|| !read(&pids).is_empty() && !groups.ids().is_empty()).await;
            groups.ids()[0]
        };
        // Drops `execute` before the command ends, which simulates the death of the agent.
        let id = tokio::select! {
            _ = execute(&order, &SUPERVISED, &groups, &never, &journal, &queue) => panic!("the command ended"),
            id = begun => id,
        };
        let process = Identity::read(id.as_raw()).unwrap().supervising(true);
        assert!(kill_leftover(Some(process), None, &groups).await);
        assert!(!is_running(&read(&pids)) && !is_running(&id.to_string()));
    }
}
