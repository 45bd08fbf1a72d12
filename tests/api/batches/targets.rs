//! The targets of a batch (contract 13.7), and retries (contract 13.10).
