-- A new key of a server's agent is valid from its rotation on. Until an agent connects with it, or
-- until `old_key_valid_until`, `agent_key_hash` is valid, too. Then the object of the server moves
-- `next_key_hash` to `agent_key_hash`. Both columns are null if there is no such key.
ALTER TABLE servers ADD COLUMN next_key_hash TEXT;
ALTER TABLE servers ADD COLUMN old_key_valid_until TEXT;

-- A deleted server that can be undeleted until `purge_at`. The columns up to `labels` are those of
-- `servers`, so that both tables have one server object. sql/tests/deleted_servers.rs compares them.
-- `groups` is a JSON array of the groups' ids. `deleted_by` is a username. Null: the agent.
CREATE TABLE deleted_servers (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  id TEXT NOT NULL,
  name TEXT NOT NULL,
  agent_key_hash TEXT NOT NULL,
  next_key_hash TEXT,
  old_key_valid_until TEXT,
  owner_id INTEGER,
  commissioned INTEGER NOT NULL,
  -- A deleted server has no connection, so it has no load and no conflict.
  is_connected INTEGER NOT NULL DEFAULT 0,
  load REAL,
  identity_conflict_at TEXT,
  remote_ip TEXT,
  platform TEXT,
  os_name TEXT,
  os_version TEXT,
  agent_version TEXT,
  cpu_logical_cores INTEGER,
  physical_memory INTEGER,
  connected_at TEXT,
  last_seen_at TEXT,
  link_revision INTEGER NOT NULL,
  added_at TEXT NOT NULL,
  updated_at TEXT NOT NULL,
  folded TEXT NOT NULL,
  registration TEXT NOT NULL,
  fingerprint TEXT,
  default_username TEXT,
  reported_username TEXT,
  labels TEXT NOT NULL,
  groups TEXT NOT NULL,
  deleted_at TEXT NOT NULL,
  purge_at TEXT NOT NULL,
  deleted_by TEXT,
  PRIMARY KEY (workspace_id, id)
) STRICT;

-- Serves: the list, the last deleted server first.
CREATE INDEX deleted_servers_by_time ON deleted_servers (workspace_id, deleted_at, id);

-- What a change ends (0001_schema.sql): a user who loses a rank or is deleted does not get deleted
-- servers back, also with `keep_servers: true`.
CREATE TRIGGER deleted_servers_demoted AFTER UPDATE OF is_staff, is_superuser ON users
WHEN new.is_staff < old.is_staff OR new.is_superuser < old.is_superuser BEGIN
  UPDATE deleted_servers SET owner_id = NULL WHERE workspace_id = new.workspace_id AND owner_id = new.id;
END;

CREATE TRIGGER deleted_servers_user_deleted AFTER DELETE ON users BEGIN
  UPDATE deleted_servers SET owner_id = NULL WHERE workspace_id = old.workspace_id AND owner_id = old.id;
END;
