-- Schedules: batches that start at times (docs/contributing/schedules.md).

CREATE TABLE schedules (
  id TEXT PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  name TEXT NOT NULL,
  -- The owner, for whom the runs start. Null: the user was deleted.
  owner_id INTEGER,
  -- The credential of the owner's request, for the permission checks. One of the two is null. Both
  -- are null if the session was revoked.
  api_token TEXT,
  session TEXT,
  remote_ip TEXT NOT NULL,
  cron TEXT NOT NULL,
  timezone TEXT NOT NULL,
  enabled INTEGER NOT NULL CHECK (enabled IN (0, 1)),
  starts_at TEXT,
  ends_at TEXT,
  misfire TEXT NOT NULL CHECK (misfire IN ('run_once', 'skip')),
  overlap TEXT NOT NULL CHECK (overlap IN ('skip', 'allow', 'queue')),
  -- The fields that a schedule shares with a batch, as JSON in the form of a request, without
  -- environment, standard input and directory.
  definition TEXT NOT NULL,
  -- Environment, standard input and directory, encrypted under SECRET_KEY for the schedule's id.
  inputs TEXT,
  -- The first due time about which nothing was decided.
  next_due TEXT,
  -- The due time that waits for the previous run to end (`overlap: queue`).
  queued TEXT,
  -- The due times from `next_due` on, as a JSON array, for people.
  next_runs TEXT NOT NULL,
  -- Grows with each change, so that a decision on an older row is not written.
  revision INTEGER NOT NULL DEFAULT 0,
  added_at TEXT NOT NULL,
  updated_at TEXT NOT NULL
) STRICT;

-- Serves: the list of all schedules, newest first.
CREATE INDEX schedules_by_workspace ON schedules (workspace_id, id);

-- Serves: the list of a user's schedules, and their number for the quota.
CREATE INDEX schedules_by_owner ON schedules (workspace_id, owner_id, id);

-- Serves: the schedules that are due, and the time of the next alarm.
CREATE INDEX schedules_due ON schedules (workspace_id, next_due) WHERE enabled = 1 AND next_due IS NOT NULL;

-- Serves: the runs that wait for the previous run to end.
CREATE INDEX schedules_queued ON schedules (workspace_id, queued) WHERE queued IS NOT NULL;

-- Serves: the schedules that a credential created.
CREATE INDEX schedules_by_token ON schedules (workspace_id, api_token) WHERE api_token IS NOT NULL;
CREATE INDEX schedules_by_session ON schedules (workspace_id, session) WHERE session IS NOT NULL;

-- What happened at the due times of a schedule. A run on request (`is_manual`) has the time of the
-- request as its due time.
CREATE TABLE schedule_runs (
  id TEXT PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  schedule_id TEXT NOT NULL,
  due_at TEXT NOT NULL,
  started_at TEXT,
  batch_id TEXT,
  outcome TEXT NOT NULL CHECK (outcome IN ('started', 'skipped', 'refused', 'missed')),
  reason TEXT,
  is_manual INTEGER NOT NULL DEFAULT 0 CHECK (is_manual IN (0, 1))
) STRICT;

-- Serves: the runs of a schedule, newest first.
CREATE INDEX schedule_runs_by_time ON schedule_runs (workspace_id, schedule_id, due_at, id);

-- Each due time is handled once, even if the scheduler repeats a decision.
CREATE UNIQUE INDEX schedule_runs_once ON schedule_runs (workspace_id, schedule_id, due_at) WHERE is_manual = 0;

-- Serves: whether an earlier run has not ended (`overlap`).
CREATE INDEX batches_of_schedule ON batches (workspace_id, schedule_id) WHERE schedule_id IS NOT NULL AND finished_at IS NULL;

-- Security: the effects of changes on schedules. Like those in 0001_schema.sql, they are part of
-- the transaction of the change.
--
-- event                        | schedules
-- API token disabled, deleted  | those that it created are disabled
-- session revoked              | those that it created are disabled, and lose their credential
-- user deleted                 | those of the user are disabled, and lose owner and credential
-- schedule deleted             | its runs are deleted
--
-- An API token that expires disables its schedules when the next run is due.

CREATE TRIGGER api_tokens_disabled_schedules AFTER UPDATE OF enabled ON api_tokens WHEN new.enabled = 0 BEGIN
  UPDATE schedules SET enabled = 0, revision = revision + 1, updated_at = strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')
  WHERE workspace_id = new.workspace_id AND api_token = new.id AND enabled = 1;
END;

CREATE TRIGGER api_tokens_deleted_schedules AFTER DELETE ON api_tokens BEGIN
  UPDATE schedules SET enabled = 0, revision = revision + 1, updated_at = strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')
  WHERE workspace_id = old.workspace_id AND api_token = old.id AND enabled = 1;
END;

CREATE TRIGGER revoked_sessions_schedules AFTER INSERT ON revoked_sessions BEGIN
  UPDATE schedules SET session = NULL, enabled = 0, revision = revision + 1,
    updated_at = iif(enabled, strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now'), updated_at)
  WHERE workspace_id = new.workspace_id AND session = new.id;
END;

CREATE TRIGGER users_deleted_schedules AFTER DELETE ON users BEGIN
  UPDATE schedules SET owner_id = NULL, session = NULL, api_token = NULL, enabled = 0, revision = revision + 1,
    updated_at = strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')
  WHERE workspace_id = old.workspace_id AND owner_id = old.id;
END;

CREATE TRIGGER schedules_deleted AFTER DELETE ON schedules BEGIN
  DELETE FROM schedule_runs WHERE workspace_id = old.workspace_id AND schedule_id = old.id;
END;
