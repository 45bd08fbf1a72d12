//! The cost of requests, and tests of the benches (`docs/performance.md`, `docs/scaling.md`).

mod bench;
pub mod d1_calls;
