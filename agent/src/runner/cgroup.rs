//! Creates a control group (cgroup v2) for each command, if the host allows it (agent-protocol
//! 6.5).
//!
//! All descendants of a command are in its group, even if they leave its session. So a kill ends
//! all of them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid};
use uuid::Uuid;

const NAME_PREFIX: &str = "farhand-";

/// An empty group that is older than this is treated as unused.
const STALE_AGE: Duration = Duration::from_secs(60 * 60);

/// The parent folder of the commands' groups, or `None` if the agent cannot create groups.
#[derive(Clone, Default, Debug)]
pub struct Cgroups(Option<PathBuf>);

/// The group of one command. Dropping a `Cgroup` removes the group if it is empty.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroups {
    /// Finds the agent's own group, and checks that the agent can create groups below it.
    pub fn find() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own_group = own_group(&mounts, &own);
        let can_create = |own_group: &PathBuf| {
            // Dropping the probe removes its group.
            let probe = Cgroup {
                path: own_group.join(format!("{NAME_PREFIX}probe-{}", std::process::id())),
            };
            fs::create_dir(&probe.path).and_then(|()| probe.open_procs()).is_ok()
        };
        let found = Self(own_group.filter(can_create));
        found.sweep();
        found
    }

    /// Removes empty groups of previous agents. Those agents could not remove the groups while
    /// background processes ran.
    fn sweep(&self) {
        for entry in self.0.iter().flat_map(fs::read_dir).flatten().flatten() {
            let is_old = || entry.metadata()?.modified()?.elapsed().map_err(io::Error::other);
            // A recent group may belong to another agent that will use it soon.
            if entry.file_name().to_string_lossy().starts_with(NAME_PREFIX)
                && is_old().is_ok_and(|age| age > STALE_AGE)
            {
                drop(Cgroup { path: entry.path() });
            }
        }
    }

    /// Whether commands get a group.
    pub fn is_available(&self) -> bool {
        self.0.is_some()
    }

    /// Creates the group of a command.
    pub fn create(&self, id: Uuid) -> Option<Cgroup> {
        let path = self.path(id)?;
        match fs::create_dir(&path) {
            Ok(()) => Some(Cgroup { path }),
            Err(error) => {
                log::warn!("command {id}: no control group: {}: {error}", path.display());
                None
            }
        }
    }

    /// The group of a command of the previous agent, if it still exists.
    pub fn find_leftover(&self, id: Uuid) -> Option<Cgroup> {
        self.path(id).filter(|path| path.is_dir()).map(|path| Cgroup { path })
    }

    fn path(&self, id: Uuid) -> Option<PathBuf> {
        Some(self.0.as_ref()?.join(format!("{NAME_PREFIX}{id}")))
    }
}

/// Finds the folder of the agent's own group in `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn own_group(mounts: &str, own: &str) -> Option<PathBuf> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, mount) = (fields.next()?, fields.next()?);
        // In a container, the mount may show only a part of the hierarchy. Then the group's path
        // below the mount is unknown.
        (after.starts_with("cgroup2 ") && root == "/").then(|| Path::new(mount).join(own))
    })
}

impl Cgroup {
    /// Opens `cgroup.procs`. A process that writes `0` to it enters the group.
    ///
    /// # Errors
    /// The agent has no permission.
    pub fn open_procs(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))
    }

    /// Whether any process is in this group or in a group below. Zombies do not count.
    pub fn runs(&self) -> bool {
        let events = fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "populated 1")
    }

    /// Sends a signal to each process in this group and in the groups below. Skips the process
    /// group `except`, which has already received the signal.
    pub fn signal(&self, signal: Signal, except: Option<Pid>) {
        if signal == Signal::SIGKILL && fs::write(self.path.join("cgroup.kill"), "1").is_ok() {
            // `cgroup.kill` kills all processes atomically.
            return;
        }
        for group in subtree(&self.path) {
            let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            let processes = processes
                .lines()
                .filter_map(|line| line.parse().ok())
                .filter(|process| *process > 0);
            for process in processes.map(Pid::from_raw) {
                if except.is_none() || getpgid(Some(process)).ok() != except {
                    let _ = kill(process, signal);
                }
            }
        }
    }

    /// Removes this group and the groups below it if they are empty. Returns true if this group
    /// does not exist afterwards.
    pub fn remove(&self) -> bool {
        for group in subtree(&self.path).iter().rev() {
            let _ = fs::remove_dir(group);
        }
        !self.path.exists()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A group and all groups below it, parents first.
fn subtree(group: &Path) -> Vec<PathBuf> {
    let mut found = vec![group.to_owned()];
    let mut next = 0;
    while let Some(group) = found.get(next) {
        let entries: Vec<_> = fs::read_dir(group).into_iter().flatten().flatten().collect();
        let is_group = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        found.extend(entries.into_iter().filter(is_group).map(|entry| entry.path()));
        next += 1;
    }
    found
}

/// Moves the calling process into the group of an open `cgroup.procs`. It runs after fork, so it
/// makes only a system call.
pub fn enter(procs: &impl AsFd) -> nix::Result<()> {
    nix::unistd::write(procs, b"0").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_own_group_is_found() {
        let mounts = "30 20 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             31 20 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let own = "3:cpu:/x\n0::/system.slice/farhand-agent.service\n";
        let expected = Path::new("/sys/fs/cgroup/system.slice/farhand-agent.service");
        assert_eq!(own_group(mounts, own).as_deref(), Some(expected));
        assert_eq!(own_group(mounts, "0::/\n").as_deref(), Some(Path::new("/sys/fs/cgroup/")));
        assert_eq!(own_group(mounts, "3:cpu:/x\n"), None);
        assert_eq!(own_group("31 20 0:27 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", own), None);
        assert_eq!(own_group("", own), None);
    }
}
