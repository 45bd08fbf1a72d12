//! Compares `docs/contributing/dependencies.md` with the manifests: it must list exactly the direct
//! dependencies, with their licences.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

/// The packages that the document lists for a manifest, with their licences.
fn listed_packages(manifest: &str) -> BTreeMap<String, String> {
    let document = read("docs/contributing/dependencies.md");
    let section = document
        .split("\n## ")
        .find(|section| section.lines().next().unwrap().contains(manifest))
        .unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let (name, rest) = row.split_once("` | ").unwrap();
        let (licence, reason) = rest.split_once(" | ").unwrap();
        assert!(!reason.trim_end_matches(" |").is_empty(), "{row}");
        (name.to_owned(), licence.to_owned())
    })
    .collect()
}

#[test]
fn every_crate_is_listed_with_its_licence() {
    let arguments = ["metadata", "--locked", "--format-version", "1"];
    let output = Command::new("cargo").args(arguments).current_dir(ROOT).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let list = |value: &Value| value.as_array().unwrap().clone();
    let packages: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .map(|package| (package["id"].as_str().unwrap().to_owned(), package))
        .collect();
    let members: BTreeSet<String> =
        list(&metadata["workspace_members"]).into_iter().map(|id| id.to_string()).collect();
    let mut checked = 0;
    for node in list(&metadata["resolve"]["nodes"]) {
        if !members.contains(&node["id"].to_string()) {
            continue;
        }
        let package = &packages[node["id"].as_str().unwrap()];
        let path = package["manifest_path"]
            .as_str()
            .unwrap()
            .replace(&std::fs::canonicalize(ROOT).unwrap().display().to_string(), "");
        let used =
            list(&node["dependencies"]).into_iter().filter(|id| !members.contains(&id.to_string()));
        let used = used.map(|id| {
            let package = &packages[id.as_str().unwrap()];
            (
                package["name"].as_str().unwrap().to_owned(),
                package["license"].as_str().unwrap().to_owned(),
            )
        });
        assert_eq!(
            listed_packages(&format!("`{}`", path.trim_start_matches('/'))),
            used.collect(),
            "{path}"
        );
        checked += 1;
    }
    assert_eq!(checked, members.len());
}

#[test]
fn every_npm_package_is_listed_with_an_exact_version() {
    let manifest: Value = serde_json::from_str(&read("package.json")).unwrap();
    assert_eq!(manifest["dependencies"], Value::Null);
    let used = manifest["devDependencies"].as_object().unwrap().iter().map(|(name, version)| {
        let version = version.as_str().unwrap();
        let is_exact = version.split('.').count() == 3
            && version.chars().all(|c| c.is_ascii_digit() || c == '.');
        assert!(is_exact, "{name} {version}");
        let installed: Value =
            serde_json::from_str(&read(&format!("node_modules/{name}/package.json"))).unwrap();
        assert_eq!(installed["version"], version, "{name}");
        (name.clone(), installed["license"].as_str().unwrap().to_owned())
    });
    assert_eq!(listed_packages("`package.json`"), used.collect());
}

/// The contents of the repository's files below some paths, without generated folders and lists of
/// packages.
fn text_below(paths: &[&str]) -> String {
    const SKIPPED: &[&str] =
        &["node_modules", "target", "build", "package.json", "package-lock.json", "corpus"];
    let mut left: Vec<_> = paths.iter().map(|path| Path::new(ROOT).join(path)).collect();
    let mut text = String::new();
    while let Some(path) = left.pop() {
        let name = path.file_name().unwrap().to_str().unwrap();
        if SKIPPED.contains(&name) {
            continue;
        }
        if path.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if let Ok(content) = std::fs::read_to_string(&path) {
            text.push_str(&content);
        }
    }
    text
}

/// Whether a text has a name that is no part of a longer name.
fn has_name(text: &str, name: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name)
}

#[test]
fn every_crate_is_used() {
    for (manifest, sources) in [
        ("Cargo.toml", &["src", "build.rs"][..]),
        ("domain/Cargo.toml", &["domain/src", "domain/tests", "domain/fuzz"]),
        ("domain/fuzz/Cargo.toml", &["domain/fuzz"]),
        ("sql/Cargo.toml", &["sql"]),
        ("agent/Cargo.toml", &["agent"]),
        ("cli/Cargo.toml", &["cli"]),
        ("tests/Cargo.toml", &["tests"]),
    ] {
        let (text, sources) = (read(manifest), text_below(sources));
        let sections = text.split("\n[").filter(|section| {
            let header = section.lines().next().unwrap();
            header.ends_with("dependencies]") && header != "workspace.dependencies]"
        });
        let lines = sections.flat_map(|section| section.lines().skip(1));
        let mut checked = 0;
        for name in
            lines.filter_map(|line| line.split_once(['=', '.'])).map(|(name, _)| name.trim())
        {
            let is_used = name.starts_with('#') || has_name(&sources, &name.replace('-', "_"));
            assert!(is_used, "{manifest}: no source file names the crate {name}");
            checked += 1;
        }
        assert!(checked > 0, "{manifest}");
    }
}

#[test]
fn every_npm_package_is_used() {
    let manifest: Value = serde_json::from_str(&read("package.json")).unwrap();
    let text = text_below(&["scripts", "bench", "web", "tests", "docs/.vitepress", ".github"])
        + &text_below(&["eslint.config.mjs", "redocly.yaml"])
        + &manifest["scripts"].to_string();
    for name in manifest["devDependencies"].as_object().unwrap().keys() {
        let installed: Value =
            serde_json::from_str(&read(&format!("node_modules/{name}/package.json"))).unwrap();
        let programs = installed["bin"].as_object().into_iter().flatten().map(|(name, _)| name);
        // A name stands in quotes, or before the path of a file in the package.
        let is_named = |name: &String| {
            let (quoted, single, file) =
                (format!("\"{name}\""), format!("'{name}'"), format!("\"{name}/"));
            [quoted, single, file, format!("node_modules/{name}/")]
                .iter()
                .any(|form| text.contains(form))
        };
        // A package with types of another package is used by the compiler.
        let is_used = name.starts_with("@types/") || programs.chain([name]).any(is_named);
        assert!(is_used, "no file uses the package {name}");
    }
}
