//! Contract 9: the service, the agent and the command line show the version and the commit.

use std::process::Command;

use farhand_tests::{Api, setting};
use serde_json::Value;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a program prints for `--version`: its version and its commit.
fn version_of(program: &str, name: &str) -> (String, String) {
    let output = Command::new(program).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let parts: Vec<&str> = text.split_whitespace().collect();
    let [found, version, commit] = parts[..] else { panic!("{program} --version: {text}") };
    assert_eq!(found, name);
    (version.to_owned(), commit.trim_matches(['(', ')']).to_owned())
}

#[tokio::test]
async fn service_agent_and_command_line_show_version_and_commit() {
    let health = Api::at("nowhere.example").get("/healthz").await.expect(200);
    assert_eq!(health["version"], VERSION);
    for (setting_name, name) in [("FARHAND_AGENT", "farhand-agent"), ("FARHAND_CLI", "farhand")] {
        let (version, commit) = version_of(&setting(setting_name), name);
        assert_eq!(version, VERSION, "{name}");
        // The tests run in a checkout. All parts are built from its commit.
        let health = health["commit"].as_str().unwrap();
        assert_eq!(commit.trim_end_matches("-dirty"), health.trim_end_matches("-dirty"), "{name}");
    }
}

#[test]
fn all_manifests_have_one_version() {
    let read = |name: &str| std::fs::read_to_string(format!("{}{name}", super::ROOT)).unwrap();
    for name in ["package.json", "package-lock.json"] {
        let manifest: Value = serde_json::from_str(&read(name)).unwrap();
        assert_eq!(manifest["version"], VERSION, "{name}");
    }
    assert!(read("docs/openapi.yaml").contains(&format!("\n  version: {VERSION}\n")));
    let changelog = read("CHANGELOG.md");
    let mut headings = changelog.lines().filter(|line| line.starts_with("## "));
    let newest = headings.find(|line| *line != "## Unreleased").unwrap();
    assert!(newest.starts_with(&format!("## {VERSION} - 20")), "{newest}");
}
