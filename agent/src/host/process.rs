//! Processes in `/proc`: their identity, process groups and descendants.

use std::fs;
use std::io;

use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Identifies a process, even after a restart of the host. The kernel reuses process numbers, but
/// the combination with start time and boot id is unique. Stored in the journal as JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The process number.
    pub pid: i32,
    /// The start time, in clock ticks since boot.
    start: u64,
    /// The kernel's boot id.
    boot: String,
    /// Whether the process is a command's supervisor and not the command itself.
    #[serde(default)]
    pub is_supervisor: bool,
}

impl Identity {
    /// Identifies the process that now has the number `pid`. Returns `None` if there is no such
    /// process, or if `/proc` does not show it.
    pub fn read(pid: i32) -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        Some(Self { pid, start: Stat::read(pid).ok()?.start, boot, is_supervisor: false })
    }

    /// Sets whether this process is a supervisor.
    pub fn supervising(self, is_supervisor: bool) -> Self {
        Self { is_supervisor, ..self }
    }

    /// Whether this process still exists, possibly as a zombie.
    pub fn exists(&self) -> bool {
        Self::read(self.pid)
            .is_some_and(|found| found.start == self.start && found.boot == self.boot)
    }
}

/// The fields of `/proc/<pid>/stat` that the agent needs.
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
        // The name in parentheses can contain any character, including parentheses and blanks.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let has_ended = matches!(*fields.first()?, "Z" | "X");
        let threads: u32 = fields.get(17)?.parse().ok()?;
        Some(Self {
            // The main thread of a process can exit before its other threads.
            is_alive: !has_ended || threads > 1,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
        })
    }
}

/// All processes with their numbers.
///
/// # Errors
/// `/proc` is not mounted.
fn all() -> io::Result<Vec<(i32, Stat)>> {
    let numbers = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // Skips processes that exited after their directory was listed.
    let found: Vec<_> = numbers.filter_map(|pid| Some((pid, Stat::read(pid).ok()?))).collect();
    // If `/proc` is mounted, at least this process is listed.
    if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
}

/// Whether `/proc` shows processes on this host.
pub fn is_proc_mounted() -> bool {
    Stat::read(nix::unistd::getpid().as_raw()).is_ok()
}

/// Whether any process of the group runs. Zombies do not count, because a container often has no
/// init process that reaps zombies.
///
/// # Errors
/// `/proc` is not mounted.
pub fn group_runs(group: Pid) -> io::Result<bool> {
    Ok(all()?.iter().any(|(_, stat)| stat.group == group.as_raw() && stat.is_alive))
}

/// The running descendants of a process. Returns an empty list if the process itself has exited.
///
/// # Errors
/// `/proc` is not mounted.
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
    fn a_process_name_can_contain_any_character() {
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
    fn a_process_is_identified_by_more_than_its_number() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let identity = Identity::read(child.id() as i32).unwrap();
        let group = Pid::from_raw(identity.pid);
        assert!(identity.exists() && group_runs(group).unwrap());
        for other in [
            Identity { start: identity.start + 1, ..identity.clone() },
            Identity { boot: "another".to_owned(), ..identity.clone() },
        ] {
            assert!(!other.exists(), "{other:?}");
        }
        child.kill().unwrap();
        // A zombie keeps its number and does not run.
        while group_runs(group).unwrap() {
            std::thread::yield_now();
        }
        assert!(identity.exists());
        child.wait().unwrap();
        assert!(!identity.exists());
        assert_eq!(Identity::read(identity.pid), None);
    }
}
