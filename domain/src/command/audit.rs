//! What the audit log says about the inputs of a command (`docs/audit.md`).

use serde_json::{Value, json};

use crate::audit::event::{add_ids, cut_line, shorten_denial};
use crate::command::request::CommandSpec;
use crate::command::script::ScriptCall;
use crate::error::Error;
use crate::hash::sha256;
use crate::secret::{Guessable, SecretKey};

/// The details for the audit event of a refusal, from those that the event of the accepted request
/// would have: a keyed hash instead of the names of variables, which the caller chooses.
pub fn denial_details(mut details: Value, key: &SecretKey) -> Value {
    let Value::Object(members) = &mut details else { return details };
    for name in ["env", "params"] {
        if let Some(names) = members.remove(name) {
            let hash = key.hash(Guessable::Environment, &names.to_string());
            members.insert(format!("{name}_names_hmac"), json!(hash));
        }
    }
    shorten_denial(details)
}

impl CommandSpec {
    /// The details of an audit event about what runs. They contain the names of the environment
    /// variables and a keyed hash of their values, and the length and a hash of the standard input.
    /// The parameters of a script are treated as environment variables.
    ///
    /// # Errors
    /// None in practice: an environment can be written as JSON.
    pub fn audit_details(&self, key: &SecretKey) -> Result<Value, Error> {
        let mut details = json!({
            "shell": self.shell.as_str(),
            "line": cut_line(&self.line),
            "line_sha256": sha256(&self.line),
            "line_length": self.line.chars().count(),
            "username": self.username,
            "groupname": self.groupname,
            "timeout": self.timeout,
        });
        if let Some(ScriptCall { script, version, sha256, .. }) = &self.script {
            details["script"] = json!({"id": script, "version": version, "sha256": sha256});
        }
        let Some(inputs) = &self.inputs else { return Ok(details) };
        if let Some(stdin) = &inputs.stdin {
            (details["stdin_bytes"], details["stdin_sha256"]) =
                (json!(stdin.len()), json!(sha256(stdin)));
        }
        if let Some(cwd) = &inputs.cwd {
            details["cwd"] = json!(cwd);
        }
        let params = Some(&inputs.params).filter(|params| !params.is_empty());
        for (name, variables) in [("env", inputs.env.as_ref()), ("params", params)] {
            let Some(variables) = variables else { continue };
            add_ids(&mut details, name, &variables.keys().collect::<Vec<_>>());
            let text = serde_json::to_string(variables)?;
            details[format!("{name}_hmac")] = json!(key.hash(Guessable::Environment, &text));
        }
        Ok(details)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::event::MAX_DENIAL_BYTES;
    use crate::command::inputs::Inputs;
    use crate::command::request::Shell;

    #[test]
    fn a_refusal_has_no_names_of_variables() {
        let key = SecretKey::new(&"x".repeat(32), "").unwrap();
        let env = |number: usize| (0..number).map(|n| (format!("{n:0128}"), "v".repeat(200)));
        let spec = |number| CommandSpec {
            shell: Shell::System,
            line: "é".repeat(16_000),
            argv: None,
            script: None,
            username: Some("u".repeat(200)),
            groupname: "g".repeat(200),
            timeout: 3_600,
            inputs: Some(Inputs {
                env: Some(env(number).collect()),
                cwd: Some("c".repeat(4_000)),
                stdin: Some("s".repeat(60_000)),
                ..Inputs::default()
            }),
        };
        let details = |number| denial_details(spec(number).audit_details(&key).unwrap(), &key);
        let hundred = details(100);
        assert!(hundred.to_string().len() < MAX_DENIAL_BYTES, "{hundred}");
        assert_eq!((&hundred["env"], &hundred["env_total"]), (&Value::Null, &json!(100)));
        assert_eq!(hundred["line_sha256"], json!(sha256(&"é".repeat(16_000))));
        assert_eq!(hundred["line_length"], 16_000);
        let names = |number| details(number)["env_names_hmac"].clone();
        assert!(names(1).is_string() && names(1) == names(1) && names(1) != names(2));
        assert_eq!(denial_details(json!({"line": "id"}), &key), json!({"line": "id"}));
    }
}
