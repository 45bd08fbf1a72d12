//! The account that a command runs as (agent-protocol 3.2 and 6.5).
//!
//! As root, the agent runs a command as any account that the order names. It refuses an order
//! without an account, so that a command runs as root only if the order says so. As another
//! account, the agent runs commands as itself only, and refuses every other name.
//!
//! Lookups read the host's account database (NSS). A static binary built for musl reads only
//! `/etc/passwd` and `/etc/group`, so it does not find accounts of a directory service such as
//! LDAP.

use std::ffi::CString;
use std::path::PathBuf;

use nix::unistd::{Gid, Group, Uid, User, getegid, geteuid};

use crate::host::system::getgrouplist;

/// The account that the agent itself runs as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AgentAccount {
    /// The effective user id.
    pub uid: Uid,
    /// The effective group id.
    pub gid: Gid,
}

impl AgentAccount {
    /// Reads the ids of this process.
    pub fn current() -> Self {
        Self { uid: geteuid(), gid: getegid() }
    }
}

/// An account to run a command as.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Account {
    pub name: String,
    pub uid: Uid,
    /// The home directory. It may not exist.
    pub home: PathBuf,
    /// The login shell, for the variable SHELL. A line always runs in `/bin/sh`.
    pub shell: PathBuf,
    /// The ids that the child process takes before it runs the command. It is `None` if the agent
    /// is not root, because the agent then already runs as this account.
    pub child_ids: Option<ChildIds>,
}

/// The ids for a child process. They are looked up before the fork, because a forked process may
/// only make system calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChildIds {
    pub uid: Uid,
    /// The group that the order names, or the account's primary group.
    pub gid: Gid,
    pub groups: Vec<Gid>,
}

/// The only account that the agent can run commands as. Returns `None` if the agent is root, which
/// can use any account, or if the account has no name.
pub fn only_name(own: AgentAccount) -> Option<String> {
    let own = Some(own.uid).filter(|uid| !uid.is_root())?;
    User::from_uid(own).ok().flatten().map(|user| user.name)
}

/// Finds the account `user`. If `group` is not empty, checks that it is one of the account's
/// groups.
///
/// If the agent is not root, `group` is checked but has no effect, because only root can choose the
/// group of a process.
///
/// # Errors
/// The reason why the agent does not run the command as this account, as a sentence for the
/// requester.
pub fn resolve(user: &str, group: &str, own: AgentAccount) -> Result<Account, String> {
    if user.is_empty() {
        return Err("The command names no account to run as.".to_owned());
    }
    if !own.uid.is_root() {
        // The name is compared before any lookup, so that the refusal does not reveal which
        // accounts exist.
        let name =
            User::from_uid(own.uid).map_err(|error| lookup_failed(&error))?.map(|user| user.name);
        if name.as_deref() != Some(user) {
            let own_name = name.unwrap_or_else(|| format!("number {}", own.uid));
            return Err(format!(
                "This agent runs as {own_name} and cannot run a command as {user}."
            ));
        }
    }
    let found = User::from_name(user).map_err(|error| lookup_failed(&error))?;
    let found = found.ok_or_else(|| format!("There is no account {user} on this server."))?;
    let name = CString::new(user).map_err(|_| "The account's name is not valid.".to_owned())?;
    let groups = getgrouplist(&name, found.gid).map_err(|error| lookup_failed(&error))?;
    let gid = if group.is_empty() { found.gid } else { member_of(user, group, &groups)? };
    let child_ids = own.uid.is_root().then_some(ChildIds { uid: found.uid, gid, groups });
    Ok(Account { name: found.name, uid: found.uid, home: found.dir, shell: found.shell, child_ids })
}

/// Returns the id of the group `group`, which must be one of `groups`.
fn member_of(user: &str, group: &str, groups: &[Gid]) -> Result<Gid, String> {
    let found = Group::from_name(group).map_err(|error| lookup_failed(&error))?;
    let found = found.ok_or_else(|| format!("There is no group {group} on this server."))?;
    if groups.contains(&found.gid) {
        Ok(found.gid)
    } else {
        Err(format!("The account {user} is not in the group {group}."))
    }
}

fn lookup_failed(error: &nix::Error) -> String {
    format!("The server's accounts could not be read: {}.", error.desc())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const ROOT: AgentAccount = AgentAccount { uid: Uid::from_raw(0), gid: Gid::from_raw(0) };

    /// An agent that runs as `name`.
    fn own(name: &str) -> AgentAccount {
        let user = User::from_name(name).unwrap().unwrap();
        AgentAccount { uid: user.uid, gid: user.gid }
    }

    fn refused(user: &str, group: &str, own: AgentAccount) -> String {
        resolve(user, group, own).unwrap_err()
    }

    #[test]
    fn root_runs_as_any_account_by_name() {
        let nobody = User::from_name("nobody").unwrap().unwrap();
        let account = resolve("nobody", "", ROOT).unwrap();
        let child_ids = account.child_ids.unwrap();
        assert_eq!((child_ids.uid, child_ids.gid), (nobody.uid, nobody.gid));
        assert!(child_ids.groups.contains(&nobody.gid) && !child_ids.groups.contains(&ROOT.gid));
        assert_eq!((account.name.as_str(), account.home), ("nobody", nobody.dir));
        assert_eq!(resolve("root", "root", ROOT).unwrap().child_ids.unwrap().uid, ROOT.uid);
    }

    #[test]
    fn only_an_agent_without_root_has_a_single_account() {
        assert_eq!(only_name(ROOT), None);
        assert_eq!(only_name(own("nobody")).as_deref(), Some("nobody"));
    }

    #[test]
    fn an_empty_account_is_refused() {
        for own in [ROOT, own("nobody")] {
            assert_eq!(refused("", "", own), "The command names no account to run as.");
        }
    }

    #[test]
    fn an_unknown_account_or_group_is_refused() {
        assert_eq!(
            refused("no-such-user", "", ROOT),
            "There is no account no-such-user on this server."
        );
        assert_eq!(
            refused("nobody", "no-such-group", ROOT),
            "There is no group no-such-group on this server."
        );
        assert!(!refused("a\0b", "", ROOT).is_empty());
        assert!(!refused("nobody", "a\0b", ROOT).is_empty());
    }

    #[test]
    fn a_group_must_be_one_of_the_accounts_groups() {
        assert_eq!(refused("nobody", "root", ROOT), "The account nobody is not in the group root.");
        let nobody = User::from_name("nobody").unwrap().unwrap();
        let group = Group::from_gid(nobody.gid).unwrap().unwrap();
        assert_eq!(
            resolve("nobody", &group.name, ROOT).unwrap().child_ids.unwrap().gid,
            nobody.gid
        );
    }

    #[test]
    fn an_ordinary_account_runs_as_itself_only() {
        let nobody = own("nobody");
        assert_eq!(resolve("nobody", "", nobody).unwrap().child_ids, None);
        for other in ["root", "daemon", "no-such-user"] {
            let expected =
                format!("This agent runs as nobody and cannot run a command as {other}.");
            assert_eq!(refused(other, "", nobody), expected);
        }
        assert_eq!(
            refused("nobody", "root", nobody),
            "The account nobody is not in the group root."
        );
        let nameless =
            AgentAccount { uid: Uid::from_raw(4_000_000), gid: Gid::from_raw(4_000_000) };
        assert_eq!(
            refused("nobody", "", nameless),
            "This agent runs as number 4000000 and cannot run a command as nobody."
        );
    }
}
