//! The sockets on which processes of this machine listen, from `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::instance::{open_files, processes_in};

/// The state of a listening socket in `/proc/net/tcp`.
const TCP_LISTEN: &str = "0A";
/// The flag of a listening socket in `/proc/net/unix`.
const ACCEPTS_CONNECTIONS: u32 = 1 << 16;

/// A socket that accepts connections.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Listener {
    /// A TCP port, with the loopback address at which it can be reached.
    Tcp(&'static str, u16),
    /// The absolute path of a Unix socket. An abstract socket has a relative one that begins with `@`.
    Unix(PathBuf),
}

/// The sockets on which the processes of a group listen.
pub fn listeners_of_group(group: i32) -> BTreeSet<Listener> {
    listeners_of(&processes_in(&[group]))
}

/// The sockets on which some processes listen.
///
/// # Panics
/// If `/proc/net` has an unknown format.
pub fn listeners_of(processes: &[i32]) -> BTreeSet<Listener> {
    let mut owners = BTreeMap::new();
    for pid in processes {
        for file in open_files(*pid) {
            let inode = file.to_str().and_then(|name| name.strip_prefix("socket:["));
            if let Some(inode) = inode.and_then(|name| name.strip_suffix(']')) {
                owners.insert(inode.to_owned(), *pid);
            }
        }
    }
    let mut found = BTreeSet::new();
    for (table, host) in [("tcp", "127.0.0.1"), ("tcp6", "[::1]")] {
        for fields in rows(table) {
            let [_, address, _, state, ..] = &fields[..] else { panic!("{fields:?}") };
            if state == TCP_LISTEN && owners.contains_key(&fields[9]) {
                let (_, port) = address.rsplit_once(':').unwrap();
                found.insert(Listener::Tcp(host, u16::from_str_radix(port, 16).unwrap()));
            }
        }
    }
    for fields in rows("unix") {
        let [_, _, _, flags, _, _, inode, path @ ..] = &fields[..] else { panic!("{fields:?}") };
        let Some(owner) = owners.get(inode) else { continue };
        if u32::from_str_radix(flags, 16).unwrap() & ACCEPTS_CONNECTIONS != 0 {
            let path = PathBuf::from(path.join(" "));
            let is_abstract = path.to_string_lossy().starts_with('@');
            found.insert(Listener::Unix(if is_abstract { path } else { absolute(*owner, &path) }));
        }
    }
    found
}

/// The rows of a table in `/proc/net`, as fields. Empty without IPv6 for `tcp6`.
fn rows(table: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(Path::new("/proc/net").join(table)).unwrap_or_default();
    let fields = |line: &str| line.split_ascii_whitespace().map(str::to_owned).collect();
    text.lines().skip(1).map(fields).collect()
}

/// The absolute form of a path that a process used. A process that ended has no folder.
fn absolute(pid: i32, path: &Path) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default().join(path)
}
