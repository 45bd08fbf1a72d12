//! What a server must look like (contract 6).

use uuid::Uuid;

use crate::fields::Fields;
use crate::id;
use crate::secret::Secret;

/// The shell commands that start an agent for a server on the host where they are pasted (contract 6).
///
/// They put the key into a file that only its owner can read, as an argument would be seen by everyone on the host.
pub fn install_commands(base_url: &str, server: Uuid, key: &Secret) -> String {
    let key = key.expose();
    format!(
        "umask 077 && cat > farhand-agent.toml <<'END'
url = \"{base_url}\"
id = \"{server}\"
key = \"{key}\"
END
farhand-agent run --config farhand-agent.toml"
    )
}

/// Reads and checks a server's `name`: 1 to 64 of `[a-z0-9-_.]`. What is wrong is noted in `fields`.
///
/// A name of the form of a UUID is refused as well: a command names its server by either, and could not tell them apart.
pub fn read_name(fields: &mut Fields) -> Option<String> {
    let name = fields.text("name", 1..=64)?;
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    if !name.bytes().all(allowed) {
        fields.reject("name", "Use lower-case letters, digits, hyphens, underscores and dots only.");
    } else if id::parse(&name).is_some() {
        fields.reject("name", "A name may not have the form of a UUID.");
    } else {
        return Some(name);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let read = |name: &str| {
            let mut fields = Fields::from_form([("name".to_owned(), name.to_owned())]);
            (read_name(&mut fields).is_some(), fields.finish().is_ok())
        };
        let longest = "a".repeat(64);
        for good in ["a", "web-1", "db_2.example", "1", "-", &longest] {
            assert_eq!(read(good), (true, true), "{good}");
        }
        let too_long = "a".repeat(65);
        for bad in ["", " ", "Web", "a b", "ä", "a/b", "01936d3e-7a00-7000-8000-000000000000", &too_long] {
            assert_eq!(read(bad), (false, false), "{bad}");
        }
    }
}
