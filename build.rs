//! Makes the OpenAPI document that the Worker serves, as JSON, of the one that people write, as
//! YAML.

use std::error::Error;
use std::path::Path;

const DOCUMENT: &str = "docs/openapi.yaml";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={DOCUMENT}");
    let yaml = std::fs::read_to_string(DOCUMENT)?;
    let mut json = serde_json::Serializer::new(Vec::new());
    // From one to the other, so that everything stays in its order.
    serde_saphyr::with_deserializer_from_str(&yaml, |document| {
        serde_transcode::transcode(document, &mut json).map_err(serde::de::Error::custom)
    })?;
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("openapi.json"), json.into_inner())?;
    Ok(())
}
