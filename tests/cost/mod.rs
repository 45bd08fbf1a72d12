//! The cost of requests, and tests of the benches (`docs/contributing/performance.md`,
//! `docs/contributing/scaling.md`).

mod batches;
mod bench;
pub mod d1_calls;
