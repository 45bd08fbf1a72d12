//! What the service and the agents exchange: messages, features, and names of accounts on a host.

pub mod account;
pub mod features;
pub mod wire;
