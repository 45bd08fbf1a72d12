//! Notes every credential that the tests send or are shown, for the search that comes after them
//! all: `tests/security/leaks.rs`.

use std::fs::OpenOptions;
use std::io::Write;

use serde_json::Value;
use uuid::Uuid;

/// What is shorter is no secret worth the name, and might be found by chance.
const SHORTEST: usize = 12;

/// Notes a secret of some kind in the file that `npm test` names. Without one, nothing is noted.
///
/// # Panics
/// The file cannot be written.
pub fn note(kind: &str, secret: &str) {
    let Ok(path) = std::env::var("FARHAND_SECRETS_SEEN") else { return };
    // What is like an address was refused as a password, and is stored as an address.
    if secret.len() < SHORTEST || secret.contains(['\n', '\t', '@']) {
        return;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    // One write, so that tests side by side do not mix their lines.
    file.write_all(format!("{kind}\t{secret}\n").as_bytes()).unwrap();
}

/// Notes the secrets in the JSON of a request or an answer.
pub fn note_in(body: &Value) {
    let Value::Object(fields) = body else { return };
    for (name, value) in fields {
        match (name.as_str(), value) {
            // In a request for a check of a list, the field holds the token's id.
            ("token", Value::String(id)) if Uuid::try_parse(id).is_ok() => {}
            ("token" | "key" | "password" | "new_password", Value::String(secret)) => {
                note(name, secret)
            }
            (_, Value::Object(_)) => note_in(value),
            _ => {}
        }
    }
}
