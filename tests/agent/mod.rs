//! Agents: the protocol by a scripted one, and the real one with real processes.

mod lifecycle;
mod protocol;
mod real;
