//! `farhand logout`: ends the session, and deletes its profile.

use crate::address::Address;
use crate::client::Client;
use crate::connection::Options;
use crate::error::{Error, Result};
use crate::output::note;
use crate::profile::{ProfileFile, TokenKind};

pub fn execute(options: &Options) -> Result<()> {
    let file = ProfileFile::of_user()?;
    let mut profiles = file.read()?;
    let Some((name, profile)) = profiles.find(options.profile.as_deref()) else {
        return Err(Error::local("There is no such profile. `farhand profiles` lists them."));
    };
    let (name, profile) = (name.to_owned(), profile.clone());
    if profile.kind == TokenKind::Login {
        let address = Address::parse(&profile.url, options.insecure_http || profile.insecure_http)?;
        let client = Client::new(address, Some(profile.token.clone()))?;
        match client.post("/api/auth/logout/", &serde_json::json!({})) {
            // The session has ended already.
            Err(error) if error.has_code("INVALID_TOKEN") => {}
            result => drop(result?),
        }
    }
    profiles.profiles.remove(&name);
    if profiles.current.as_ref() == Some(&name) {
        profiles.current = None;
    }
    file.write(&profiles)?;
    match profile.kind {
        TokenKind::Login => note(&format!("Logged out of {}.", profile.url)),
        TokenKind::Api => note(&format!(
            "Deleted the profile {name}. Its API token is still valid: `farhand tokens delete` deletes tokens."
        )),
    }
    Ok(())
}
