//! A batch: one command on many servers (contract 13), as a state machine without I/O.
//!
//! [`machine::Machine::step`] takes an [`event::Event`] and returns a [`event::Step`]. D1 is the
//! memory: the machine reads the batch again whenever it does not know what D1 has, so it may be
//! dropped at any moment. `docs/contributing/batches.md` explains the design.
//!
//! Invariants, which the property tests check after every step:
//! - At most [`limits::Limits::concurrency`] commands were inserted and have not ended.
//! - No command is inserted after the batch was cancelled, or while D1 has more than `max_errors`
//!   failures.
//! - No target runs twice, and none runs without a permission check.
//! - While the batch has not ended, an alarm is set.

pub mod event;
pub mod limits;
pub mod list;
pub mod machine;
pub mod request;
pub mod target;
mod waves;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::id;
use crate::time::Timestamp;

/// The id of a target's command. It follows from the batch and the server, so that the same target
/// can be started again without a second command. `added_at` is the batch's: ids sort by time.
pub fn command_id(added_at: Timestamp, batch: Uuid, server: Uuid) -> Uuid {
    let digest = Sha256::new().chain_update(batch).chain_update(server).finalize();
    let mut random = [0; 10];
    random.copy_from_slice(&digest[..10]);
    id::new(added_at, random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commands_id_depends_on_batch_server_and_time_only() {
        let at = Timestamp::from_millis(1_795_000_000_000);
        let (batch, server) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let id = command_id(at, batch, server);
        assert_eq!(id, command_id(at, batch, server));
        assert_eq!(id.get_version_num(), 7);
        assert!(id.to_string() > id::new(at, [0; 10]).to_string());
        assert!(id.to_string() < id::new(at.plus_millis(1), [0; 10]).to_string());
        for other in [command_id(at, server, batch), command_id(at, batch, Uuid::from_u128(3))] {
            assert_ne!(id, other);
        }
    }
}
