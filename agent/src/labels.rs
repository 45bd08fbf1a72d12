//! Labels that a host asks for when it registers: from `--label`, and from the table `labels` of
//! the config file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use farhand_domain::fleet::labels::{BAD_KEY, BAD_VALUE, is_key, is_value};

/// Labels by key.
pub type Labels = BTreeMap<String, String>;

fn check(key: &str, value: &str) -> Result<(), String> {
    if !is_key(key) {
        return Err(format!("label {key:?}: {BAD_KEY}"));
    }
    if !is_value(value) {
        return Err(format!("label {key:?}: {BAD_VALUE}"));
    }
    Ok(())
}

/// Reads an argument of `--label`.
pub fn read_argument(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    check(key, value)?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Checks the table `labels` of a config file.
pub fn check_all(labels: &Labels) -> Result<(), String> {
    labels.iter().try_for_each(|(key, value)| check(key, value))
}

/// The labels to register with: those of the command line, and those with other keys in an existing
/// config file.
///
/// # Errors
/// A key is twice on the command line, or the file has an invalid label.
pub fn combine(config: &Path, arguments: Vec<(String, String)>) -> Result<Labels, String> {
    let mut labels = of_file(config)?;
    let mut given = Labels::new();
    for (key, value) in arguments {
        if given.contains_key(&key) {
            return Err(format!("label {key:?} is given twice"));
        }
        given.insert(key, value);
    }
    labels.append(&mut given);
    Ok(labels)
}

/// The labels of a config file that a registration replaces. A file that does not exist or is not
/// TOML has none.
fn of_file(path: &Path) -> Result<Labels, String> {
    let table = fs::read_to_string(path).ok().and_then(|text| text.parse::<toml::Table>().ok());
    let Some(labels) = table.and_then(|mut table| table.remove("labels")) else {
        return Ok(Labels::new());
    };
    let labels: Labels = labels
        .try_into()
        .map_err(|_| format!("{}: labels is not a table of texts", path.display()))?;
    check_all(&labels).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(labels)
}

/// The table `labels`, as a config file has it. Keys and values need no escapes.
pub fn to_toml(labels: &Labels) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let lines = labels.iter().map(|(key, value)| format!("\"{key}\" = \"{value}\"\n"));
    format!("[labels]\n{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn arguments() {
        assert_eq!(read_argument("env=prod").unwrap(), pair("env", "prod"));
        assert_eq!(read_argument("a.b/c=").unwrap(), pair("a.b/c", ""));
        for bad in ["env", "=x", "Env=x", "env=a b", "env=a=b", ""] {
            assert!(read_argument(bad).is_err(), "{bad}");
        }
        assert!(
            read_argument("env=ä").unwrap_err().starts_with("label \"env\": Not a valid value")
        );
    }

    #[test]
    fn a_file_and_arguments() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        let of = |arguments: &[(String, String)]| combine(&path, arguments.to_vec());
        assert_eq!(of(&[]).unwrap(), Labels::new(), "there is no file");
        let before = Labels::from([pair("env", "prod"), pair("a.b/c", "")]);
        fs::write(&path, format!("url = \"https://a\"\n{}", to_toml(&before))).unwrap();
        assert_eq!(of(&[]).unwrap(), before);
        let after = Labels::from([pair("env", "test"), pair("a.b/c", ""), pair("role", "web")]);
        assert_eq!(of(&[pair("env", "test"), pair("role", "web")]).unwrap(), after);
        let twice = of(&[pair("env", "a"), pair("env", "a")]).unwrap_err();
        assert_eq!(twice, "label \"env\" is given twice");
        for bad in ["labels = 7", "labels = [\"a\"]", "[labels]\nA = \"x\"", "[labels]\na = 1"] {
            fs::write(&path, bad).unwrap();
            let error = of(&[]).unwrap_err();
            assert!(error.starts_with(path.to_str().unwrap()), "{error}");
        }
        for other in ["not TOML", "url = \"https://a\""] {
            fs::write(&path, other).unwrap();
            assert_eq!(of(&[]).unwrap(), Labels::new(), "{other}");
        }
        assert_eq!(to_toml(&Labels::new()), "");
    }
}
