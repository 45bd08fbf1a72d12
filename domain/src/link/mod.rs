//! What the object of a server decides, without the platform.

pub mod stored_command;
