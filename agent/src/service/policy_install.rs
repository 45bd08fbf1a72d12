//! The policy that `install` writes to a host without one (agent-protocol 7.3).

use std::fs;
use std::path::Path;

use farhand_domain::agent::wire::PolicyMode;

use crate::service::config_file::Draft;
use crate::upgrade::release::ReleaseKey;

/// The environment variable with the mode of the policy.
pub const MODE_VARIABLE: &str = "FARHAND_POLICY";
/// The built-ins of a policy that limits built-ins.
const BUILTINS: &str = r#""ping", "version", "restart""#;

/// Parses the value of [`MODE_VARIABLE`]. Returns `None` if the value is empty.
///
/// # Errors
/// The value is no mode that `install` can write.
pub fn parse_mode(value: &str) -> Result<Option<PolicyMode>, String> {
    let modes = [PolicyMode::Open, PolicyMode::Accounts, PolicyMode::Argv];
    match modes.into_iter().find(|mode| mode.as_str() == value) {
        None if !value.is_empty() => {
            Err(format!("{MODE_VARIABLE}: {value:?} is not open, accounts or argv"))
        }
        found => Ok(found),
    }
}

/// The text of a new policy. `allows_upgrade`: the agent has a release key, so it can verify the
/// upgrades that the service asks for.
fn text(mode: PolicyMode, allows_upgrade: bool) -> String {
    let template = match mode {
        PolicyMode::Accounts => include_str!("../../policies/accounts.toml"),
        PolicyMode::Argv => include_str!("../../policies/argv.toml"),
        _ => include_str!("../../policies/open.toml"),
    };
    let upgrade = if allows_upgrade { r#", "upgrade""# } else { "" };
    template.replace("@INTERNAL@", &format!("{BUILTINS}{upgrade}"))
}

/// Writes the policy of a mode to `path`, unless a file is there. Without a mode, the policy is
/// open. Returns a line to print.
///
/// # Errors
/// The file could not be written.
pub fn write(path: &Path, mode: Option<PolicyMode>) -> Result<Option<String>, String> {
    let shown = path.display();
    if fs::symlink_metadata(path).is_ok() {
        let stays =
            || format!("the policy {shown} exists and stays: {MODE_VARIABLE} has no effect");
        return Ok(mode.map(|_| stays()));
    }
    let chosen = mode.unwrap_or(PolicyMode::Open);
    let text = text(chosen, ReleaseKey::built_in().is_ok());
    Draft::begin(path, false)?.readable_by_all()?.finish(&text)?;
    let meaning = match chosen {
        PolicyMode::Accounts => "no command runs as root",
        PolicyMode::Argv => "nothing runs until you list it there",
        _ => "it limits nothing",
    };
    let hint = match mode {
        Some(_) => String::new(),
        None => format!(
            "; edit it to limit what the service can run, or install a new host with {MODE_VARIABLE}=accounts or argv"
        ),
    };
    Ok(Some(format!("the policy is {shown}, mode {}: {meaning}{hint}", chosen.as_str())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::runner::policy::{Policy, Trust};

    const MODES: [PolicyMode; 3] = [PolicyMode::Open, PolicyMode::Accounts, PolicyMode::Argv];

    #[test]
    fn only_the_three_modes_can_be_chosen() {
        assert_eq!(parse_mode(""), Ok(None));
        for mode in MODES {
            assert_eq!(parse_mode(mode.as_str()), Ok(Some(mode)));
        }
        for bad in ["Open", "none", "custom", " open", "off"] {
            let why = parse_mode(bad).unwrap_err();
            assert!(why.contains("is not open, accounts or argv"), "{why}");
        }
    }

    #[test]
    fn each_mode_writes_a_policy_of_this_mode() {
        let folder = tempfile::tempdir().unwrap();
        for mode in MODES {
            for allows_upgrade in [false, true] {
                let path = folder.path().join("policy.toml");
                fs::write(&path, text(mode, allows_upgrade)).unwrap();
                let policy = Policy::read_one(&path, Trust::Draft).unwrap();
                assert_eq!(policy.mode(), mode);
                for builtin in ["ping", "version", "restart"] {
                    assert!(policy.check_builtin(builtin).is_ok(), "{mode:?} {builtin}");
                }
                let is_listed = allows_upgrade && mode != PolicyMode::Open;
                assert_eq!(policy.check_builtin("upgrade").is_ok(), is_listed, "{mode:?}");
                assert_eq!(policy.check_builtin("other").is_ok(), mode == PolicyMode::Open);
            }
        }
    }

    #[test]
    fn an_existing_policy_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("etc/policy.toml");
        let line = write(&path, None).unwrap().unwrap();
        assert!(line.contains("mode open: it limits nothing; edit it"), "{line}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
        fs::write(&path, "max_timeout = 7").unwrap();
        assert_eq!(write(&path, None), Ok(None));
        let line = write(&path, Some(PolicyMode::Accounts)).unwrap().unwrap();
        assert!(line.contains("exists and stays"), "{line}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "max_timeout = 7");
        // A link whose target does not exist is a file too.
        let link = folder.path().join("link.toml");
        std::os::unix::fs::symlink("/no/such/file", &link).unwrap();
        assert_eq!(write(&link, None), Ok(None));
        fs::remove_file(&path).unwrap();
        let line = write(&path, Some(PolicyMode::Accounts)).unwrap().unwrap();
        assert!(line.ends_with("mode accounts: no command runs as root"), "{line}");
        assert!(fs::read_to_string(&path).unwrap().contains("deny_accounts = [\"root\"]"));
    }
}
