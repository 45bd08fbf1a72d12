//! Commands: the request for one, its life and its end, its output, and scripts.

pub mod audit;
pub mod chunk_row;
pub mod end;
pub mod inputs;
pub mod lifecycle;
pub mod list;
pub mod object;
pub mod output;
pub mod request;
pub mod retention;
pub mod script;
