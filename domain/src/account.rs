//! Names of accounts and groups on a host.

use crate::fields::Fields;

/// The longest name of a remote account or group, in characters.
const MAX_ACCOUNT: usize = 64;

/// Whether a text can be the name of a remote account or group; an empty one stands for none.
pub fn is_account(name: &str) -> bool {
    let odd = |c: char| c.is_control() || c.is_whitespace() || matches!(c, ':' | '/');
    name.chars().count() <= MAX_ACCOUNT && !name.starts_with('-') && !name.contains(odd)
}

/// A name of an account or group on a host.
pub fn read_account(fields: &mut Fields, name: &'static str, fewest: usize) -> Option<String> {
    let account = fields.optional_text(name, fewest..=MAX_ACCOUNT)?;
    if !is_account(&account) {
        fields.reject(name, "Not a valid account name.");
        return None;
    }
    Some(account)
}
