//! The parts of an access control list, for refusals that name them (contract 4.12).

use std::fmt;

/// The part of an access control list that does not allow a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AclLimit {
    /// `read_only` allows no command.
    ReadOnly,
    /// `servers` does not have the server.
    Servers,
    /// `selector` does not match the server's labels.
    Selector,
    /// `usernames` does not have the account.
    Usernames,
    /// The command has a `groupname`, which lists of accounts or patterns do not cover.
    Group,
    /// The command is a built-in command, which lists of accounts or patterns do not cover.
    Builtin,
    /// The command has inputs, which patterns do not cover.
    Inputs,
    /// No pattern in `commands` matches the line.
    Commands,
    /// No entry of `argv` matches the arguments.
    Argv,
    /// `scripts` does not have the script, or not this version.
    Scripts,
    /// `max_targets` does not allow a batch with so many targets.
    MaxTargets,
}

impl fmt::Display for AclLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadOnly => "read_only allows no command",
            Self::Servers => "servers does not name the server",
            Self::Selector => "selector does not match the server's labels",
            Self::Usernames => "usernames does not name the account",
            Self::Group => {
                "a token with commands, argv, scripts or usernames cannot give groupname"
            }
            Self::Builtin => {
                "a token with commands, argv, scripts or usernames cannot use shell internal"
            }
            Self::Inputs => "a token with commands, argv or scripts cannot give env, stdin or cwd",
            Self::Commands => "no pattern in commands allows the line",
            Self::Argv => "no entry of argv allows the arguments",
            Self::Scripts => "no entry of scripts allows the script and its version",
            Self::MaxTargets => "max_targets does not allow so many targets",
        })
    }
}
