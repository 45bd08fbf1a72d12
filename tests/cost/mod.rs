//! What requests cost, and what the benches need (`docs/performance.md`, `docs/scaling.md`).

mod bench;
pub mod d1_calls;
