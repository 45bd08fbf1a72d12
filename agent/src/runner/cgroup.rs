//! A control group (cgroup v2) for each command, if the kernel lets this agent create one: whatever a command starts
//! stays in there, also what leaves its session, so a kill reaches all of it (agent-protocol 7).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid};
use uuid::Uuid;

/// What the name of a command's group begins with.
const PREFIX: &str = "farhand-";

/// From which age on an empty group is no running command's.
const OLD: Duration = Duration::from_secs(60 * 60);

/// Where the groups of commands are, if there can be any.
#[derive(Clone, Default, Debug)]
pub struct Cgroups(Option<PathBuf>);

/// The group of one command.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroups {
    /// The agent's own group, in which those of commands are created; none if it cannot create a group there.
    pub fn find() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let place = place(&mounts, &own);
        let can_create = |place: &PathBuf| {
            // Removed when it is dropped, as each group.
            let probe = Cgroup { path: place.join(format!("{PREFIX}probe-{}", std::process::id())) };
            fs::create_dir(&probe.path).and_then(|()| probe.open_procs()).is_ok()
        };
        let found = Self(place.filter(can_create));
        found.sweep();
        found
    }

    /// Removes what an agent before this one could not remove, as a process was left in it, and is empty now.
    fn sweep(&self) {
        for entry in self.0.iter().flat_map(fs::read_dir).flatten().flatten() {
            let is_old = || entry.metadata()?.modified()?.elapsed().map_err(io::Error::other);
            // A new one may be another agent's, and about to be entered.
            if entry.file_name().to_string_lossy().starts_with(PREFIX) && is_old().is_ok_and(|age| age > OLD) {
                drop(Cgroup { path: entry.path() });
            }
        }
    }

    /// Whether commands get a group.
    pub fn is_there(&self) -> bool {
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

    /// The group of a command that an agent before this one ran.
    pub fn left(&self, id: Uuid) -> Option<Cgroup> {
        self.path(id).filter(|path| path.is_dir()).map(|path| Cgroup { path })
    }

    fn path(&self, id: Uuid) -> Option<PathBuf> {
        Some(self.0.as_ref()?.join(format!("{PREFIX}{id}")))
    }
}

/// The folder of the agent's own group, from `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn place(mounts: &str, own: &str) -> Option<PathBuf> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, mount) = (fields.next()?, fields.next()?);
        // A part of the hierarchy that is mounted alone, as in a container, does not show where the agent is in it.
        (after.starts_with("cgroup2 ") && root == "/").then(|| Path::new(mount).join(own))
    })
}

impl Cgroup {
    /// What a new process writes `0` to, to enter.
    ///
    /// # Errors
    /// The kernel does not let this agent.
    pub fn open_procs(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))
    }

    /// Whether a process is in it, or in a group below. One that ended and was not waited for is not.
    pub fn runs(&self) -> bool {
        let events = fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "populated 1")
    }

    /// Sends a signal to each process in it and in the groups below, but for those of the process group `but`, which got
    /// the signal already.
    pub fn signal(&self, signal: Signal, but: Option<Pid>) {
        if signal == Signal::SIGKILL && fs::write(self.path.join("cgroup.kill"), "1").is_ok() {
            // Reaches all of them together.
            return;
        }
        for group in below(&self.path) {
            let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            let processes = processes.lines().filter_map(|line| line.parse().ok()).filter(|process| *process > 0);
            for process in processes.map(Pid::from_raw) {
                if but.is_none() || getpgid(Some(process)).ok() != but {
                    let _ = kill(process, signal);
                }
            }
        }
    }

    /// Removes it and the groups below, if no process is left in any of them.
    pub fn remove(&self) -> bool {
        for group in below(&self.path).iter().rev() {
            let _ = fs::remove_dir(group);
        }
        !self.path.exists()
    }
}

/// A group whose command did not start, or has ended, is not needed any more.
impl Drop for Cgroup {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A group and all groups below it, each after the one that it is in.
fn below(group: &Path) -> Vec<PathBuf> {
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

/// Enters a group through its door. Makes a system call only.
pub fn enter(door: &impl AsFd) -> nix::Result<()> {
    nix::unistd::write(door, b"0").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_read() {
        let mounts = "30 20 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             31 20 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let own = "3:cpu:/x\n0::/system.slice/farhand-agent.service\n";
        let expected = Path::new("/sys/fs/cgroup/system.slice/farhand-agent.service");
        assert_eq!(place(mounts, own).as_deref(), Some(expected));
        assert_eq!(place(mounts, "0::/\n").as_deref(), Some(Path::new("/sys/fs/cgroup/")));
        assert_eq!(place(mounts, "3:cpu:/x\n"), None);
        assert_eq!(place("31 20 0:27 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", own), None);
        assert_eq!(place("", own), None);
    }
}
