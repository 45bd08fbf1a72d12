//! Agents: the protocol by a scripted one, and the real one with real processes.

mod alpamon;
mod connection;
mod lifecycle;
mod protocol;
mod real;
