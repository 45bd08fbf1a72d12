//! Citations of the contract and of the agent protocol: each one is the number of a heading in
//! `docs/spec/`. In Markdown, links within the repository lead to a file and a heading that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The documents that are cited, by the word that cites them.
const CITED: [(&str, &str); 2] =
    [("contract", "docs/spec/contract.md"), ("agent-protocol", "docs/spec/agent-protocol.md")];
/// What has no text of ours.
const LEFT_OUT: [&str; 7] =
    [".git", ".tools", ".wrangler", "build", "corpus", "node_modules", "target"];
const EXTENSIONS: [&str; 8] = ["html", "js", "md", "mjs", "rs", "sql", "toml", "ts"];

fn below(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            if !LEFT_OUT.iter().any(|left_out| name == *left_out) {
                below(&path, found);
            }
        } else if path
            .extension()
            .is_some_and(|own| EXTENSIONS.iter().any(|extension| own == *extension))
        {
            found.push((path.clone(), fs::read_to_string(&path).unwrap()));
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The texts of the repository, with their paths.
fn texts() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    below(&root(), &mut found);
    found
}

/// The headings of a document, without the signs.
fn headings(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim())
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let anchor = |heading: &str| {
        let kept = heading.to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings(text).map(anchor).collect()
}

/// The numbers after a citing word: `7.8`, `7.8 and 7.9`, `1 to 4`, `4.1, 4.3 and 5`.
fn numbers(mut rest: &str) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        let number: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        let number = number.trim_end_matches('.');
        if number.is_empty() {
            return found;
        }
        found.push(number.to_owned());
        rest = &rest[number.len()..];
        let Some(next) =
            [", ", " and ", " to "].iter().find_map(|between| rest.strip_prefix(between))
        else {
            return found;
        };
        rest = next;
    }
}

/// A file's text without the marks of comments, as one line, so that a citation may be broken
/// between lines.
fn one_line(text: &str) -> String {
    let lines =
        text.lines().map(|line| line.trim().trim_start_matches(['/', '!', '*', '#', '-']).trim());
    lines.collect::<Vec<_>>().join(" ")
}

#[test]
fn every_citation_is_a_heading() {
    let files = texts();
    let mut cited = 0;
    let mut wrong = Vec::new();
    for (word, document) in CITED {
        let document = fs::read_to_string(root().join(document)).unwrap();
        let known: BTreeSet<&str> = headings(&document)
            .map(|heading| heading.split(' ').next().unwrap().trim_end_matches('.'))
            .collect();
        for (path, text) in
            files.iter().filter(|(path, _)| !path.starts_with(root().join("docs/spec")))
        {
            let text = one_line(text).to_lowercase();
            for (at, _) in text.match_indices(&format!("{word} ")) {
                for number in numbers(&text[at + word.len() + 1..]) {
                    cited += 1;
                    if !known.contains(number.as_str()) {
                        wrong.push(format!("{}: {word} {number}", path.display()));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(cited > 250, "only {cited} citations were found");
}

#[test]
fn every_link_within_the_repository_leads_somewhere() {
    let files = texts();
    let mut links = 0;
    let mut broken = Vec::new();
    for (path, text) in
        files.iter().filter(|(path, _)| path.extension().is_some_and(|own| own == "md"))
    {
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let is_ours = !target.contains("://")
                && !target.starts_with("mailto:")
                && !target.contains([' ', '?', '[']);
            if !is_ours || target.is_empty() {
                continue;
            }
            links += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file =
                if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let is_there = match fs::read_to_string(&file) {
                Ok(text) => anchor.is_empty() || anchors(&text).contains(anchor),
                Err(_) => file.is_dir() && anchor.is_empty(),
            };
            if !is_there {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(links > 100, "only {links} links were found");
}
