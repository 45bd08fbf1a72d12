//! `/api/iam/memberships/` (contract 5).
