//! What replaces the calls on other systems.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;
use nix::unistd::{Gid, Pid, Uid, setgid, setuid};

/// Fails: without `/proc` there are no supervisors, which would need this.
pub fn adopt_orphans() -> nix::Result<()> {
    Err(Errno::ENOSYS)
}

pub fn name_process(_name: &CStr) -> nix::Result<()> {
    Ok(())
}

/// Does nothing. A process that waits for its agent exits when the agent's socket closes.
pub fn die_with_parent(_dies: bool) -> nix::Result<()> {
    Ok(())
}

pub fn close_files(_first: libc::c_uint) -> bool {
    false
}

/// Does nothing. The files that the agent opens have this flag already.
pub fn close_files_on_exec(_first: libc::c_uint) {}

/// Takes the ids of an account. For root, these calls set the saved ids too.
pub fn take_ids(uid: Uid, gid: Gid) -> nix::Result<()> {
    setgid(gid)?;
    setuid(uid)
}

/// Fails, so a command of a policy that needs this does not run.
pub fn forbid_new_privileges() -> nix::Result<()> {
    Err(Errno::ENOSYS)
}

pub fn setgroups(groups: &[Gid]) -> nix::Result<()> {
    let ids = groups.as_ptr().cast::<libc::gid_t>();
    // `Gid` is a transparent wrapper of `gid_t`.
    // SAFETY: the pointer is valid for reads of as many ids.
    Errno::result(unsafe { libc::setgroups(groups.len() as _, ids) }).map(drop)
}

/// The groups of an account.
pub fn getgrouplist(user: &CStr, group: Gid) -> nix::Result<Vec<Gid>> {
    const MAX_GROUPS: libc::c_int = 1024;
    let mut count = MAX_GROUPS;
    let mut ids = vec![0; MAX_GROUPS as usize];
    // The type of an id in this call differs between systems, but not its size.
    // SAFETY: the pointers are valid for writes during the call, the first for `count` ids.
    let result = unsafe {
        libc::getgrouplist(user.as_ptr(), group.as_raw() as _, ids.as_mut_ptr(), &raw mut count)
    };
    if result < 0 {
        return Err(Errno::ERANGE);
    }
    Ok(ids.into_iter().take(count as usize).map(|id| Gid::from_raw(id as _)).collect())
}

/// Whether a child has exited. Does not reap it.
pub fn has_exited(child: Pid) -> bool {
    let id = child.as_raw() as libc::id_t;
    // SAFETY: zeros are valid for this plain C structure.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is valid for writes during the call.
    let result = unsafe { libc::waitid(libc::P_PID, id, &raw mut info, options) };
    // The process number stays zero while the child runs.
    result != 0 || info.si_pid != 0
}

/// Creates a file without a name.
pub fn anonymous_file() -> io::Result<File> {
    let path =
        std::env::temp_dir().join(format!("farhand-{}", uuid::Uuid::from_u128(fastrand::u128(..))));
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}
