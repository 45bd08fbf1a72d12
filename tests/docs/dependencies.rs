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
