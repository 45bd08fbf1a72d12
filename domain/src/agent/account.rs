//! Names of accounts and groups on a host.

use crate::http::fields::Fields;

/// Maximum length of the name of a remote account or group, in characters.
const MAX_ACCOUNT: usize = 64;

/// Whether a text can be the name of a remote account or group. The empty text is valid, and means
/// no account or group.
pub fn is_account(name: &str) -> bool {
    let is_forbidden = |c: char| c.is_control() || c.is_whitespace() || matches!(c, ':' | '/');
    name.chars().count() <= MAX_ACCOUNT && !name.starts_with('-') && !name.contains(is_forbidden)
}

/// Reads a field with the name of a remote account or group, of at least `min_length` characters.
pub fn read_account(fields: &mut Fields, name: &'static str, min_length: usize) -> Option<String> {
    let account = fields.optional_text(name, min_length..=MAX_ACCOUNT)?;
    if !is_account(&account) {
        fields.reject(name, "Not a valid account name.");
        return None;
    }
    Some(account)
}
