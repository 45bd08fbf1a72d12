//! Mails: their text form, notices about accounts, and the dialogue with a mail server.

pub mod message;
pub mod notice;
pub mod smtp;
