//! Checks of what the benches in `bench/` assume. Timings are measured there and never asserted
//! here.

use tokio::process::Command;

#[tokio::test]
async fn bulk_inserted_commands_equal_those_of_triggers() {
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
