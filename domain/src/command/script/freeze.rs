//! Freezes the version of the script that a request runs (contract 14.12).

use super::{ScriptRef, ScriptVersion, unknown_script};
use crate::command::inputs::Inputs;
use crate::command::request::CommandSpec;
use crate::error::Error;

impl CommandSpec {
    /// Copies the request with the script that it names, as `found` in D1. The inner result:
    /// whether the script exists and the values of its parameters are valid.
    pub fn frozen(&self, found: Option<&ScriptVersion>) -> (Self, Result<(), Error>) {
        let mut frozen = self.clone();
        let valid = match (&self.script, found) {
            (None, _) => Ok(()),
            (Some(_), None) => Err(unknown_script()),
            (Some(_), Some(version)) => {
                frozen.freeze(version);
                frozen.set_params(version)
            }
        };
        (frozen, valid)
    }

    /// Freezes the version of the script that runs, and sets the line that shows it.
    fn freeze(&mut self, version: &ScriptVersion) {
        self.line = version.line();
        if let Some(call) = &mut self.script {
            (call.version, call.sha256) = (Some(version.version), Some(version.sha256.clone()));
        }
    }

    /// The frozen version of the script that runs.
    pub fn script_ref(&self) -> Option<ScriptRef> {
        let call = self.script.as_ref()?;
        Some(ScriptRef { id: call.script, version: call.version? })
    }

    /// Checks the values of the script's parameters, and adds them to the inputs.
    ///
    /// # Errors
    /// See [`ScriptVersion::variables`].
    fn set_params(&mut self, version: &ScriptVersion) -> Result<(), Error> {
        let Some(call) = &self.script else { return Ok(()) };
        let params = version.variables(&call.params)?;
        self.inputs = Inputs { params, ..self.inputs.take().unwrap_or_default() }.non_empty();
        Ok(())
    }
}
