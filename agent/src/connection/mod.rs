//! The connections to the service: HTTP calls, and the WebSocket on which commands arrive.

pub mod client;
pub mod websocket;
