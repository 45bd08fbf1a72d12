//! The connection to the service: HTTP calls, and the WebSocket that commands arrive on.

pub mod client;
pub mod websocket;
