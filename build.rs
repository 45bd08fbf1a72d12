//! Converts the OpenAPI document from `docs/openapi.yaml` to the JSON that the Worker serves
//! (contract 9). `npm run openapi` bundles that file from `docs/openapi/`.

use std::error::Error;
use std::path::Path;

const DOCUMENT: &str = "docs/openapi.yaml";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={DOCUMENT}");
    let yaml = std::fs::read_to_string(DOCUMENT)?;
    let mut json = serde_json::Serializer::new(Vec::new());
    // Transcoding keeps the order of the members. A map in between would not.
    serde_saphyr::with_deserializer_from_str(&yaml, |document| {
        serde_transcode::transcode(document, &mut json).map_err(serde::de::Error::custom)
    })?;
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("openapi.json"), json.into_inner())?;
    Ok(())
}
