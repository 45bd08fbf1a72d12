//! Agents: the protocol with scripted agents, and the real agent with real processes.

mod alpamon;
mod connection;
mod lifecycle;
mod protocol;
mod real;
