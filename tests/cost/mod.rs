//! What requests cost, and what the benches need (`docs/contributing/performance.md`,
//! `docs/contributing/scaling.md`).

mod bench;
pub mod d1_calls;
