-- The states of the targets of batches, counted when they change (docs/contributing/batches.md,
-- What is counted).

-- The targets of a batch that has not finished, by state. The remaining targets are pending. A
-- finished batch has its final counts in `batches.counts`, and no row here.
CREATE TABLE batch_counts (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  batch_id TEXT NOT NULL,
  queued INTEGER NOT NULL DEFAULT 0,
  sent INTEGER NOT NULL DEFAULT 0,
  running INTEGER NOT NULL DEFAULT 0,
  success INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  cancelled INTEGER NOT NULL DEFAULT 0,
  expired INTEGER NOT NULL DEFAULT 0,
  stuck INTEGER NOT NULL DEFAULT 0,
  skipped INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (workspace_id, batch_id)
) STRICT, WITHOUT ROWID;

-- Whether retention has deleted commands of the batch. Their targets are not listed.
ALTER TABLE batches ADD COLUMN lost_commands INTEGER NOT NULL DEFAULT 0 CHECK (lost_commands IN (0, 1));

-- Batches that are older than this migration.
UPDATE batches SET lost_commands = 1
WHERE finished_at IS NOT NULL AND EXISTS (SELECT 1 FROM batch_targets t
  WHERE t.workspace_id = batches.workspace_id AND t.batch_id = batches.id AND t.state IS NULL
    AND NOT EXISTS (SELECT 1 FROM commands c
      WHERE c.workspace_id = t.workspace_id AND c.batch_id = t.batch_id AND c.server_id = t.server_id));

INSERT INTO batch_counts (workspace_id, batch_id, queued, sent, running, success, failed, cancelled, expired, stuck, skipped)
SELECT b.workspace_id, b.id, count(*) FILTER (WHERE coalesce(c.state, t.state) IN ('queued', 'waiting')),
  count(*) FILTER (WHERE c.state = 'sent'), count(*) FILTER (WHERE c.state = 'acked'),
  count(*) FILTER (WHERE c.state = 'success'), count(*) FILTER (WHERE c.state = 'failed'),
  count(*) FILTER (WHERE coalesce(c.state, t.state) = 'cancelled'), count(*) FILTER (WHERE coalesce(c.state, t.state) = 'expired'),
  count(*) FILTER (WHERE c.state = 'stuck'), count(*) FILTER (WHERE coalesce(c.state, t.state) = 'skipped')
FROM batches b
JOIN batch_targets t ON t.workspace_id = b.workspace_id AND t.batch_id = b.id
LEFT JOIN commands c ON c.workspace_id = t.workspace_id AND c.batch_id = t.batch_id AND c.server_id = t.server_id
WHERE b.finished_at IS NULL
GROUP BY b.workspace_id, b.id;

CREATE TRIGGER batch_counts_in AFTER INSERT ON batches WHEN new.finished_at IS NULL BEGIN
  INSERT INTO batch_counts (workspace_id, batch_id) VALUES (new.workspace_id, new.id);
END;

CREATE TRIGGER batch_counts_out AFTER UPDATE OF finished_at ON batches WHEN new.finished_at IS NOT NULL BEGIN
  DELETE FROM batch_counts WHERE workspace_id = new.workspace_id AND batch_id = new.id;
END;

CREATE TRIGGER batch_counts_deleted AFTER DELETE ON batches BEGIN
  DELETE FROM batch_counts WHERE workspace_id = old.workspace_id AND batch_id = old.id;
END;

-- A target with a command has the state of the command, so the target's own state is cleared. Only
-- queued targets get commands, except after a restore of D1: `restore_command` clears other states.
-- batch_targets_queued finds the target.
CREATE TRIGGER batch_commands_in AFTER INSERT ON commands WHEN new.batch_id IS NOT NULL BEGIN
  UPDATE batch_targets SET state = NULL, reason = NULL
  WHERE workspace_id = new.workspace_id AND server_id = new.server_id AND state = 'queued' AND batch_id = new.batch_id;
  UPDATE batch_counts SET queued = queued + (new.state = 'waiting'), sent = sent + (new.state = 'sent'),
    running = running + (new.state = 'acked'), success = success + (new.state = 'success'),
    failed = failed + (new.state = 'failed'), cancelled = cancelled + (new.state = 'cancelled'),
    expired = expired + (new.state = 'expired'), stuck = stuck + (new.state = 'stuck')
  WHERE workspace_id = new.workspace_id AND batch_id = new.batch_id;
END;

CREATE TRIGGER batch_commands_changed AFTER UPDATE OF state ON commands
WHEN new.batch_id IS NOT NULL AND new.state <> old.state BEGIN
  UPDATE batch_counts SET queued = queued + (new.state = 'waiting') - (old.state = 'waiting'),
    sent = sent + (new.state = 'sent') - (old.state = 'sent'),
    running = running + (new.state = 'acked') - (old.state = 'acked'),
    success = success + (new.state = 'success') - (old.state = 'success'),
    failed = failed + (new.state = 'failed') - (old.state = 'failed'),
    cancelled = cancelled + (new.state = 'cancelled') - (old.state = 'cancelled'),
    expired = expired + (new.state = 'expired') - (old.state = 'expired'),
    stuck = stuck + (new.state = 'stuck') - (old.state = 'stuck')
  WHERE workspace_id = new.workspace_id AND batch_id = new.batch_id;
END;

CREATE TRIGGER batch_commands_out AFTER DELETE ON commands WHEN old.batch_id IS NOT NULL BEGIN
  UPDATE batch_counts SET queued = queued - (old.state = 'waiting'), sent = sent - (old.state = 'sent'),
    running = running - (old.state = 'acked'), success = success - (old.state = 'success'),
    failed = failed - (old.state = 'failed'), cancelled = cancelled - (old.state = 'cancelled'),
    expired = expired - (old.state = 'expired'), stuck = stuck - (old.state = 'stuck')
  WHERE workspace_id = old.workspace_id AND batch_id = old.batch_id;
  UPDATE batches SET lost_commands = 1 WHERE id = old.batch_id AND finished_at IS NOT NULL AND lost_commands = 0;
END;

CREATE TRIGGER batch_targets_changed AFTER UPDATE OF state ON batch_targets WHEN new.state IS NOT old.state BEGIN
  UPDATE batch_counts SET queued = queued + (new.state IS 'queued') - (old.state IS 'queued'),
    cancelled = cancelled + (new.state IS 'cancelled') - (old.state IS 'cancelled'),
    expired = expired + (new.state IS 'expired') - (old.state IS 'expired'),
    skipped = skipped + (new.state IS 'skipped') - (old.state IS 'skipped')
  WHERE workspace_id = new.workspace_id AND batch_id = new.batch_id;
END;
