//! Tests of the agent's source files: layers, cycles and length. A layer is a file or folder at the
//! top of `src`. A file imports only from its own layer and from lower layers. Imports form no
//! cycle. No file is too long.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers, lowest first.
const LAYERS: [&str; 13] = [
    "logging",
    "labels",
    "config",
    "host",
    "journal",
    "connection",
    "upgrade",
    "reports",
    "runner",
    "service",
    "agent",
    "cli",
    "main",
];

/// The text of each file in `src` without its unit tests. The key is the module path, such as
/// `runner::queue`.
fn modules() -> BTreeMap<String, String> {
    fn below(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] }).collect()
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let module = |file: PathBuf| {
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap().to_owned();
        let path = file.strip_prefix(&root).unwrap().with_extension("");
        let path = path.to_str().unwrap().replace('/', "::");
        (path.trim_end_matches("::mod").to_owned(), text)
    };
    below(&root).into_iter().map(module).filter(|(module, _)| module != "structure_tests").collect()
}

/// The modules that a file imports: the modules in its `crate::` paths, and its own submodules.
fn imports<'a>(module: &str, text: &str, all: &'a BTreeMap<String, String>) -> BTreeSet<&'a str> {
    let parent =
        |module: &str| module.rsplit_once("::").map_or("main", |(parent, _)| parent).to_owned();
    let mut found: BTreeSet<&str> =
        all.keys().filter(|other| parent(other) == module).map(String::as_str).collect();
    let code: Vec<_> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    assert!(
        !code.contains("super::"),
        "{module} has a path from super::, which this test does not follow"
    );
    for rest in code.split("crate::").skip(1) {
        let end =
            rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(rest.len());
        let (path, rest) = rest.split_at(end);
        let braced = rest.strip_prefix('{').map_or("", |rest| rest.split('}').next().unwrap());
        assert!(
            !braced.contains('{'),
            "{module} has nested braces in an import, which this test does not follow"
        );
        for name in braced.split(',') {
            let whole = format!("{path}{}", name.trim());
            let mut named = whole.as_str();
            while !all.contains_key(named) {
                named =
                    named.rsplit_once("::").unwrap_or_else(|| panic!("{module} imports {whole}")).0;
            }
            found.extend(all.get_key_value(named).map(|(named, _)| named.as_str()));
        }
    }
    found.remove(module);
    found
}

/// The modules in a cycle of imports, and the modules that import them. Returns an empty list if no
/// cycle exists.
fn cycle<'a>(arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<&'a str> {
    let mut left = arrows.clone();
    loop {
        // A module that imports none of the remaining modules is in no cycle.
        let names: BTreeSet<_> = left.keys().copied().collect();
        left.retain(|_, targets| !targets.is_disjoint(&names));
        if left.len() == names.len() {
            return left.into_keys().collect();
        }
    }
}

#[test]
fn no_file_imports_from_a_higher_layer() {
    let all = modules();
    let rank = |module: &str| {
        let layer = module.split("::").next().unwrap();
        LAYERS
            .iter()
            .position(|other| *other == layer)
            .unwrap_or_else(|| panic!("{layer} is not in LAYERS"))
    };
    let mut seen = 0;
    for (module, text) in &all {
        for target in imports(module, text, &all) {
            assert!(rank(target) <= rank(module), "{module} imports {target}");
            seen += 1;
        }
    }
    assert!(seen > 80, "{seen} imports found");
}

#[test]
fn imports_form_no_cycle() {
    let all = modules();
    let arrows =
        all.iter().map(|(module, text)| (module.as_str(), imports(module, text, &all))).collect();
    assert_eq!(cycle(&arrows), [""; 0]);
    let text = "use crate::runner::{self, queue::Queue};".to_owned();
    let bad = BTreeMap::from([
        ("main".to_owned(), String::new()),
        ("runner".to_owned(), String::new()),
        ("runner::queue".to_owned(), text),
    ]);
    let arrows =
        bad.iter().map(|(module, text)| (module.as_str(), imports(module, text, &bad))).collect();
    assert_eq!(cycle(&arrows), ["main", "runner", "runner::queue"]);
}

#[test]
fn no_file_is_too_long() {
    for (module, text) in modules() {
        let lines = text.lines().count();
        assert!(lines <= 500, "{module} has {lines} lines without its tests");
    }
}
