//! What a command, a batch or a schedule runs: a line, a program or a script, and how.

use std::io::{self, Read};

use clap::Args;
use serde_json::{Map, Value, json};

use super::{lookup, typed};
use crate::client::{Client, segment};
use crate::error::{Error, Result};
use crate::time;
use crate::types::ScriptVersion;

/// Maximum size of `stdin` (contract 7.3).
const MAX_STDIN_BYTES: u64 = 64 * 1024;

#[derive(Args)]
pub struct Task {
    /// The account on the server
    #[arg(long = "as", value_name = "ACCOUNT")]
    account: Option<String>,
    /// The group on the server
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// The folder to run in
    #[arg(long, value_name = "FOLDER")]
    cwd: Option<String>,
    /// An environment variable: NAME takes its value from this shell, NAME=VALUE sets it. May be
    /// repeated
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Send the standard input, at most 64 KiB of UTF-8
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Kill the command after this time: 90s, 30m, 2h. The service's default is 30m
    #[arg(long, value_name = "TIME", value_parser = time::parse_seconds)]
    timeout: Option<u64>,
    /// Run the program without a shell. Needs an agent with the feature `argv`
    #[arg(long, conflicts_with = "script")]
    no_shell: bool,
    /// Run this script, by its name or id, instead of a command
    #[arg(long, value_name = "SCRIPT")]
    script: Option<String>,
    /// The version of the script. The default is the latest
    #[arg(long, value_name = "N", requires = "script", conflicts_with = "command")]
    script_version: Option<u32>,
    /// The value of a parameter of the script. May be repeated
    #[arg(
        long = "param",
        value_name = "NAME=VALUE",
        requires = "script",
        conflicts_with = "command"
    )]
    params: Vec<String>,
    /// The command
    #[arg(
        last = true,
        required_unless_present = "script",
        conflicts_with = "script",
        value_name = "COMMAND"
    )]
    command: Vec<String>,
}

impl Task {
    /// The fields of the request.
    pub fn fields(&self, client: &Client) -> Result<Map<String, Value>> {
        let mut fields = Map::new();
        match &self.script {
            Some(script) => self.add_script(client, script, &mut fields)?,
            None if self.no_shell => _ = fields.insert("argv".into(), json!(self.command)),
            None => _ = fields.insert("line".into(), json!(line(&self.command))),
        }
        let texts = [("username", &self.account), ("groupname", &self.group), ("cwd", &self.cwd)];
        for (name, value) in texts {
            fields.extend(value.as_ref().map(|value| (name.to_owned(), json!(value))));
        }
        if !self.env.is_empty() {
            let variables =
                self.env.iter().map(|text| variable(text)).collect::<Result<Map<_, _>>>()?;
            fields.insert("env".into(), Value::Object(variables));
        }
        if self.stdin {
            fields.insert("stdin".into(), json!(read_input(io::stdin().lock())?));
        }
        fields.extend(self.timeout.map(|seconds| ("timeout".to_owned(), json!(seconds))));
        Ok(fields)
    }

    fn add_script(
        &self,
        client: &Client,
        script: &str,
        fields: &mut Map<String, Value>,
    ) -> Result<()> {
        let id = lookup::script_id(client, script)?;
        if !self.params.is_empty() {
            let mut path = format!("/api/events/scripts/{}/", segment(&id));
            if let Some(version) = self.script_version {
                path.push_str(&format!("versions/{version}/"));
            }
            let declared: ScriptVersion = typed(&client.get_json(&path)?)?;
            let values = self.params.iter().map(|text| parameter(text, &declared));
            fields.insert("params".into(), Value::Object(values.collect::<Result<_>>()?));
        }
        fields.extend(self.script_version.map(|version| ("script_version".into(), json!(version))));
        fields.insert("script".into(), json!(id));
        Ok(())
    }
}

/// Parses `NAME=VALUE`. The value has the type that the script declares. A value of another type
/// stays text, and the service refuses it by name.
fn parameter(text: &str, script: &ScriptVersion) -> Result<(String, Value)> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(Error::local(format!("The parameter {text:?} has no value. Use NAME=VALUE.")));
    };
    let declared = script.params.iter().find(|parameter| parameter.name == name);
    let typed = match declared.map(|parameter| parameter.r#type.as_str()) {
        Some("integer") => value.parse::<i64>().ok().map(Value::from),
        Some("boolean") => value.parse::<bool>().ok().map(Value::from),
        _ => None,
    };
    Ok((name.to_owned(), typed.unwrap_or_else(|| json!(value))))
}

/// The line for the shell. A single word is the line itself. Several words are quoted, so that the
/// program receives them unchanged.
pub fn line(words: &[String]) -> String {
    match words {
        [line] => line.clone(),
        words => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Parses `NAME=VALUE`, or looks up the value of `NAME` in farhand's own environment.
fn variable(text: &str) -> Result<(String, Value)> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), json!(value))),
        None => match std::env::var(text) {
            Ok(value) => Ok((text.to_owned(), json!(value))),
            Err(_) => Err(Error::local(format!(
                "The variable {text} is not set here. Set it, or use {text}=VALUE."
            ))),
        },
    }
}

fn read_input(input: impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    let read = input.take(MAX_STDIN_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::local(format!("Cannot read the standard input: {error}.")))?;
    if bytes.len() as u64 > MAX_STDIN_BYTES {
        return Err(Error::local("The standard input is longer than 64 KiB. Nothing was run."));
    }
    String::from_utf8(bytes)
        .map_err(|_| Error::local("The standard input is not UTF-8. Nothing was run."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_is_a_line_and_several_words_are_quoted() {
        let words =
            |words: &[&str]| line(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(words(&["ps aux | grep x"]), "ps aux | grep x");
        assert_eq!(words(&["systemctl", "restart", "nginx"]), "systemctl restart nginx");
        assert_eq!(
            words(&["echo", "a b", "it's", "", "$HOME"]),
            r"echo 'a b' 'it'\''s' '' '$HOME'"
        );
    }

    #[test]
    fn input_has_a_limit() {
        assert_eq!(read_input(&b"abc"[..]).unwrap(), "abc");
        let whole = vec![b'a'; 64 * 1024];
        assert_eq!(read_input(&whole[..]).unwrap().len(), 64 * 1024);
        let longer = [&whole[..], b"b"].concat();
        assert!(read_input(&longer[..]).unwrap_err().to_string().contains("64 KiB"));
        assert!(read_input(&b"\xff"[..]).is_err());
    }

    #[test]
    fn parameters_have_the_declared_types() {
        let params = json!({"params": [
            {"name": "N", "type": "integer", "required": true},
            {"name": "B", "type": "boolean", "required": true},
            {"name": "S", "type": "string", "required": true},
        ]});
        let script: ScriptVersion = serde_json::from_value(params).unwrap();
        let value = |text: &str| parameter(text, &script).unwrap().1;
        assert_eq!((value("N=-6"), value("B=true")), (json!(-6), json!(true)));
        assert_eq!(
            (value("S=6"), value("S=a=b"), value("S=")),
            (json!("6"), json!("a=b"), json!(""))
        );
        // The service names the parameter in its error.
        assert_eq!(
            (value("N=x"), value("B=1"), value("X=1")),
            (json!("x"), json!("1"), json!("1"))
        );
        assert!(parameter("S", &script).is_err());
    }
}
