//! The install script for hosts, and the agent's files that it downloads (contract 17.1 and 17.2).

use base64ct::{Base64, Encoding};
use uuid::Uuid;

use crate::secret::Secret;
use crate::shell_words;

/// The architectures of the agents that the service offers.
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];
/// The endings of the files of an agent: the program, its SHA-256 and its signature.
const ENDINGS: [&str; 3] = ["", ".sha256", ".sig"];
/// Maximum length of a version in a path.
const MAX_VERSION: usize = 64;
/// Length of a public Ed25519 key.
const PUBLIC_KEY_BYTES: usize = 32;

/// Whether a text can be the public release key: 32 bytes in base64 (contract 17.3). A file with a
/// private key is longer.
pub fn is_release_key(text: &str) -> bool {
    Base64::decode_vec(text).is_ok_and(|key| key.len() == PUBLIC_KEY_BYTES)
}

/// A workspace's install script. `template` is `web/install/install.sh`. All values come from the
/// configuration, never from the request.
pub fn script(template: &str, base_url: &str, version: &str, release_key: &str) -> String {
    let mut script = template.to_owned();
    for (name, value) in
        [("@SERVICE@", base_url), ("@VERSION@", version), ("@RELEASE_KEY@", release_key)]
    {
        // Only the first occurrence, which is the assignment: a value may contain a name.
        script = script.replacen(name, &shell_words::quoted(&[value.to_owned()]), 1);
    }
    script
}

/// The shell command that installs an agent for a server (contract 6.3).
pub fn install_command(base_url: &str, server: Uuid, key: &Secret) -> String {
    let variables = format!("FARHAND_SERVER={server} FARHAND_KEY={}", key.expose());
    command(base_url, &variables)
}

/// The shell command that installs an agent and registers its host (contract 6.4).
pub fn registration_command(base_url: &str, key: &Secret) -> String {
    command(base_url, &format!("FARHAND_REGISTRATION_TOKEN={}", key.expose()))
}

/// The credential is a variable, because every account of a host can see arguments. The line begins
/// with a blank, because most shells then keep it out of their history.
fn command(base_url: &str, variables: &str) -> String {
    let url = shell_words::quoted(&[format!("{base_url}/install.sh")]);
    format!(" curl -fsSL {url} | {variables} sh")
}

/// The media type of an agent's file, or `None` if an agent has no such file.
pub fn media_type(version: &str, file: &str) -> Option<&'static str> {
    let is_version = version.len() <= MAX_VERSION
        && version.starts_with(|c: char| c.is_ascii_digit())
        && version.bytes().all(|b| b.is_ascii_alphanumeric() || b".-+".contains(&b));
    let rest = file.strip_prefix("farhand-agent-").filter(|_| is_version)?;
    let ending = ARCHITECTURES.iter().find_map(|arch| rest.strip_prefix(arch))?;
    match ending {
        "" => Some("application/octet-stream"),
        _ if ENDINGS.contains(&ending) => Some("text/plain; charset=utf-8"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = "service=@SERVICE@\nversion=@VERSION@\nrelease_key=@RELEASE_KEY@\n";

    #[test]
    fn values_are_words_of_the_shell() {
        let script = |url: &str, key: &str| script(TEMPLATE, url, "0.2.0", key);
        assert_eq!(
            script("https://acme.eu1.example.com", ""),
            "service=https://acme.eu1.example.com\nversion=0.2.0\nrelease_key=''\n"
        );
        assert_eq!(
            script("https://x/$(id)'`;\n", "a@VERSION@"),
            "service='https://x/$(id)'\\''`;\n'\nversion=0.2.0\nrelease_key=a@VERSION@\n"
        );
    }

    #[test]
    fn a_private_key_is_no_release_key() {
        assert!(is_release_key("6kpsY+KcUgq+9VB7Ey7F+ZVHdq6+vnuSQh7qaRRG0iw="));
        // What `openssl genpkey` writes, with and without the lines around it.
        let private = "MC4CAQAwBQYDK2VwBCIEIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH";
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{private}\n-----END PRIVATE KEY-----\n");
        let short = Base64::encode_string(&[1; 31]);
        let line_break = Base64::encode_string(&[1; 32]) + "\n";
        for wrong in ["", "x", private, &pem, &short, &line_break] {
            assert!(!is_release_key(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_value_may_contain_the_name_of_another() {
        let script = script(TEMPLATE, "https://@SERVICE@.example", "1", "k");
        assert!(script.starts_with("service=https://@SERVICE@.example\nversion=1\n"), "{script}");
    }

    #[test]
    fn the_key_is_no_argument_and_not_in_the_history() {
        let key = Secret::new("sesame");
        let command = install_command("https://a b", Uuid::nil(), &key);
        assert_eq!(
            command,
            format!(
                " curl -fsSL 'https://a b/install.sh' | FARHAND_SERVER={} FARHAND_KEY=sesame sh",
                Uuid::nil()
            )
        );
        assert_eq!(
            registration_command("https://a b", &key),
            " curl -fsSL 'https://a b/install.sh' | FARHAND_REGISTRATION_TOKEN=sesame sh"
        );
    }

    #[test]
    fn only_files_of_agents_are_served() {
        for (file, media_type_of_file) in [
            ("farhand-agent-x86_64", Some("application/octet-stream")),
            ("farhand-agent-aarch64", Some("application/octet-stream")),
            ("farhand-agent-x86_64.sha256", Some("text/plain; charset=utf-8")),
            ("farhand-agent-aarch64.sig", Some("text/plain; charset=utf-8")),
            ("farhand-agent-x86_64.key", None),
            ("farhand-agent-x86_64.sha256.sig", None),
            ("farhand-agent-riscv64", None),
            ("farhand-agent", None),
            ("index.html", None),
            ("", None),
        ] {
            assert_eq!(media_type("0.2.0", file), media_type_of_file, "{file}");
        }
        for version in ["0.2.0", "1.0.0-rc.1", "1.0.0+x"] {
            assert!(media_type(version, "farhand-agent-x86_64").is_some(), "{version}");
        }
        let long = "1".repeat(65);
        for version in ["", "..", ".", "latest", "1/../2", "1%2f", "1 ", &long] {
            assert_eq!(media_type(version, "farhand-agent-x86_64"), None, "{version}");
        }
    }
}
