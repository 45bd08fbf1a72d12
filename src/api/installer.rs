//! The install script of a workspace, and the agent's files that it downloads (contract 17.1 and
//! 17.2). `scripts/agent-files.mjs` writes the files to `build/assets`.

use farhand_domain::error::Error;
use farhand_domain::fleet::installer;

use crate::http::assets;
use crate::http::request::Call;
use crate::http::response::Reply;

const TEMPLATE: &str = include_str!("../../web/install/install.sh");

/// `GET /install.sh`. The address in the script comes from the configuration. If it came from the
/// Host header, a caller could make a host connect to another service.
///
/// # Errors
/// `FARHAND_RELEASE_KEY` is set and is no public key. A script without the key would install
/// agents without a signature, and a private key must not be published.
pub fn script(call: &Call) -> Result<Reply, Error> {
    let base_url = call.config.base_url_of(call.workspace()?);
    let key = &call.config.release_key;
    if !key.is_empty() && !installer::is_release_key(key) {
        return Err(Error::internal("FARHAND_RELEASE_KEY is not a public key: 32 bytes in base64"));
    }
    let version = env!("CARGO_PKG_VERSION");
    let script = installer::script(TEMPLATE, &base_url, version, key);
    Ok(Reply::file("text/plain; charset=utf-8", &script))
}

/// `GET /agent/<version>/<file>`.
pub async fn agent_file(call: &Call) -> Result<Reply, Error> {
    let (version, file) = (call.parameter("version"), call.parameter("file"));
    let media_type = installer::media_type(version, file).ok_or_else(Error::not_found)?;
    let path = format!("/agent/{version}/{file}");
    assets::find_as(call, &path, media_type).await?.ok_or_else(Error::not_found)
}
