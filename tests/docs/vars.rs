//! Compares the vars of `wrangler.toml` with the documents that list them.

use std::path::Path;

fn read(path: &str) -> String {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// The names of the settings `NAME = "…"`, in order.
fn settings(text: &str) -> Vec<&str> {
    let names = text.lines().filter_map(|line| line.trim_start().split_once(" = \""));
    let is_var = |name: &&str| name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    names.map(|(name, _)| name).filter(is_var).collect()
}

#[test]
fn the_documents_list_every_var() {
    let file = read("wrangler.toml");
    let vars = settings(&file);
    assert!(vars.contains(&"SERVICE_DOMAIN") && vars.len() > 30, "{vars:?}");
    let configuration = read("docs/configuration.md");
    // Environments of wrangler.toml do not inherit vars, so the example must have all of them.
    let deploying = read("docs/deploying.md");
    let example = deploying.split("[env.eu1.vars]").nth(1).unwrap();
    let listed = settings(example.split("[[env.eu1.send_email]]").next().unwrap());
    for var in &vars {
        assert!(configuration.contains(&format!("| `{var}` | ")), "configuration.md: {var}");
        assert!(listed.contains(var), "deploying.md: {var}");
    }
    assert_eq!(listed.len(), vars.len(), "deploying.md has {listed:?}");
}
