//! Who may do what: the caller and the tokens, access control lists, and permissions for commands.

pub mod acl;
pub mod api_token;
pub mod caller;
pub mod registration_token;
pub mod rights;
