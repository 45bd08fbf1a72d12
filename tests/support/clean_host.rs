//! A host on which nothing of Farhand was installed: this machine's files under an overlay, so that
//! a test sees what a program wrote, and the machine stays as it is. Needs root.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;
use tokio::process::Command;

/// The search path on the host.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Mounts the root, and runs the shell script `$4` there. `$1` is the folder of the host, `$2` the
/// folder of changed files, `$3` the folder that overlays need.
const ENTER: &str = "mount -t overlay overlay -o lowerdir=/,upperdir=$2,workdir=$3 $1 && \
    mount --rbind /proc $1/proc && mount --rbind /dev $1/dev && exec chroot $1 /bin/sh -c \"$4\"";

/// A host. Each program that runs on it sees the files that earlier programs wrote.
pub struct CleanHost {
    folder: TempDir,
}

/// How a program on the host ended.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    /// Standard output and standard error.
    pub text: String,
}

impl CleanHost {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Programs of other accounts run on the host, too.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let host = Self { folder };
        for name in ["root", "changed", "work"] {
            std::fs::create_dir(host.folder.path().join(name)).unwrap();
        }
        host
    }

    /// The path of a file that was written on the host. Before the first program, a test can create
    /// files there.
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join("changed").join(path.trim_start_matches('/'))
    }

    /// Writes a file before the first program runs.
    pub fn write(&self, path: &str, content: &str, mode: u32) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    }

    /// Pretends that the host runs systemd: a program in place of systemctl records its calls.
    pub fn with_systemd(self) -> Self {
        let systemctl = "#!/bin/sh\necho \"$*\" >> /systemctl.log\n[ \"$1\" != is-active ] || [ -e /is-active ]\n";
        self.write("/usr/local/sbin/systemctl", systemctl, 0o755);
        std::fs::create_dir_all(self.path("/run/systemd/system")).unwrap();
        self
    }

    /// A shell script on the host, with the variables `PATH` and `HOME` only.
    pub fn command(&self, script: &str) -> Command {
        let path = |name: &str| self.folder.path().join(name);
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-ec", ENTER, "enter"])
            .args([path("root"), path("changed"), path("work")])
            .arg(script)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", "/root")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs a shell script on the host to its end.
    pub async fn run(&self, script: &str) -> Ended {
        end(&mut self.command(script)).await
    }

    /// The files that were written on the host, except directories and deleted files.
    pub fn files(&self) -> Vec<String> {
        let changed = self.folder.path().join("changed");
        let mut found = Vec::new();
        collect(&changed, &mut found);
        let mut names: Vec<String> = found
            .iter()
            .map(|path| format!("/{}", path.strip_prefix(&changed).unwrap().display()))
            .collect();
        names.sort();
        names
    }
}

impl Default for CleanHost {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs a program to its end.
///
/// # Panics
/// If it does not end in time.
pub async fn end(command: &mut Command) -> Ended {
    let output =
        tokio::time::timeout(crate::PATIENCE, command.output()).await.expect("no end in time");
    let output = output.unwrap();
    let text = [output.stdout, output.stderr].concat();
    Ended {
        code: output.status.code().unwrap_or(-1),
        text: String::from_utf8_lossy(&text).into_owned(),
    }
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            collect(&entry.path(), found);
        } else if !kind.is_char_device() {
            // The overlay marks a deleted file with a device.
            found.push(entry.path());
        }
    }
}
