//! Checks the references in the repository. A citation of the contract or of the agent protocol
//! must be the number of a heading in `docs/spec/`. A Markdown link to another file of the
//! repository must lead to a file and a heading that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The word that starts a citation, and the document that it cites.
const CITED_DOCUMENTS: [(&str, &str); 2] =
    [("contract", "docs/spec/contract.md"), ("agent-protocol", "docs/spec/agent-protocol.md")];
/// Folders that are not searched: they hold tools, caches, fuzzing inputs and build results.
const SKIPPED_FOLDERS: [&str; 7] =
    [".git", ".tools", ".wrangler", "build", "corpus", "node_modules", "target"];
const EXTENSIONS: [&str; 10] = ["html", "js", "md", "mjs", "rs", "sh", "sql", "toml", "ts", "tsx"];

fn collect_files(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            if !SKIPPED_FOLDERS.iter().any(|skipped| name == *skipped) {
                collect_files(&path, found);
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

/// All text files of the repository: path and text.
fn all_files() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    collect_files(&root(), &mut found);
    found
}

/// The headings of a Markdown text, without the `#` marks.
fn headings(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim())
}

/// The anchors that GitHub gives to the headings of a Markdown text.
fn anchors(text: &str) -> BTreeSet<String> {
    let anchor = |heading: &str| {
        let kept = heading.to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings(text).map(anchor).collect()
}

/// The heading numbers in a citation: `7.8`, `7.8 and 7.9`, `1 to 4`, `4.1, 4.3 and 5`.
fn cited_numbers(mut rest: &str) -> Vec<String> {
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
            [", ", " and ", " to "].iter().find_map(|separator| rest.strip_prefix(separator))
        else {
            return found;
        };
        rest = next;
    }
}

/// Joins the lines of a file without comment marks, so that citations that continue on the next
/// line are found too.
fn one_line(text: &str) -> String {
    let lines =
        text.lines().map(|line| line.trim().trim_start_matches(['/', '!', '*', '#', '-']).trim());
    lines.collect::<Vec<_>>().join(" ")
}

#[test]
fn every_citation_is_the_number_of_a_heading() {
    let files = all_files();
    let mut cited = 0;
    let mut wrong = Vec::new();
    for (word, document) in CITED_DOCUMENTS {
        let document = fs::read_to_string(root().join(document)).unwrap();
        let known: BTreeSet<&str> = headings(&document)
            .map(|heading| heading.split(' ').next().unwrap().trim_end_matches('.'))
            .collect();
        for (path, text) in
            files.iter().filter(|(path, _)| !path.starts_with(root().join("docs/spec")))
        {
            let text = one_line(text).to_lowercase();
            for (at, _) in text.match_indices(&format!("{word} ")) {
                for number in cited_numbers(&text[at + word.len() + 1..]) {
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
fn every_link_within_the_repository_works() {
    let files = all_files();
    let mut links = 0;
    let mut broken = Vec::new();
    for (path, text) in
        files.iter().filter(|(path, _)| path.extension().is_some_and(|own| own == "md"))
    {
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let is_internal = !target.contains("://")
                && !target.starts_with("mailto:")
                && !target.contains([' ', '?', '[']);
            if !is_internal || target.is_empty() {
                continue;
            }
            links += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file =
                if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let exists = match fs::read_to_string(&file) {
                Ok(text) => anchor.is_empty() || anchors(&text).contains(anchor),
                // A folder or a picture.
                Err(_) => file.exists() && anchor.is_empty(),
            };
            if !exists {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(links > 100, "only {links} links were found");
}
