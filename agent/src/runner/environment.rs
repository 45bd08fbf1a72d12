//! The environment variables of a command.

use farhand_domain::agent::wire::AgentCommand;
use serde_json::Value;
use tokio::process::Command;

use crate::host::account::Account;

/// The search path for programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Sets the variables that a new login has, then the variables of the order.
pub fn set_environment(
    command: &mut Command,
    account: &Account,
    order: &AgentCommand,
) -> Result<(), String> {
    let is_set = !account.shell.as_os_str().is_empty();
    command
        .env_clear()
        .env("HOME", &account.home)
        .env("USER", &account.name)
        .env("LOGNAME", &account.name)
        .env("SHELL", if is_set { account.shell.as_os_str() } else { "/bin/sh".as_ref() })
        .env("PATH", PATH)
        .env("LANG", "C.UTF-8");
    for (name, value) in order.env.iter().flatten() {
        let Value::String(value) = value else {
            return Err(format!("The environment variable {name} is not a string."));
        };
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err("The environment has an invalid name or value.".to_owned());
        }
        command.env(name, value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nix::unistd::{User, geteuid};
    use serde_json::json;

    use super::*;
    use crate::runner::testing::*;

    #[tokio::test]
    async fn a_command_gets_only_login_and_order_variables() {
        let user = User::from_uid(geteuid()).unwrap().unwrap();
        let env = json!({"COLOUR": "blue", "LANG": "de_DE.UTF-8"}).as_object().cloned();
        let (fin, _) = run(&AgentCommand { env, allow_sh: false, ..order("env") }).await;
        let mut lines: Vec<_> = fin.result.as_deref().unwrap().lines().collect();
        lines.sort_unstable();
        let expected = [
            "COLOUR=blue".to_owned(),
            format!("HOME={}", user.dir.display()),
            "LANG=de_DE.UTF-8".to_owned(),
            format!("LOGNAME={}", user.name),
            format!("PATH={PATH}"),
            format!("SHELL={}", user.shell.display()),
            format!("USER={}", user.name),
        ];
        assert_eq!(lines, expected);
    }
}
