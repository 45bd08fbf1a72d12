//! System calls that Linux has and other systems do not.
//!
//! Farhand is tested on Linux only. On other systems the agent compiles. There it finds the
//! processes of a command only while they stay in the command's process group, because it can
//! neither create control groups nor adopt descendants.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub use linux::*;

#[cfg(not(target_os = "linux"))]
mod other;
#[cfg(not(target_os = "linux"))]
pub use other::*;
