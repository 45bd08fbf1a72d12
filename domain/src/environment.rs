//! Environment variables of commands (contract 7.3).

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;

use crate::fields::Fields;

/// Environment variables by name.
pub type Environment = BTreeMap<String, String>;

/// Maximum number of environment variables.
const MAX_VARIABLES: usize = 100;
/// Maximum length of the name of an environment variable, in characters.
const MAX_VARIABLE_NAME: usize = 128;
/// Maximum size of the environment: the bytes of all names and values together.
pub const MAX_ENVIRONMENT: usize = 32 * 1024;

/// Reads `env`: an object of strings whose names are valid in a shell.
pub(crate) fn read_environment(fields: &mut Fields) -> Option<Environment> {
    let is_name = |name: &str| {
        let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        first
            && name.len() <= MAX_VARIABLE_NAME
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let problem: Cow<'static, str> = match fields.value("env")? {
        Value::Object(variables) if variables.len() > MAX_VARIABLES => {
            format!("Ensure there are no more than {MAX_VARIABLES} variables.").into()
        }
        Value::Object(variables) => {
            let texts = variables
                .iter()
                .map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
            match texts.collect::<Option<Environment>>() {
                None => "Ensure all values are strings.".into(),
                Some(env) if !env.keys().all(|name| is_name(name)) => {
                    "Names consist of letters, digits and underscores, and do not start with a digit.".into()
                }
                Some(env) if env.values().any(|value| value.contains('\0')) => {
                    "Null characters are not allowed.".into()
                }
                Some(env)
                    if env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_ENVIRONMENT =>
                {
                    format!("Ensure names and values have no more than {MAX_ENVIRONMENT} bytes together.").into()
                }
                Some(env) => return Some(env),
            }
        }
        _ => "Not a valid object.".into(),
    };
    fields.reject("env", problem);
    None
}
