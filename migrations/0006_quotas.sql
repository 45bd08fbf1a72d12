-- Quotas of bytes over a sliding day (contract 11.4, docs/contributing/quotas.md).

-- The bytes that a workspace and each of its users stored, by hour. A row is used again when its
-- hour is older than a day. Uncounted commands are read from their rows: see counted_commands,
-- whose columns `day` and `bytes` are unused since this migration.
CREATE TABLE quota_bytes (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  -- 0: all of the workspace, its users included.
  user_id INTEGER NOT NULL,
  -- `hour` modulo 25: the current hour and the 24 hours before it have different slots.
  slot INTEGER NOT NULL,
  -- Hours since 1970 (UTC).
  hour INTEGER NOT NULL,
  -- Bytes in D1: lines, inputs, rows, audit events.
  stored INTEGER NOT NULL,
  -- Bytes of kept output.
  output INTEGER NOT NULL,
  PRIMARY KEY (workspace_id, user_id, slot)
) STRICT, WITHOUT ROWID;

-- The bytes of its output that may be kept. Only a command that is inserted as delivered needs it.
ALTER TABLE commands ADD COLUMN output_limit INTEGER;

-- The bytes of its output that were left out.
ALTER TABLE commands ADD COLUMN output_skipped INTEGER NOT NULL DEFAULT 0;

-- Counts the kept output of a command that the counters already include.
DROP TRIGGER commands_output;

CREATE TRIGGER commands_output AFTER UPDATE OF output_bytes ON commands
WHEN min(new.output_bytes - new.output_skipped, 16777216) > min(old.output_bytes - old.output_skipped, 16777216)
  AND (new.stored_bytes IS NULL OR new.seq <= (SELECT up_to FROM counted_commands WHERE workspace_id = new.workspace_id)) BEGIN
  INSERT INTO quota_bytes (workspace_id, user_id, slot, hour, stored, output)
  SELECT new.workspace_id, u.id, unixepoch() / 3600 % 25, unixepoch() / 3600, 0,
    min(new.output_bytes - new.output_skipped, 16777216) - min(old.output_bytes - old.output_skipped, 16777216)
  FROM (SELECT 0 AS id UNION ALL SELECT new.requested_by WHERE new.requested_by IS NOT NULL) u WHERE true
  ON CONFLICT (workspace_id, user_id, slot) DO UPDATE SET stored = iif(hour = excluded.hour, stored, 0) + excluded.stored,
    output = iif(hour = excluded.hour, output, 0) + excluded.output, hour = excluded.hour
  WHERE excluded.hour >= hour;
END;

-- Counts the audit events of users' changes. Events of commands, batches, runs and versions of
-- scripts count with their rows. An import of old events counts nothing.
-- farhand_domain::quota::COUNTED_ACTIONS has the same actions.
CREATE TRIGGER audit_events_counted AFTER INSERT ON audit_events
WHEN new.actor_type = 'user' AND new.outcome = 'success' AND new.actor_id IS NOT NULL AND new.action IN (
    'api_token.create', 'api_token.update', 'user.create', 'user.update', 'group.create', 'group.update',
    'membership.create', 'membership.update', 'server.create', 'server.update', 'registration_token.create',
    'schedule.create', 'schedule.update'
  ) AND unixepoch(new.occurred_at) / 3600 > unixepoch() / 3600 - 25 BEGIN
  INSERT INTO quota_bytes (workspace_id, user_id, slot, hour, stored, output)
  SELECT new.workspace_id, u.id, unixepoch(new.occurred_at) / 3600 % 25, unixepoch(new.occurred_at) / 3600,
    750 + length(CAST(new.details AS BLOB)), 0
  FROM (SELECT 0 AS id UNION ALL SELECT CAST(new.actor_id AS INTEGER)) u WHERE true
  ON CONFLICT (workspace_id, user_id, slot) DO UPDATE SET stored = iif(hour = excluded.hour, stored, 0) + excluded.stored,
    output = iif(hour = excluded.hour, output, 0) + excluded.output, hour = excluded.hour
  WHERE excluded.hour >= hour;
END;

CREATE TRIGGER quota_bytes_user_out AFTER DELETE ON users BEGIN
  DELETE FROM quota_bytes WHERE workspace_id = old.workspace_id AND user_id = old.id;
END;
