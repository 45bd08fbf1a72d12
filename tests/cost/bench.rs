//! What the benches rest on (`bench/`): timings are theirs, and never asserted here.

use tokio::process::Command;

#[tokio::test]
async fn commands_made_by_the_million_are_as_the_triggers_make_them() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let output =
        Command::new("node").arg("bench/data.mjs").current_dir(root).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn wasm_calls_javascript_rarely() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let output =
        Command::new("node").arg("bench/calls.mjs").current_dir(root).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
