-- Rotation of TOKEN_PEPPER: since when the key of a server's agent, or a registration token, is stored by the hash that it has; null:
-- since it was made. So it can be told which of them are stored by their hashes under the pepper before (docs/authentication.md).
-- Sessions and API tokens have refreshed_at and last_used_at for that.

ALTER TABLE servers ADD COLUMN key_hashed_at TEXT;
ALTER TABLE registration_tokens ADD COLUMN key_hashed_at TEXT;
