//! The documentation site. `npm test -- lint` builds it and fails on a dead link. The build does
//! not check the generated API reference, so these tests do.

use std::collections::{BTreeMap, BTreeSet};

use farhand_tests::PATIENCE;
use farhand_tests::openapi::DOCUMENT;
use tokio::process::Command;

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// The pages of the API reference, by their names.
async fn pages() -> BTreeMap<String, String> {
    let program = "import { referencePages } from './scripts/docs-reference.mjs';
        console.log(JSON.stringify(Object.fromEntries(referencePages().map(({ path, text }) => [path, text]))))";
    let mut command = Command::new("node");
    command.args(["--input-type=module", "-e", program]);
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("it ends").unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let pages: BTreeMap<String, String> = serde_json::from_slice(&output.stdout).unwrap();
    pages
        .into_iter()
        .map(|(path, text)| (path.strip_prefix("reference/").unwrap().to_owned(), text))
        .collect()
}

/// The anchors of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
    headings
        .map(|heading| {
            let heading = heading.trim_start_matches('#').trim();
            match heading.rsplit_once("{#") {
                Some((_, anchor)) => anchor.trim_end_matches('}').to_owned(),
                None => heading.to_lowercase().replace(' ', "-"),
            }
        })
        .collect()
}

#[tokio::test]
async fn the_reference_has_every_operation_and_schema() {
    let pages = pages().await;
    let text: String = pages.values().map(String::as_str).collect();
    let mut missing = Vec::new();
    for part in ["paths", "x-catch-alls"] {
        for (path, item) in DOCUMENT[part].as_object().unwrap() {
            for method in METHODS.iter().filter(|method| item.get(**method).is_some()) {
                let line = format!("**{}** `{path}`", method.to_uppercase());
                if !text.contains(&line) {
                    missing.push(line);
                }
            }
        }
    }
    for name in DOCUMENT["components"]["schemas"].as_object().unwrap().keys() {
        if !text.contains(&format!("{{#schema-{}}}", name.to_lowercase())) {
            missing.push(name.clone());
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[tokio::test]
async fn every_link_of_the_reference_leads_to_an_anchor() {
    let pages = pages().await;
    let mut links = 0;
    let mut broken = Vec::new();
    for (page, text) in &pages {
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()) {
            let Some((file, anchor)) = target.split_once('#') else { continue };
            links += 1;
            let file = if file.is_empty() { page } else { file };
            if !pages.get(file).is_some_and(|text| anchors(text).contains(anchor)) {
                broken.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(links > 500, "only {links} links were found");
}
