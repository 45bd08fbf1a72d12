//! The order of the Worker's rooms, which are the folders of `src`: a file imports from its own
//! room and from lower ones only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the lowest to the highest.
const ROOMS: [&str; 7] = ["platform", "mail", "store", "http", "objects", "auth", "api"];

/// How many lines of production code a file has, unless its first lines give a reason for more.
const MAX_LINES: usize = 500;
/// How the reason begins.
const REASON: &str = "//! Longer than 500 lines: ";

/// All files in a folder of the repository, and below it.
pub fn sources(folder: &str) -> Vec<PathBuf> {
    fn below(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] }).collect()
    }
    below(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
}

/// A file's module path (`["store", "db"]`) and its text without tests.
fn modules(folder: &str) -> BTreeMap<Vec<String>, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let module = |file: PathBuf| {
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap().to_owned();
        let path = file.strip_prefix(&root).unwrap().with_extension("");
        let mut path: Vec<String> =
            path.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        path.pop_if(|last| last == "mod" || last == "lib");
        (path, text)
    };
    sources(folder).into_iter().map(module).collect()
}

/// The files that a file imports from: of `crate::`, `self::` and `super::` paths, with what is in
/// braces.
fn imports(module: &[String], text: &str, all: &BTreeSet<Vec<String>>) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    let uses =
        text.split("\nuse ").skip(1).filter_map(|rest| rest.split_once(';')).map(|(path, _)| path);
    for path in uses {
        let (path, braced) = path.split_once('{').unwrap_or((path, ""));
        let parts: Vec<&str> =
            path.split("::").map(str::trim).filter(|part| !part.is_empty()).collect();
        let parent = &module[..module.len().saturating_sub(1)];
        let base: Vec<String> = match parts[0] {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => parent.to_vec(),
            _ => continue,
        };
        let named = |names: &[&str]| {
            let names = names.iter().filter(|name| **name != "self").map(|name| (*name).to_owned());
            let mut path: Vec<String> = base.iter().cloned().chain(names).collect();
            while !all.contains(&path) && path.pop().is_some() {}
            path
        };
        let inside: Vec<&str> = braced.trim_end_matches('}').split(',').map(str::trim).collect();
        for name in inside {
            let name = name.split("::").next().unwrap_or("").split(' ').next().unwrap_or("");
            let whole: Vec<&str> =
                parts[1..].iter().copied().chain((!name.is_empty()).then_some(name)).collect();
            found.insert(named(&whole));
        }
    }
    found.remove(module);
    found
}

/// The files of a circle of imports, if there is one.
fn circle(arrows: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>) -> Option<Vec<Vec<String>>> {
    let mut left: BTreeMap<_, _> = arrows.clone();
    loop {
        // What imports from nothing that is left is in no circle.
        let names: BTreeSet<_> = left.keys().cloned().collect();
        let before = left.len();
        left.retain(|_, targets| targets.iter().any(|target| names.contains(target)));
        if left.len() == before {
            return (before > 0).then(|| left.into_keys().collect());
        }
    }
}

fn arrows(folder: &str) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let modules = modules(folder);
    let all: BTreeSet<_> = modules.keys().cloned().collect();
    modules.iter().map(|(module, text)| (module.clone(), imports(module, text, &all))).collect()
}

#[test]
fn no_file_imports_from_a_higher_room() {
    let rank = |module: &[String]| {
        ROOMS.iter().position(|room| module.first().is_some_and(|first| first == room))
    };
    let mut seen = 0;
    for (module, targets) in arrows("src") {
        for target in targets {
            if let (Some(from), Some(to)) = (rank(&module), rank(&target)) {
                assert!(to <= from, "{} imports {}", module.join("::"), target.join("::"));
                seen += 1;
            }
        }
    }
    assert!(seen > 100, "{seen} imports found");
}

#[test]
fn no_files_import_from_each_other() {
    assert_eq!(circle(&arrows("src")), None);
    assert_eq!(circle(&arrows("domain/src")), None);
    assert_eq!(circle(&arrows("sql/src")), None);
}

#[test]
fn handlers_hold_no_sql() {
    for file in sources("src/api") {
        let text = fs::read_to_string(&file).unwrap();
        for sql in ["SELECT ", "INSERT ", "UPDATE ", "DELETE FROM", " FROM ", "json_object("] {
            assert!(!text.contains(sql), "{} has {sql:?}", file.display());
        }
    }
}

#[test]
fn files_are_short() {
    let long = |folder: &str| {
        let is_long = |text: &String| {
            text.lines().count() > MAX_LINES
                && !text.lines().take(30).any(|line| line.starts_with(REASON))
        };
        let modules = modules(folder).into_iter().filter(|(_, text)| is_long(text));
        modules
            .map(|(module, text)| format!("{}: {}", module.join("::"), text.lines().count()))
            .collect::<Vec<_>>()
    };
    let all: Vec<_> = ["src", "domain/src", "sql/src"].into_iter().flat_map(long).collect();
    assert_eq!(all, Vec::<String>::new());
}
