//! Processes as `/proc` shows them: which one has a number, who is in a group, and who descends
//! from one.

use std::fs;
use std::io;

use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// A process for as long as the host runs, and beyond: numbers of processes are used again, but not
/// together with the moment of their start.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// Its number.
    pub pid: i32,
    /// When it started, in the kernel's ticks since the host did.
    start: u64,
    /// The kernel's id of the host's start.
    boot: String,
    /// Whether it is the supervisor of a command, and not the command itself.
    #[serde(default)]
    pub is_supervisor: bool,
}

impl Identity {
    /// The process that has the number `pid` now. None if there is none, or if `/proc` does not
    /// show it.
    pub fn of(pid: i32) -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        Some(Self { pid, start: Stat::read(pid).ok()?.start, boot, is_supervisor: false })
    }

    /// The same process, marked as a supervisor or not.
    pub fn supervising(self, is_supervisor: bool) -> Self {
        Self { is_supervisor, ..self }
    }

    /// Whether this very process still exists, possibly as a zombie.
    pub fn is_there(&self) -> bool {
        Self::of(self.pid).is_some_and(|found| found.start == self.start && found.boot == self.boot)
    }
}

/// What of `/proc/<pid>/stat` matters here.
struct Stat {
    is_alive: bool,
    parent: i32,
    group: i32,
    start: u64,
}

impl Stat {
    fn read(pid: i32) -> io::Result<Self> {
        let text = fs::read(format!("/proc/{pid}/stat"))?;
        Self::parse(&String::from_utf8_lossy(&text))
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(text: &str) -> Option<Self> {
        // The name, in parentheses, can hold anything, parentheses and blanks too.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let has_ended = matches!(*fields.first()?, "Z" | "X");
        let threads: u32 = fields.get(17)?.parse().ok()?;
        Some(Self {
            // The first thread of a process can end before the others do.
            is_alive: !has_ended || threads > 1,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
        })
    }
}

/// All processes, by their numbers.
///
/// # Errors
/// There is no `/proc`.
fn all() -> io::Result<Vec<(i32, Stat)>> {
    let numbers = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // One that ended since is none any more.
    let found: Vec<_> = numbers.filter_map(|pid| Some((pid, Stat::read(pid).ok()?))).collect();
    // This one at least must be among them.
    if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
}

/// Whether `/proc` shows processes on this host.
pub fn is_proc_mounted() -> bool {
    Stat::read(nix::unistd::getpid().as_raw()).is_ok()
}

/// Whether a process of the group runs. Zombies do not: in a container there is often no init that
/// reaps them.
///
/// # Errors
/// There is no `/proc`.
pub fn group_runs(group: Pid) -> io::Result<bool> {
    Ok(all()?.iter().any(|(_, stat)| stat.group == group.as_raw() && stat.is_alive))
}

/// The descendants of a process that run: none if it has ended itself.
///
/// # Errors
/// There is no `/proc`.
pub fn descendants(ancestor: &Identity) -> io::Result<Vec<Pid>> {
    let all = all()?;
    let is_ancestor = |(pid, stat): &(i32, Stat)| {
        *pid == ancestor.pid && stat.start == ancestor.start && stat.is_alive
    };
    let mut tree: Vec<&(i32, Stat)> = all.iter().filter(|process| is_ancestor(process)).collect();
    let mut next = 0;
    while let Some((parent, _)) = tree.get(next) {
        tree.extend(all.iter().filter(|(_, stat)| stat.parent == *parent));
        next += 1;
    }
    let below = tree.into_iter().skip(1);
    Ok(below.filter(|(_, stat)| stat.is_alive).map(|(pid, _)| Pid::from_raw(*pid)).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_name_can_hold_anything() {
        let text = "7 (a) Z 1 (b) S 1 42 43 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.is_alive, stat.group, stat.start), (true, 42, 99));
        assert!(
            !Stat::parse("7 (a) Z 1 42 43 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0")
                .unwrap()
                .is_alive
        );
        assert!(
            Stat::parse("7 (a) Z 1 42 43 0 -1 0 0 0 0 0 0 0 0 0 20 0 2 0 99 0 0").unwrap().is_alive
        );
        assert!(Stat::parse("").is_none() && Stat::parse("7 (a) Z").is_none());
    }

    #[test]
    fn a_process_is_known_by_more_than_its_number() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let identity = Identity::of(child.id() as i32).unwrap();
        let group = Pid::from_raw(identity.pid);
        assert!(identity.is_there() && group_runs(group).unwrap());
        for other in [
            Identity { start: identity.start + 1, ..identity.clone() },
            Identity { boot: "another".to_owned(), ..identity.clone() },
        ] {
            assert!(!other.is_there(), "{other:?}");
        }
        child.kill().unwrap();
        // A zombie keeps its number and does not run.
        while group_runs(group).unwrap() {
            std::thread::yield_now();
        }
        assert!(identity.is_there());
        child.wait().unwrap();
        assert!(!identity.is_there());
        assert_eq!(Identity::of(identity.pid), None);
    }
}
