//! The calls on Linux.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;

use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Gid, Pid, Uid, setresgid, setresuid};

pub use nix::unistd::{getgrouplist, setgroups};

/// Makes the calling process the new parent of orphaned descendants.
pub fn adopt_orphans() -> nix::Result<()> {
    prctl::set_child_subreaper(true)
}

/// Names the calling process.
pub fn name_process(name: &CStr) -> nix::Result<()> {
    prctl::set_name(name)
}

/// Sets whether the calling process is killed if its parent dies.
pub fn die_with_parent(dies: bool) -> nix::Result<()> {
    prctl::set_pdeathsig(dies.then_some(Signal::SIGKILL))
}

/// Closes all files from `first` on. Returns false on Linux before 5.9.
pub fn close_files(first: libc::c_uint) -> bool {
    // SAFETY: this system call takes only integers.
    unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) == 0 }
}

/// Marks all files from `first` on as close-on-exec. Has no effect on Linux before 5.11.
pub fn close_files_on_exec(first: libc::c_uint) {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: this system call takes only integers.
    unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, flags) };
}

/// Takes the ids of an account.
pub fn take_ids(uid: Uid, gid: Gid) -> nix::Result<()> {
    // The user changes last, because an ordinary user may not change groups.
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)
}

/// Keeps this process and its descendants from getting more permissions by executing a program with
/// a set-user-ID bit or capabilities, such as sudo.
pub fn forbid_new_privileges() -> nix::Result<()> {
    prctl::set_no_new_privs()
}

/// Whether a child has exited. Does not reap it.
pub fn has_exited(child: Pid) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::Pid(child), flags) != Ok(WaitStatus::StillAlive)
}

/// Creates an anonymous file.
pub fn anonymous_file() -> io::Result<File> {
    // SAFETY: the name is a constant. The result is checked before it is used as a file.
    let fd = unsafe { libc::memfd_create(c"stdin".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}
