//! The outputs of a batch, grouped (contract 13.8).
