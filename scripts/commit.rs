//! The build script of the agent and the command line: sets `FARHAND_COMMIT` for `--version`
//! (contract 9). The environment variable of this name counts first, then the checkout. Without
//! both, the commit is "unknown".

use std::path::Path;
use std::process::Command;

const NAME: &str = "FARHAND_COMMIT";

fn main() {
    println!("cargo::rerun-if-env-changed={NAME}");
    let given = std::env::var(NAME).ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(commit_of_checkout).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env={NAME}={commit}");
}

fn commit_of_checkout() -> Option<String> {
    // git appends a line to this log for each commit and checkout.
    let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=10", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
