//! The Durable Object of a batch.

pub mod calls;
