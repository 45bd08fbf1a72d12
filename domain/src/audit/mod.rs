//! The audit log: its events, and the chain that shows changes of them.

pub mod chain;
pub mod event;
