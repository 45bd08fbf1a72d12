//! The inputs of a command in addition to its line: environment variables, standard input and
//! working directory (contract 7.3).

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::http::fields::Fields;

/// Environment variables by name.
pub type Environment = BTreeMap<String, String>;

/// Maximum length of `stdin`, in bytes.
const MAX_STDIN: usize = 64 * 1024;
/// Maximum length of `cwd`, in bytes: the limit of Linux.
const MAX_CWD: usize = 4_095;
/// Maximum number of environment variables.
const MAX_VARIABLES: usize = 100;
/// Maximum length of the name of an environment variable, in characters.
const MAX_VARIABLE_NAME: usize = 128;
/// Maximum size of the environment: the bytes of all names and values together.
pub const MAX_ENVIRONMENT: usize = 32 * 1024;

/// The inputs of a command in addition to its line. The API never returns them, and the service
/// deletes them when the command is delivered or ends.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Inputs {
    /// Additional environment variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Environment>,
    /// The standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// The working directory; `None`: the account's home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The environment variables that pass the parameters of a script. Patterns of an access
    /// control list do not refuse them, so they do not count as
    /// [`crate::command::request::Origin::has_inputs`].
    #[serde(default, skip_serializing_if = "Environment::is_empty")]
    pub params: Environment,
}

impl Inputs {
    /// Returns `None` if no input is set.
    pub fn non_empty(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }
}

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

/// Reads `stdin`: any text of at most [`MAX_STDIN`] bytes.
pub(crate) fn read_stdin(fields: &mut Fields) -> Option<String> {
    let problem: Cow<'static, str> = match fields.value("stdin")? {
        Value::String(text) if text.len() > MAX_STDIN => {
            format!("Ensure this field has no more than {MAX_STDIN} bytes.").into()
        }
        Value::String(text) => return Some(text.clone()),
        _ => "Not a valid string.".into(),
    };
    fields.reject("stdin", problem);
    None
}

/// Reads `cwd`: an absolute path.
pub(crate) fn read_cwd(fields: &mut Fields) -> Option<String> {
    let problem: Cow<'static, str> = match fields.value("cwd")? {
        Value::String(path) if path.contains('\0') => "Null characters are not allowed.".into(),
        Value::String(path) if !path.starts_with('/') => "Enter an absolute path.".into(),
        Value::String(path) if path.len() > MAX_CWD => {
            format!("Ensure this field has no more than {MAX_CWD} bytes.").into()
        }
        Value::String(path) => return Some(path.clone()),
        _ => "Not a valid string.".into(),
    };
    fields.reject("cwd", problem);
    None
}
