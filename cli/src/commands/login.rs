//! `farhand login`: saves a token in a profile.

use std::io::{self, BufRead, Read, Write};

use clap::Args;
use serde_json::json;

use crate::address::Address;
use crate::client::Client;
use crate::connection::{Options, variable};
use crate::error::{Error, Result};
use crate::output::note;
use crate::profile::{DEFAULT_PROFILE, Profile, ProfileFile, TokenKind};
use crate::types::{LoginToken, User};

/// Maximum number of bytes to read as a token. A token has 128 characters (contract 4.2).
const MAX_TOKEN_BYTES: u64 = 1_024;

/// Log in, and save the login in a profile
///
/// Asks for the password on the terminal. The profile is `--profile`, or else the current profile,
/// or else "default".
#[derive(Args)]
pub struct Arguments {
    /// The URL of the workspace. By default, FARHAND_URL or the URL of the profile
    #[arg(long)]
    url: Option<String>,
    /// The username. By default, farhand asks for it
    #[arg(long, short)]
    username: Option<String>,
    /// Read an API token from the standard input, instead of asking for a password
    #[arg(long, conflicts_with = "username")]
    token_stdin: bool,
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<()> {
    let file = ProfileFile::of_user()?;
    let mut profiles = file.read()?;
    let name = options.profile.clone().or_else(|| profiles.current.clone());
    let name = name.unwrap_or_else(|| DEFAULT_PROFILE.to_owned());
    let saved = profiles.profiles.get(&name);
    // A profile that is named takes precedence over the variable, as for all commands.
    let from_environment =
        || variable("FARHAND_URL").filter(|_| options.profile.is_none() || saved.is_none());
    let (url, insecure_http) = match arguments.url.clone().or_else(from_environment) {
        Some(url) => (url, options.insecure_http),
        None => {
            let saved = saved.ok_or_else(|| {
                Error::local(
                    "Name the workspace: `farhand login --url https://acme.eu1.example.com`.",
                )
            })?;
            (saved.url.clone(), options.insecure_http || saved.insecure_http)
        }
    };
    let client = Client::new(Address::parse(&url, insecure_http)?, None)?;
    let (token, kind) = if arguments.token_stdin {
        (read_token(io::stdin().lock())?, TokenKind::Api)
    } else {
        (log_in(&client, arguments.username.as_deref())?, TokenKind::Login)
    };
    let user: User = client.with_token(&token)?.get_json("/api/iam/users/-/")?;
    let url = client.address().origin.clone();
    note(&format!("Logged in to {url} as {}. Profile: {name}.", user.username));
    let profile = Profile { url, username: user.username, token, kind, insecure_http };
    profiles.profiles.insert(name.clone(), profile);
    profiles.current = Some(name);
    file.write(&profiles)
}

fn log_in(client: &Client, username: Option<&str>) -> Result<String> {
    let username = match username {
        Some(username) => username.to_owned(),
        None => ask_username()?,
    };
    let password = rpassword::prompt_password("Password: ").map_err(|error| {
        Error::local(format!(
            "Cannot ask for the password: {error}. Without a terminal, use `--token-stdin`."
        ))
    })?;
    let body = json!({"username": username, "password": password});
    let login: LoginToken = client.post("/api/auth/login/", &body)?.json()?;
    Ok(login.token)
}

fn ask_username() -> Result<String> {
    eprint!("Username: ");
    // Errors are ignored, because the user can type without a prompt.
    let _ = io::stderr().flush();
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    match read {
        Ok(_) if !line.trim().is_empty() => Ok(line.trim().to_owned()),
        _ => Err(Error::local("No username. Name it with `--username`.")),
    }
}

fn read_token(input: impl Read) -> Result<String> {
    let mut token = String::new();
    match input.take(MAX_TOKEN_BYTES).read_to_string(&mut token) {
        Ok(_) if !token.trim().is_empty() => Ok(token.trim().to_owned()),
        _ => Err(Error::local("There is no token on the standard input.")),
    }
}
