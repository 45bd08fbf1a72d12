//! `farhand-bindgen INPUT OUTPUT`: runs wasm-bindgen on the compiled Worker `INPUT` and writes
//! `index.js` and `index_bg.wasm` into the folder `OUTPUT`.
//!
//! This replaces the program of the package wasm-bindgen-cli, which also contains a test server and
//! an HTTP client with TLS, and takes three times as long to compile.

use anyhow::{Context, bail};
use wasm_bindgen_cli_support::Bindgen;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [input, output] = arguments.as_slice() else {
        bail!("usage: farhand-bindgen INPUT OUTPUT");
    };
    Bindgen::new()
        .input_path(input)
        .out_name("index")
        .typescript(false)
        // An ECMAScript module, which imports the WebAssembly in the source phase.
        .module(true)?
        // Both let the Worker start again after a panic.
        .reset_state_function(true)
        .force_enable_abort_handler(true)
        .generate(output)
        .with_context(|| format!("cannot process {}", input.display()))
}
