//! The features of an agent that Alpamon lacks. The agent announces them when it connects
//! (agent-protocol 6.1).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::agent::wire::{FEATURE_ARGV, FEATURE_CWD, FEATURE_KILL, FEATURE_SCRIPT, FEATURE_STDIN};

/// A feature that a command can need.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    /// It runs a program with any arguments, without a shell.
    Argv,
    /// It runs a script of any length.
    Script,
    /// It writes to the standard input of a command.
    Stdin,
    /// It runs a command in a given directory.
    Cwd,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Argv => {
                "cannot run arguments that are empty or have other characters than letters, digits and _@%+=:,./-"
            }
            Self::Script => "cannot run scripts of more than 92160 bytes",
            Self::Stdin => "cannot give commands standard input",
            Self::Cwd => "cannot run commands in another directory",
        })
    }
}

/// The features that an agent announced.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Features {
    /// It kills commands, on request and at their timeout.
    pub kill: bool,
    /// It runs a program with any arguments, without a shell.
    pub argv: bool,
    /// It runs a script of any length.
    pub script: bool,
    /// It writes to the standard input of a command.
    pub stdin: bool,
    /// It runs a command in a given directory.
    pub cwd: bool,
}

impl Features {
    /// Reads the header of the handshake: names, separated by commas. Unknown names are ignored.
    pub fn parse(header: &str) -> Self {
        let has =
            |name: &str| header.split(',').any(|feature| feature.trim().eq_ignore_ascii_case(name));
        Self {
            kill: has(FEATURE_KILL),
            argv: has(FEATURE_ARGV),
            script: has(FEATURE_SCRIPT),
            stdin: has(FEATURE_STDIN),
            cwd: has(FEATURE_CWD),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_in_the_header_are_features() {
        assert_eq!(Features::parse(""), Features::default());
        assert_eq!(Features::parse("kills, xargv"), Features::default());
        let some = Features { kill: true, cwd: true, ..Features::default() };
        assert_eq!(Features::parse(" KILL,replay ,cwd"), some);
        assert_eq!(
            serde_json::from_str::<Features>(r#"{"kill":true,"cwd":true,"later":1}"#).unwrap(),
            some
        );
    }
}
