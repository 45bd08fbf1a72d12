//! Contract 4.2: what is stored and logged has no usable credential in it. `npm test` runs this
//! after all end-to-end tests, on the state folders (D1, KV, Durable Objects) and the logs of all
//! instances that they ran, with all the credentials that they sent or were shown, and all the
//! secret keys and operators' tokens of the instances.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use aho_corasick::AhoCorasick;
use farhand_tests::setting;

/// What an instance keeps on purpose, for its owner's eyes only: its own secrets, those of the
/// demo, and the mails that it would have sent.
const ON_PURPOSE: [&str; 5] =
    ["secrets.json", "variables.json", "demo.json", "agent.toml", "email-text"];
/// The kinds of secrets that the tests must have noted, and how many of each at least.
const KINDS: [(&str, usize); 8] = [
    ("token", 50),
    ("key", 100),
    ("password", 5),
    ("new_password", 3),
    ("reset_key", 10),
    ("env", 3),
    ("SECRET_KEY", 5),
    ("OPERATOR_TOKEN", 3),
];
/// Some of what must be among that which is searched.
const SEARCHED: [&str; 7] = [
    "worker.log",
    "/v3/d1/",
    "/v3/kv/",
    "/v3/do/farhand-ServerLink/",
    "/v3/do/farhand-Throttle/",
    "/v3/do/farhand-Mailer/",
    "/v3/do/farhand-Janitor/",
];

/// All files below a folder: those that are searched, and those that hold secrets on purpose.
fn files_below(folder: &Path, found: &mut Vec<PathBuf>, on_purpose: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let is_file = entry.file_type().unwrap().is_file();
        if ON_PURPOSE.iter().any(|name| path.ends_with(name)) {
            on_purpose.push(path);
        } else if path.is_dir() {
            files_below(&path, found, on_purpose);
        } else if is_file {
            found.push(path);
        }
    }
}

/// The secrets of an instance, by their names.
fn secrets_of(file: &Path) -> BTreeMap<String, String> {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

#[test]
fn no_credential_is_stored_or_logged_in_clear() {
    let noted = PathBuf::from(setting("FARHAND_SECRETS_SEEN"));
    let (mut files, mut on_purpose) = (Vec::new(), Vec::new());
    files_below(Path::new(&setting("FARHAND_SEARCHED")), &mut files, &mut on_purpose);
    files.retain(|file| *file != noted);
    for part in SEARCHED {
        assert!(
            files.iter().any(|file| file.to_string_lossy().contains(part)),
            "{part} is among what is searched"
        );
    }

    let mut secrets: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let text = fs::read_to_string(&noted).unwrap();
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
    // Texts that are stored in clear, so that a search that finds nothing at all is noticed.
    let markers = secrets.remove("marker").expect("the tests noted what can be found");
    for (kind, fewest) in KINDS {
        let seen = secrets.get(kind).map_or(0, BTreeSet::len);
        assert!(seen >= fewest, "the tests noted {seen} of {kind}");
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
    assert_eq!(found.len(), markers.len(), "what is stored in clear is found");
}
