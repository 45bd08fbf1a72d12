-- Commands that are posted twice and run once.

-- The keyed hashes of the Idempotency-Key that a command was made with and of its request's body, for 24 hours.
ALTER TABLE commands ADD COLUMN idempotency_key TEXT;
ALTER TABLE commands ADD COLUMN idempotency_body TEXT;

-- Serves: the look for a key that was used, and that each is used once.
CREATE UNIQUE INDEX commands_by_key ON commands (workspace_id, requested_by, idempotency_key)
WHERE idempotency_key IS NOT NULL;
