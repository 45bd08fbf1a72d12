//! Chooses the workspace and the token: from `--profile`, or else from FARHAND_URL and
//! FARHAND_TOKEN, or else from the current profile.

use clap::Args;

use crate::address::Address;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::output::Format;
use crate::profile::ProfileFile;

/// Options of every command.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The profile to use, instead of FARHAND_URL and FARHAND_TOKEN or the current profile
    #[arg(long, global = true, value_name = "NAME")]
    pub profile: Option<String>,
    /// How to print results
    #[arg(short, long, global = true, value_enum, default_value = "table", value_name = "FORMAT")]
    pub output: Format,
    /// Allow plain http to other machines. It shows the token to the network
    #[arg(long, global = true)]
    pub insecure_http: bool,
}

pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Options {
    /// A client with the credential from the environment or from a profile.
    pub fn connect(&self) -> Result<Client> {
        if self.profile.is_none() {
            match (variable("FARHAND_URL"), variable("FARHAND_TOKEN")) {
                (Some(url), Some(token)) => {
                    let address = Address::parse(&url, self.insecure_http)?;
                    return Client::new(address, Some(token));
                }
                // A token must not be sent to another workspace than its own.
                (Some(_), None) => {
                    return Err(Error::local("FARHAND_URL is set. Set FARHAND_TOKEN, too."));
                }
                (None, Some(_)) => {
                    return Err(Error::local("FARHAND_TOKEN is set. Set FARHAND_URL, too."));
                }
                (None, None) => {}
            }
        }
        let profiles = ProfileFile::of_user()?.read()?;
        let Some((_, profile)) = profiles.find(self.profile.as_deref()) else {
            return Err(Error::local(match &self.profile {
                Some(name) => format!(
                    "There is no profile {name:?}. Create it with `farhand login --profile {name} --url URL`."
                ),
                None => "You are not logged in. Run `farhand login --url URL`, or set FARHAND_URL and FARHAND_TOKEN.".into(),
            }));
        };
        let address = Address::parse(&profile.url, self.insecure_http || profile.insecure_http)?;
        Client::new(address, Some(profile.token.clone()))
    }
}
