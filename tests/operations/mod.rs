//! The work of operators: start, set up, back up, restore, delete workspaces
//! (`docs/operations.md`).

mod backup;
mod batches;
mod cell_full;
mod cloud;
mod deployment;
mod dev;
mod mail;
mod migrations;
mod operator;
mod request_log;
mod retention;
mod set_up;
mod start;
mod versions;
mod workspace_numbers;

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../");

/// A copy of the checkout, for scripts that change it. Files that they do not change are links, and
/// `links` are too, so that nothing is downloaded or compiled again. The folder is not in the
/// folder of instances, because the search for credentials would follow the links.
fn checkout(links: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let copies = [
        "scripts",
        "web",
        "migrations",
        "build",
        "wrangler.toml",
        "package.json",
        "package-lock.json",
    ];
    let status = Command::new("cp")
        .arg("-a")
        .args(copies.map(|name| format!("{ROOT}{name}")))
        .arg(folder.path())
        .status();
    assert!(status.unwrap().success());
    let root = Path::new(ROOT).canonicalize().unwrap();
    let unchanged = [
        "target",
        ".tools",
        "src",
        "agent",
        "domain",
        "sql",
        "docs",
        "Cargo.toml",
        "Cargo.lock",
        "build.rs",
    ];
    for name in unchanged.iter().chain(links) {
        std::os::unix::fs::symlink(root.join(name), folder.path().join(name)).unwrap();
    }
    folder
}
