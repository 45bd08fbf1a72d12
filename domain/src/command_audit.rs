//! What the audit log says about the inputs of a command (`docs/audit.md`).

use serde_json::{Value, json};

use crate::audit::{add_ids, cut_line};
use crate::command::CommandSpec;
use crate::error::Error;
use crate::output::sha256;
use crate::script::ScriptCall;
use crate::secret::{Guessable, SecretKey};

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
