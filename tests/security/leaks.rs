//! Contract 4.2: databases and logs contain no usable credential. `npm test` runs this after all
//! end-to-end tests. It searches the state folders (D1, KV, Durable Objects) and the logs of all
//! instances. It searches for every credential that the tests sent or received, and for the secret
//! keys and operator tokens of the instances.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use aho_corasick::AhoCorasick;
use farhand_tests::setting;

/// Files that hold secrets on purpose: the instance's own secrets, those of the demo, and the mails
/// that it would have sent.
const FILES_WITH_SECRETS: [&str; 5] =
    ["secrets.json", "variables.json", "demo.json", "agent.toml", "email-text"];
/// The kinds of secrets that the tests must have recorded, and the minimum number of each.
const MIN_RECORDED: [(&str, usize); 8] = [
    ("token", 50),
    ("key", 100),
    ("password", 5),
    ("new_password", 3),
    ("reset_key", 10),
    ("env", 3),
    ("SECRET_KEY", 5),
    ("OPERATOR_TOKEN", 3),
];
/// Path fragments that must occur among the searched files.
const REQUIRED_PATHS: [&str; 8] = [
    "worker.log",
    "/v3/d1/",
    "/v3/kv/",
    "/v3/do/farhand-ServerLink/",
    "/v3/do/farhand-Throttle/",
    "/v3/do/farhand-Mailer/",
    "/v3/do/farhand-Janitor/",
    "/v3/do/farhand-Batch/",
];

/// Lists all files below a folder: the files to search, and those that hold secrets on purpose.
fn files_below(folder: &Path, found: &mut Vec<PathBuf>, on_purpose: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let is_file = entry.file_type().unwrap().is_file();
        if FILES_WITH_SECRETS.iter().any(|name| path.ends_with(name)) {
            on_purpose.push(path);
        } else if path.is_dir() {
            files_below(&path, found, on_purpose);
        } else if is_file {
            found.push(path);
        }
    }
}

/// The secrets of an instance, by name.
fn secrets_of(file: &Path) -> BTreeMap<String, String> {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

#[test]
fn no_credential_is_stored_or_logged_in_plain_text() {
    let recorded = PathBuf::from(setting("FARHAND_SECRETS_SEEN"));
    let (mut files, mut on_purpose) = (Vec::new(), Vec::new());
    files_below(Path::new(&setting("FARHAND_SEARCHED")), &mut files, &mut on_purpose);
    files.retain(|file| *file != recorded);
    for part in REQUIRED_PATHS {
        assert!(
            files.iter().any(|file| file.to_string_lossy().contains(part)),
            "no file of {part} is searched"
        );
    }

    let mut secrets: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let text = fs::read_to_string(&recorded).unwrap();
    for (kind, secret) in text.lines().map(|line| line.split_once('\t').unwrap()) {
        secrets.entry(kind).or_default().insert(secret);
    }
    let own: Vec<_> = on_purpose
        .iter()
        .filter(|file| file.ends_with("secrets.json"))
        .map(|file| secrets_of(file))
        .collect();
    for (name, secret) in own.iter().flatten() {
        secrets.entry(name).or_default().insert(secret);
    }
    // Markers are stored in plain text on purpose. Finding them proves that the search works.
    let markers = secrets.remove("marker").expect("the tests recorded a marker");
    for (kind, minimum) in MIN_RECORDED {
        let seen = secrets.get(kind).map_or(0, BTreeSet::len);
        assert!(seen >= minimum, "the tests recorded only {seen} secrets of the kind {kind}");
    }
    let patterns: Vec<(&str, &str)> = secrets
        .iter()
        .flat_map(|(kind, secrets)| secrets.iter().map(|secret| (*kind, *secret)))
        .collect();
    let search = AhoCorasick::new(patterns.iter().map(|(_, secret)| secret)).unwrap();
    let markers: Vec<&str> = markers.into_iter().collect();
    let control = AhoCorasick::new(&markers).unwrap();

    let (mut leaks, mut found) = (Vec::new(), BTreeSet::new());
    for file in &files {
        let bytes = fs::read(file).unwrap();
        for hit in search.find_iter(&bytes) {
            let (kind, secret) = patterns[hit.pattern().as_usize()];
            let start: String = secret.chars().take(8).collect();
            leaks.push(format!("{kind} {start}… in {}", file.display()));
        }
        found.extend(control.find_iter(&bytes).map(|hit| markers[hit.pattern().as_usize()]));
    }
    leaks.dedup();
    assert!(leaks.is_empty(), "{leaks:#?}");
    assert_eq!(found.len(), markers.len(), "the search finds every marker");
}
