//! Tests of the structure of the source. The folders of `src` are layers: a file imports only from
//! its own folder and from lower folders. The modules of `domain` are layers too. Further tests
//! find import cycles, SQL in handlers and objects, other ways to D1 than a `Database`, and long
//! files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of `src`, from the lowest to the highest.
const FOLDERS: [&str; 8] =
    ["platform", "mail", "store", "http", "objects", "auth", "api", "dialect"];

/// The maximum number of files directly in `domain/src`. The others are in its folders.
const MAX_FILES_OF_DOMAIN: usize = 12;
/// The maximum number of lines of production code in a file, unless the file gives a [`REASON`].
const MAX_LINES: usize = 500;
/// The beginning of the line in which a longer file gives its reason.
const REASON: &str = "//! Longer than 500 lines: ";

/// All files below a folder of the repository.
pub fn sources(folder: &str) -> Vec<PathBuf> {
    fn below(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] }).collect()
    }
    below(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
}

/// The module path of each file (`["store", "db"]`), and its text without tests.
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

/// A text without its lines of comments.
fn code(text: &str) -> String {
    let is_comment =
        |line: &&str| ["//", "/*", "*"].iter().any(|mark| line.trim_start().starts_with(mark));
    text.lines().filter(|line| !is_comment(line)).collect::<Vec<_>>().join("\n")
}

/// The modules that a module imports with `use crate::`, `use self::` and `use super::`, also in
/// braces, and those that it names with `crate::` elsewhere.
fn imports(module: &[String], text: &str, all: &BTreeSet<Vec<String>>) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    let code = code(text);
    let uses =
        code.split("use ").skip(1).filter_map(|rest| rest.split_once(';')).map(|(path, _)| path);
    let named = code.match_indices("crate::").map(|(start, _)| {
        let is_end = |c: char| !c.is_alphanumeric() && c != '_' && c != ':';
        code[start..].split(is_end).next().unwrap_or("")
    });
    // A path that ends with `::` has braces.
    for path in uses.chain(named.filter(|path| !path.ends_with("::"))) {
        let (path, braced) = path.split_once('{').unwrap_or((path, ""));
        let parts: Vec<&str> =
            path.split("::").map(str::trim).filter(|part| !part.is_empty()).collect();
        let parent = &module[..module.len().saturating_sub(1)];
        let base: Vec<String> = match parts.first() {
            Some(&"crate") => Vec::new(),
            Some(&"self") => module.to_vec(),
            Some(&"super") => parent.to_vec(),
            _ => continue,
        };
        let named = |names: &[&str]| {
            let mut path = base.clone();
            for name in names {
                match *name {
                    "self" => {}
                    "super" => drop(path.pop()),
                    name => path.push(name.to_owned()),
                }
            }
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

/// The modules of an import cycle, if there is one.
fn cycle(imports: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>) -> Option<Vec<Vec<String>>> {
    let mut remaining: BTreeMap<_, _> = imports.clone();
    loop {
        // A module that imports none of the remaining modules is not part of a cycle.
        let names: BTreeSet<_> = remaining.keys().cloned().collect();
        let before = remaining.len();
        remaining.retain(|_, targets| targets.iter().any(|target| names.contains(target)));
        if remaining.len() == before {
            return (before > 0).then(|| remaining.into_keys().collect());
        }
    }
}

/// Each module of a folder with the modules that it imports.
fn imports_by_module(folder: &str) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let modules = modules(folder);
    let all: BTreeSet<_> = modules.keys().cloned().collect();
    modules.iter().map(|(module, text)| (module.clone(), imports(module, text, &all))).collect()
}

/// Fails if a file imports from a higher layer. `layers` are in a folder, the lowest first.
fn assert_order(folder: &str, layers: &[&str]) {
    let rank = |module: &[String]| {
        layers.iter().position(|layer| module.first().is_some_and(|first| first == layer))
    };
    let mut seen = 0;
    for (module, targets) in imports_by_module(folder) {
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
fn no_file_imports_from_a_higher_folder() {
    assert_order("src", &FOLDERS);
}

#[test]
fn no_file_of_domain_imports_from_a_higher_module() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("domain/src");
    let text = fs::read_to_string(root.join("lib.rs")).unwrap();
    let between = |start, end| {
        let rest = text.lines().filter_map(move |line| line.strip_prefix(start));
        rest.filter_map(move |rest| rest.split_once(end)).map(|(name, _)| name)
    };
    // The list in the first comment has the lowest module first.
    let layers: Vec<&str> = between("//! - `", "`: ").collect();
    let modules: BTreeSet<&str> = between("pub mod ", ";").collect();
    assert_eq!(layers.iter().copied().collect::<BTreeSet<_>>(), modules);
    assert_order("domain/src", &layers);
    let files =
        fs::read_dir(root).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_file());
    assert!(files.count() <= MAX_FILES_OF_DOMAIN);
}

#[test]
fn there_is_no_import_cycle() {
    assert_eq!(cycle(&imports_by_module("src")), None);
    assert_eq!(cycle(&imports_by_module("domain/src")), None);
    assert_eq!(cycle(&imports_by_module("sql/src")), None);
}

/// Texts that only SQL has.
const SQL: [&str; 8] = [
    "SELECT ",
    "INSERT ",
    "UPDATE ",
    "DELETE FROM",
    " FROM ",
    "json_object(",
    "CREATE TABLE",
    "CREATE INDEX",
];

#[test]
fn handlers_hold_no_sql() {
    for file in sources("src/api").into_iter().chain(sources("src/dialect")) {
        let text = fs::read_to_string(&file).unwrap();
        for sql in SQL {
            assert!(!text.contains(sql), "{} has {sql:?}", file.display());
        }
    }
}

#[test]
fn the_sql_of_the_tables_of_objects_is_in_the_crate_sql() {
    let mut with_sql = files_whose_code(|code| SQL.iter().any(|sql| code.contains(sql)));
    with_sql.retain(|file| file.starts_with("objects/"));
    // These files have SQL for D1.
    let is_for_d1 = |file: &String| {
        file.rsplit('/').next().is_some_and(|name| name.starts_with("d1"))
            || file == "objects/batch/data"
    };
    assert_eq!(with_sql.iter().find(|file| !is_for_d1(file)), None);
    assert!(with_sql.iter().any(is_for_d1));
}

/// The names in a text: words of letters, digits and underscores.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The files of `src` whose code satisfies a condition, as module paths. Comments do not count.
fn files_whose_code(has: impl Fn(&str) -> bool) -> Vec<String> {
    // This file has the names that it searches for.
    let files = modules("src").into_iter().filter(|(module, _)| module[..] != ["structure_tests"]);
    files.filter(|(_, text)| has(&code(text))).map(|(module, _)| module.join("/")).collect()
}

#[test]
fn only_d1_js_takes_the_binding_of_d1() {
    let takes_binding = |code: &str| words(code).any(|word| word == "DB") || code.contains(".d1(");
    assert_eq!(files_whose_code(takes_binding), ["store/d1"]);
    assert_eq!(files_whose_code(|code| code.contains("/d1.js")), ["store/database"]);
}

#[test]
fn store_functions_take_a_database_and_not_the_environment() {
    let takes_env = |code: &str| words(code).any(|word| word == "Env");
    let mut files = files_whose_code(takes_env);
    files.retain(|file| file.starts_with("store/"));
    // `database` creates a `Database`, `login_tokens` takes the binding of KV.
    assert_eq!(files, ["store/database", "store/login_tokens"]);
}

#[test]
fn handlers_and_store_functions_create_no_database() {
    let creates = |code: &str| code.contains("Database::");
    let files = files_whose_code(creates);
    let is_wrong = |file: &&String| {
        ["store/", "api/", "dialect/"].iter().any(|folder| file.starts_with(folder))
    };
    assert_eq!(files.iter().find(is_wrong), None);
    assert!(files.contains(&"http/head".to_owned()), "{files:?}");
}

/// The name and the value of each line `NAME = "value"`, or of each row `| `NAME` | `value` |`.
fn settings(file: &str, before_value: &str, before_name: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let setting = |line: &str| {
        let (name, rest) = line.strip_prefix(before_name)?.split_once(before_value)?;
        let is_name =
            name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        let value = rest.split(['`', '"']).next()?;
        is_name.then(|| (name.to_owned(), value.to_owned()))
    };
    text.lines().filter_map(setting).collect()
}

#[test]
fn every_limit_can_be_set_and_has_the_documented_default() {
    let set = settings("wrangler.toml", " = \"", "");
    let documented = settings("docs/configuration.md", "` | `", "| `");
    let config = fs::read_to_string(
        sources("src/platform").into_iter().find(|file| file.ends_with("mod.rs")).unwrap(),
    )
    .unwrap();
    // Scripts and tests can set only the variables of wrangler.toml.
    let names = words(&config).filter(|word| {
        ["QUOTA_", "LOGIN_FAILURES_", "LOGINS_", "RESETS_"]
            .iter()
            .any(|start| word.starts_with(start))
    });
    let names: BTreeSet<&str> = names.collect();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        assert!(set.contains_key(name), "wrangler.toml has no {name}");
    }
    let differ = |(name, value): &(&String, &String)| {
        !value.is_empty() && documented.get(*name).is_some_and(|shown| shown != *value)
    };
    assert_eq!(set.iter().filter(differ).collect::<Vec<_>>(), []);
    assert!(set.keys().filter(|name| documented.contains_key(*name)).count() > 30);
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
