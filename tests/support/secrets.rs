//! Records every credential that the tests send or receive. After all tests,
//! `tests/security/leaks.rs` searches logs and databases for them.

use std::fs::OpenOptions;
use std::io::Write;

use serde_json::Value;
use uuid::Uuid;

/// Shorter texts are not recorded: they could occur by chance.
const MIN_LENGTH: usize = 12;

/// Appends a secret to the file that `npm test` names. Does nothing if no file is named.
///
/// # Panics
/// If the file cannot be written.
pub fn record(kind: &str, secret: &str) {
    let Ok(path) = std::env::var("FARHAND_SECRETS_SEEN") else { return };
    // A text with `@` was rejected as a password, and may be stored legitimately as an address.
    if secret.len() < MIN_LENGTH || secret.contains(['\n', '\t', '@']) {
        return;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    // A single write, so that concurrent tests do not mix their lines.
    file.write_all(format!("{kind}\t{secret}\n").as_bytes()).unwrap();
}

/// Records the secrets in the JSON body of a request or a response.
pub fn record_in(body: &Value) {
    let Value::Object(fields) = body else { return };
    for (name, value) in fields {
        match (name.as_str(), value) {
            // In a request to `acl-check`, `token` is an id and not a secret.
            ("token", Value::String(id)) if Uuid::try_parse(id).is_ok() => {}
            ("token" | "key" | "password" | "new_password", Value::String(secret)) => {
                record(name, secret)
            }
            (_, Value::Object(_)) => record_in(value),
            _ => {}
        }
    }
}
