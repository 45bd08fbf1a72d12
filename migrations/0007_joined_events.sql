-- Refusals, which are not written to the audit log one by one (docs/audit.md). `key` has the
-- credential, the action and the code. `written_at` is when the last event of the key was written.
-- `pending` is the number of refusals since then, and `event` is the first of them as JSON. Rows
-- without pending refusals are deleted after an hour.
CREATE TABLE joined_events (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  key TEXT NOT NULL,
  pending INTEGER NOT NULL,
  written_at TEXT NOT NULL,
  event TEXT NOT NULL,
  PRIMARY KEY (workspace_id, key)
) STRICT, WITHOUT ROWID;
