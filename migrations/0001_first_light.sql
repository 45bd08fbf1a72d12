-- Farhand's tables in D1.
--
-- Times are texts of one width, 2026-11-21T01:23:45.678901+00:00, which sort as the moments do and go into answers
-- as they are. Booleans are 0 and 1. Every table of a tenant has workspace_id, and every index on one begins with it.
-- Ids of users are no foreign keys: the check of one at a user's deletion would want an index that does not begin so,
-- or read the rows of all tenants. What deletes a user clears them away in the same transaction.

-- A tenant. A deleted one keeps its row until all that was in it is purged; its slug is free at once.
-- AUTOINCREMENT: an id is never used again, so nothing of a purged workspace can turn up in a new one.
CREATE TABLE workspaces (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  slug TEXT NOT NULL,
  name TEXT NOT NULL,
  added_at TEXT NOT NULL,
  deleted_at TEXT
) STRICT;

-- Serves: the janitor's search for what is to be purged.
CREATE INDEX workspaces_deleted ON workspaces (id) WHERE deleted_at IS NOT NULL;

-- Serves: the Host header of every request; one living workspace has a slug.
CREATE UNIQUE INDEX workspaces_by_slug ON workspaces (slug) WHERE deleted_at IS NULL;

-- A person. `password` is a PHC string of PBKDF2-HMAC-SHA-256.
CREATE TABLE users (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  username TEXT NOT NULL COLLATE NOCASE,
  email TEXT NOT NULL COLLATE NOCASE,
  first_name TEXT NOT NULL DEFAULT '',
  last_name TEXT NOT NULL DEFAULT '',
  password TEXT NOT NULL,
  is_active INTEGER NOT NULL DEFAULT 1 CHECK (is_active IN (0, 1)),
  is_staff INTEGER NOT NULL DEFAULT 0 CHECK (is_staff IN (0, 1)),
  is_superuser INTEGER NOT NULL DEFAULT 0 CHECK (is_superuser IN (0, 1)),
  date_joined TEXT NOT NULL,
  last_login TEXT
) STRICT;

-- Serve: login, and the uniqueness of both.
CREATE UNIQUE INDEX users_by_username ON users (workspace_id, username);
CREATE UNIQUE INDEX users_by_email ON users (workspace_id, email);

-- A login. The row is what decides whether its token is alive; KV only remembers. Revoking is deleting.
-- `token_hash` is HMAC-SHA-256 of the token under TOKEN_PEPPER. `refreshed_at` is when `expires_at` was last moved.
CREATE TABLE sessions (
  id TEXT PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  user_id INTEGER NOT NULL,
  token_hash TEXT NOT NULL,
  user_agent TEXT NOT NULL,
  remote_ip TEXT NOT NULL,
  added_at TEXT NOT NULL,
  refreshed_at TEXT NOT NULL,
  expires_at TEXT NOT NULL
) STRICT;

-- Serves: the credential check of every request with a login token.
CREATE UNIQUE INDEX sessions_by_token ON sessions (workspace_id, token_hash);
-- Serves: a user's list of sessions, and their revocation together.
CREATE INDEX sessions_by_user ON sessions (workspace_id, user_id, id);

-- An API token. `acl` is a JSON object or null.
CREATE TABLE api_tokens (
  id TEXT PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  user_id INTEGER NOT NULL,
  name TEXT NOT NULL,
  key_hash TEXT NOT NULL,
  enabled INTEGER NOT NULL DEFAULT 1 CHECK (enabled IN (0, 1)),
  acl TEXT,
  added_at TEXT NOT NULL,
  updated_at TEXT NOT NULL,
  expires_at TEXT,
  last_used_at TEXT
) STRICT;

-- Serves: the credential check of every request with an API token.
CREATE UNIQUE INDEX api_tokens_by_key ON api_tokens (workspace_id, key_hash);
-- Serves: a user's list of tokens, newest first (ids sort by creation).
CREATE INDEX api_tokens_by_user ON api_tokens (workspace_id, user_id, id);

-- A server. The object of the same id holds its connection; what stands here of the host and the connection is
-- what that object last reported.
CREATE TABLE servers (
  id TEXT PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  name TEXT NOT NULL,
  agent_key_hash TEXT NOT NULL,
  owner_id INTEGER,
  commissioned INTEGER NOT NULL DEFAULT 0 CHECK (commissioned IN (0, 1)),
  is_connected INTEGER NOT NULL DEFAULT 0 CHECK (is_connected IN (0, 1)),
  remote_ip TEXT,
  platform TEXT,
  os_name TEXT,
  os_version TEXT,
  agent_version TEXT,
  cpu_logical_cores INTEGER,
  physical_memory INTEGER,
  load REAL,
  connected_at TEXT,
  last_seen_at TEXT,
  -- Counts the object's reports of the row: one that comes late, after a newer one, changes nothing.
  link_revision INTEGER NOT NULL DEFAULT 0,
  added_at TEXT NOT NULL,
  updated_at TEXT NOT NULL
) STRICT;

-- Serves: a command that names its server, and the uniqueness of names.
CREATE UNIQUE INDEX servers_by_name ON servers (workspace_id, name);
-- Serves: the list of servers, newest first.
CREATE INDEX servers_by_workspace ON servers (workspace_id, id);

-- A command, as its server's object last reported it. What it is (line, account ...) never changes; its moments only
-- move forward. `state` and `status_message` are what farhand_domain::lifecycle makes of the moments.
-- `server_name` is for when the server is gone; `requested_by` is a user's id, null where there is no such user any more.
-- `result` is as much of the output as lists show, `full_result` the whole where that is longer.
CREATE TABLE commands (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  server_id TEXT NOT NULL,
  server_name TEXT NOT NULL,
  requested_by INTEGER,
  shell TEXT NOT NULL,
  line TEXT NOT NULL,
  username TEXT NOT NULL,
  groupname TEXT NOT NULL,
  timeout INTEGER NOT NULL,
  added_at TEXT NOT NULL,
  scheduled_at TEXT NOT NULL,
  expires_at TEXT NOT NULL,
  delivered_at TEXT,
  acked_at TEXT,
  handled_at TEXT,
  state TEXT NOT NULL,
  status_message TEXT NOT NULL,
  success INTEGER CHECK (success IN (0, 1)),
  exit_code INTEGER,
  response_delay REAL,
  elapsed_time REAL,
  output_bytes INTEGER NOT NULL DEFAULT 0,
  result_truncated INTEGER NOT NULL DEFAULT 0 CHECK (result_truncated IN (0, 1)),
  result TEXT,
  full_result TEXT,
  -- As link_revision of servers.
  revision INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Serves: one command by its id, and the object's reports of it.
CREATE UNIQUE INDEX commands_by_id ON commands (workspace_id, id);
-- Serves: the list in its default order, read from the end.
CREATE INDEX commands_by_schedule ON commands (workspace_id, scheduled_at, id);
-- How many commands a server has; the row with the empty server_id counts the workspace. The triggers keep it exact,
-- so that a list's `count` reads one row.
CREATE TABLE command_counts (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  server_id TEXT NOT NULL,
  total INTEGER NOT NULL,
  PRIMARY KEY (workspace_id, server_id)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER commands_count_in AFTER INSERT ON commands BEGIN
  INSERT INTO command_counts (workspace_id, server_id, total)
  VALUES (new.workspace_id, '', 1), (new.workspace_id, new.server_id, 1)
  ON CONFLICT (workspace_id, server_id) DO UPDATE SET total = total + 1;
END;

CREATE TRIGGER commands_count_out AFTER DELETE ON commands BEGIN
  UPDATE command_counts SET total = total - 1
  WHERE workspace_id = old.workspace_id AND server_id IN ('', old.server_id);
END;
