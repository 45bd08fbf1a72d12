//! Agents: the protocol with scripted agents, an emulated Alpamon, and the project's agent with
//! real processes.

mod alpamon;
mod connection;
mod install;
mod lifecycle;
mod protocol;
mod real;
mod upgrade;
