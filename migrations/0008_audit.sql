-- The audit log (docs/audit.md).

-- Something that happened in a workspace; in workspace 0, what the operator did in the region cell, which outlives workspaces:
-- so it is no foreign key. A row is written in the transaction of the change that it tells of, or else it would tell of none.
-- D1 has one writer, so `seq` grows in the order of the changes. `link` and `hash` are null until the workspace's Sealer has
-- put the row into the chain. Nothing updates a row otherwise.
CREATE TABLE audit_events (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL,
  workspace_id INTEGER NOT NULL,
  occurred_at TEXT NOT NULL,
  actor_type TEXT NOT NULL,
  actor_id TEXT,
  actor_name TEXT,
  credential_type TEXT,
  credential_id TEXT,
  action TEXT NOT NULL,
  object_type TEXT,
  object_id TEXT,
  object_name TEXT,
  outcome TEXT NOT NULL,
  remote_ip TEXT,
  request_id TEXT,
  details TEXT NOT NULL,
  link INTEGER,
  hash TEXT
) STRICT;

-- Serves: the list, newest first, and its filter by time.
CREATE INDEX audit_events_by_time ON audit_events (workspace_id, occurred_at);
-- Serve: the list's filters, each with that by time.
CREATE INDEX audit_events_by_actor ON audit_events (workspace_id, actor_name, occurred_at);
CREATE INDEX audit_events_by_action ON audit_events (workspace_id, action, occurred_at);
CREATE INDEX audit_events_by_object ON audit_events (workspace_id, object_id, occurred_at);
-- Serves: the chain, what is not sealed yet in the order of the rows (an index ends with the rowid), and the number of events.
CREATE INDEX audit_events_by_link ON audit_events (workspace_id, link);
