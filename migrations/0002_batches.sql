-- Batches: one command on many servers (docs/contributing/batches.md).

CREATE TABLE batches (
  id TEXT PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  name TEXT NOT NULL,
  requested_by INTEGER,
  -- The credential of the request, for the permission checks. One of the two is null.
  api_token TEXT,
  session TEXT,
  remote_ip TEXT,
  schedule_id TEXT,
  -- The batch whose unsuccessful targets this batch repeats.
  retry_of TEXT,
  shell TEXT NOT NULL,
  line TEXT NOT NULL,
  -- The words of a command without a shell, as JSON.
  argv TEXT,
  -- Null: the default account of each server.
  username TEXT,
  groupname TEXT NOT NULL,
  timeout INTEGER NOT NULL,
  -- Environment, standard input and directory, encrypted under SECRET_KEY. Null once the batch has
  -- ended.
  inputs TEXT,
  has_inputs INTEGER NOT NULL DEFAULT 0 CHECK (has_inputs IN (0, 1)),
  -- Both are numbers of targets. Percentages are resolved when the batch is created.
  max_concurrency INTEGER NOT NULL,
  max_errors INTEGER,
  ramp INTEGER NOT NULL DEFAULT 0 CHECK (ramp IN (0, 1)),
  on_offline TEXT NOT NULL CHECK (on_offline IN ('skip', 'queue', 'reject')),
  added_at TEXT NOT NULL,
  scheduled_at TEXT NOT NULL,
  expires_at TEXT NOT NULL,
  finished_at TEXT,
  state TEXT NOT NULL CHECK (state IN ('scheduled', 'running', 'stopping', 'finished', 'cancelled')),
  stopped_by TEXT CHECK (stopped_by IN ('errors', 'cancel')),
  total INTEGER NOT NULL,
  -- Targets without a command that may still get one, for the quota of waiting commands.
  pending INTEGER NOT NULL,
  -- The final counts of targets by state, as a JSON object. Null until the batch has ended.
  counts TEXT
) STRICT;

CREATE INDEX batches_by_time ON batches (workspace_id, added_at, id);

CREATE INDEX batches_by_requester ON batches (workspace_id, requested_by, added_at, id);

-- For quotas, and for the hourly look for batches whose object was never called.
CREATE INDEX batches_open ON batches (workspace_id, requested_by) WHERE finished_at IS NULL;

-- Serves: the filters by schedule.
CREATE INDEX batches_by_schedule ON batches (workspace_id, schedule_id) WHERE schedule_id IS NOT NULL;

CREATE TABLE batch_targets (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  batch_id TEXT NOT NULL,
  position INTEGER NOT NULL,
  server_id TEXT NOT NULL,
  -- When the batch was created.
  server_name TEXT NOT NULL,
  -- The state of a target without a command: 'queued', 'skipped', 'cancelled' or 'expired'. Null:
  -- pending, or the target's command has the state.
  state TEXT CHECK (state IN ('queued', 'skipped', 'cancelled', 'expired')),
  reason TEXT,
  PRIMARY KEY (workspace_id, batch_id, position)
) STRICT, WITHOUT ROWID;

-- Serves: the batches to notify when a server connects.
CREATE INDEX batch_targets_queued ON batch_targets (workspace_id, server_id) WHERE state = 'queued';

ALTER TABLE commands ADD COLUMN batch_id TEXT;

-- The SHA-256 of the kept result of a command in a batch, to group equal outputs.
ALTER TABLE commands ADD COLUMN result_sha256 TEXT;

CREATE UNIQUE INDEX commands_by_batch ON commands (workspace_id, batch_id, server_id) WHERE batch_id IS NOT NULL;

-- Serves: the quotas of waiting commands. The targets of batches count as targets, not as commands.
DROP INDEX commands_waiting;

CREATE INDEX commands_waiting ON commands (workspace_id, requested_by, batch_id)
WHERE delivered_at IS NULL AND handled_at IS NULL;
