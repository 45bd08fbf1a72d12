-- Farhand's tables in D1.
--
-- Times are texts of one length: 2026-11-21T01:23:45.678901+00:00. They sort by time, and responses
-- contain them unchanged. Booleans are 0 and 1.
-- Every tenant table has a column workspace_id, and its indexes begin with that column. Columns
-- with a user's id are not foreign keys: enforcing them when a user is deleted would need an index
-- that does not begin with workspace_id, or a scan over all tenants. Triggers delete the dependent
-- rows in the same transaction.

-- ==================== Tenants and people ====================

-- A tenant. The row of a deleted workspace is kept until all its data is purged.
-- AUTOINCREMENT: ids are never reused, so data of a purged workspace cannot appear in a new one.
-- `last_user_id` and `last_group_id` are the highest ids that users and groups of the workspace
-- ever had. Triggers increase them with each new row. So ids are never reused within a workspace,
-- and they reveal nothing about other workspaces.
CREATE TABLE workspaces (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  slug TEXT NOT NULL,
  name TEXT NOT NULL,
  added_at TEXT NOT NULL,
  -- From this time on, all requests to the workspace are refused.
  deleted_at TEXT,
  -- The purge of a deleted workspace begins at this time. Until then it can be undeleted.
  purge_at TEXT,
  -- 1 once the purge has begun. Then another workspace can use the slug.
  is_purging INTEGER NOT NULL DEFAULT 0,
  last_user_id INTEGER NOT NULL DEFAULT 0,
  last_group_id INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Serves: the janitor's search for workspaces to purge.
CREATE INDEX workspaces_purging ON workspaces (id) WHERE is_purging = 1;

-- Serves: the janitor's search for workspaces whose grace period has ended.
CREATE INDEX workspaces_by_purge ON workspaces (purge_at) WHERE purge_at IS NOT NULL;

-- Serves: the Host header of every request. At most one live workspace has a slug.
CREATE UNIQUE INDEX workspaces_by_slug ON workspaces (slug) WHERE deleted_at IS NULL;

-- Serves: the operator's changes of a workspace. The slug of a deleted workspace is reserved until
-- its purge begins.
CREATE UNIQUE INDEX workspaces_by_taken_slug ON workspaces (slug) WHERE is_purging = 0;

-- A user. `password` is a PHC string of PBKDF2-HMAC-SHA-256. `id` is unique within the workspace:
-- see last_user_id. The primary key also serves the list of users, oldest first.
CREATE TABLE users (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  id INTEGER NOT NULL,
  username TEXT NOT NULL COLLATE NOCASE,
  email TEXT NOT NULL COLLATE NOCASE,
  first_name TEXT NOT NULL DEFAULT '',
  last_name TEXT NOT NULL DEFAULT '',
  password TEXT NOT NULL,
  is_active INTEGER NOT NULL DEFAULT 1 CHECK (is_active IN (0, 1)),
  is_staff INTEGER NOT NULL DEFAULT 0 CHECK (is_staff IN (0, 1)),
  is_superuser INTEGER NOT NULL DEFAULT 0 CHECK (is_superuser IN (0, 1)),
  date_joined TEXT NOT NULL,
  last_login TEXT,
  -- The names in Unicode lower case, for the search. SQLite's lower() works only for ASCII. There
  -- are two columns, so that a change of one name does not need to read the other name.
  folded_first_name TEXT NOT NULL DEFAULT '',
  folded_last_name TEXT NOT NULL DEFAULT '',
  -- When the user last got a new password. Hashing the same password with more rounds keeps it.
  password_changed_at TEXT,
  PRIMARY KEY (workspace_id, id)
) STRICT;

-- Serve: login, and uniqueness.
CREATE UNIQUE INDEX users_by_username ON users (workspace_id, username);
CREATE UNIQUE INDEX users_by_email ON users (workspace_id, email);

-- Serves: the rule that a workspace keeps an active superuser.
CREATE INDEX users_superusers ON users (workspace_id) WHERE is_superuser = 1 AND is_active = 1;

CREATE TRIGGER users_in AFTER INSERT ON users BEGIN
  UPDATE workspaces SET last_user_id = max(last_user_id, new.id) WHERE id = new.workspace_id;
END;

-- A deleted user whose id is still in `requested_by` of commands. The janitor clears that column,
-- and then deletes this row.
CREATE TABLE deleted_users (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  user_id INTEGER NOT NULL,
  PRIMARY KEY (workspace_id, user_id)
) STRICT, WITHOUT ROWID;

-- ==================== Credentials ====================

-- A login session. Its token is valid while this row exists and has not expired. KV is only a
-- cache. Revoking the session deletes the row. `refreshed_at` is when `expires_at` was last
-- extended.
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

-- Serves: a user's list of sessions, and revoking all sessions of a user.
CREATE INDEX sessions_by_user ON sessions (workspace_id, user_id, id);

-- A revoked session: the waiting commands that it created must not be delivered. A logout or an
-- expiry adds no row. `is_settled` is 1 after the servers' objects have cancelled these commands.
-- The permission recheck before delivery reads this table. So it also stops commands that are not
-- cancelled yet, and commands that were created during the revocation.
CREATE TABLE revoked_sessions (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  id TEXT NOT NULL,
  user_id INTEGER NOT NULL,
  revoked_at TEXT NOT NULL,
  is_settled INTEGER NOT NULL DEFAULT 0 CHECK (is_settled IN (0, 1)),
  PRIMARY KEY (workspace_id, id)
) STRICT, WITHOUT ROWID;

-- Serves: the deletion of a user's rows.
CREATE INDEX revoked_sessions_by_user ON revoked_sessions (workspace_id, user_id);

-- Serves: the janitor's search for users whose commands it must cancel.
CREATE INDEX revoked_sessions_open ON revoked_sessions (workspace_id, user_id, id) WHERE is_settled = 0;

-- An API token. `acl` is its access control list as a JSON object, or null. `selector` has the
-- terms of that list's selector, as sql/src/selector.rs compares them.
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
  last_used_at TEXT,
  selector TEXT
) STRICT;

-- Serves: the credential check of every request with an API token.
CREATE UNIQUE INDEX api_tokens_by_key ON api_tokens (workspace_id, key_hash);

-- Serves: a user's list of tokens, newest first (ids sort by creation).
CREATE INDEX api_tokens_by_user ON api_tokens (workspace_id, user_id, id);

-- A request for a password reset. It counts towards the limit for 24 hours, even if the address is
-- not registered or the request was used. `address_hash` is the keyed hash of the requested
-- address. `user_id` is the user whose password the request can set. It is null if the address is
-- not registered, and after the request is used or invalidated. The key in the mail is derived from
-- `id`.
CREATE TABLE reset_requests (
  id TEXT PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  address_hash TEXT NOT NULL,
  user_id INTEGER,
  requested_at TEXT NOT NULL,
  expires_at TEXT NOT NULL
) STRICT;

-- Serves: the count of an address's pending requests.
CREATE INDEX reset_requests_by_address ON reset_requests (workspace_id, address_hash, expires_at);

-- Serves: invalidating all requests of a user. The index has no condition on user_id, so that a
-- request costs the same for registered and unregistered addresses.
CREATE INDEX reset_requests_by_user ON reset_requests (workspace_id, user_id);

-- Serves: the deletion of expired requests.
CREATE INDEX reset_requests_by_expiry ON reset_requests (workspace_id, expires_at);

-- ==================== Servers and groups ====================

-- A server. The Durable Object with the same id holds the connection to the agent. It writes the
-- columns about the host and the connection.
CREATE TABLE servers (
  id TEXT PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  name TEXT NOT NULL,
  agent_key_hash TEXT NOT NULL,
  -- A new key of the agent, valid from its rotation on. Until an agent connects with it, or until
  -- `old_key_valid_until`, `agent_key_hash` is valid, too. Then the object of the server moves
  -- `next_key_hash` to `agent_key_hash`. Both columns are null if there is no such key.
  next_key_hash TEXT,
  old_key_valid_until TEXT,
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
  -- The revision of the last update by the object. A late update with an older revision is ignored.
  link_revision INTEGER NOT NULL DEFAULT 0,
  added_at TEXT NOT NULL,
  updated_at TEXT NOT NULL,
  -- The reported facts on the host in Unicode lower case, for the search.
  folded TEXT NOT NULL DEFAULT '',
  -- A pending server runs no commands until staff approve it.
  registration TEXT NOT NULL DEFAULT 'active' CHECK (registration IN ('pending', 'active')),
  -- The fingerprint of the agent's key, if the registration token requires approval. Otherwise
  -- null.
  fingerprint TEXT,
  -- When a second agent with this server's id and key was last refused. Null: not recently.
  identity_conflict_at TEXT,
  -- The account for commands that name none, if a user set it. Null: `reported_username` applies.
  default_username TEXT,
  -- The only account that the agent can use, if the agent does not run as root and reported it.
  reported_username TEXT,
  -- The policy of the host, as its agent reports it: a JSON object with `mode` and `sha256`. Null:
  -- the agent does not report it.
  policy TEXT,
  -- A JSON object of strings. Selectors are compared with each server of the workspace.
  labels TEXT NOT NULL DEFAULT '{}'
) STRICT;

-- Serves: the deletion of servers that were not approved in time.
CREATE INDEX servers_pending ON servers (workspace_id, added_at) WHERE registration = 'pending';

-- Serves: a command that names its server, and the uniqueness of names.
CREATE UNIQUE INDEX servers_by_name ON servers (workspace_id, name);

-- Serves: the list of servers, newest first.
CREATE INDEX servers_by_workspace ON servers (workspace_id, id);

-- Serves: an owner's servers.
CREATE INDEX servers_by_owner ON servers (workspace_id, owner_id, id);

-- A name that became free less than 30 days ago, because its server was deleted or renamed. No
-- pending server gets such a name.
CREATE TABLE server_names (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  name TEXT NOT NULL,
  freed_at TEXT NOT NULL,
  PRIMARY KEY (workspace_id, name)
) STRICT, WITHOUT ROWID;

-- Serves: the deletion of older rows.
CREATE INDEX server_names_by_time ON server_names (workspace_id, freed_at);

CREATE TRIGGER server_names_in AFTER INSERT ON server_names BEGIN
  DELETE FROM server_names WHERE workspace_id = new.workspace_id
    AND freed_at <= strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now', '-30 days');
END;

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
  policy TEXT,
  labels TEXT NOT NULL,
  groups TEXT NOT NULL,
  deleted_at TEXT NOT NULL,
  purge_at TEXT NOT NULL,
  deleted_by TEXT,
  PRIMARY KEY (workspace_id, id)
) STRICT;

-- Serves: the list, the last deleted server first.
CREATE INDEX deleted_servers_by_time ON deleted_servers (workspace_id, deleted_at, id);

-- A deleted server that still has commands. Its object keeps their output. The row is deleted with
-- the last command, or if the server is undeleted.
CREATE TABLE deleted_servers_with_commands (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  id TEXT NOT NULL,
  PRIMARY KEY (workspace_id, id)
) STRICT, WITHOUT ROWID;

-- A group: its members can access its servers (contract 5.4). The folded columns are in Unicode
-- lower case, for the search. `id` is unique within the workspace: see last_group_id. The primary
-- key also serves the list of groups, oldest first.
CREATE TABLE groups (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  id INTEGER NOT NULL,
  name TEXT NOT NULL,
  display_name TEXT NOT NULL,
  description TEXT NOT NULL,
  folded_display_name TEXT NOT NULL,
  folded_description TEXT NOT NULL,
  added_at TEXT NOT NULL,
  updated_at TEXT NOT NULL,
  PRIMARY KEY (workspace_id, id)
) STRICT;

-- Serves: the uniqueness of names, and the filter by name.
CREATE UNIQUE INDEX groups_by_name ON groups (workspace_id, name);

CREATE TRIGGER groups_in AFTER INSERT ON groups BEGIN
  UPDATE workspaces SET last_group_id = max(last_group_id, new.id) WHERE id = new.workspace_id;
END;

-- A user's membership of a group.
CREATE TABLE memberships (
  id TEXT PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  group_id INTEGER NOT NULL,
  user_id INTEGER NOT NULL,
  role TEXT NOT NULL CHECK (role IN ('member', 'manager', 'owner'))
) STRICT;

-- Serves: the servers that a user can access. A user is in a group at most once.
CREATE UNIQUE INDEX memberships_by_user ON memberships (workspace_id, user_id, group_id);

-- Serves: a group's members and owners.
CREATE INDEX memberships_by_group ON memberships (workspace_id, group_id, role);

-- Serves: the list, oldest first (ids sort by creation).
CREATE INDEX memberships_by_workspace ON memberships (workspace_id, id);

-- A group's servers.
CREATE TABLE server_groups (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  group_id INTEGER NOT NULL,
  server_id TEXT NOT NULL,
  PRIMARY KEY (workspace_id, group_id, server_id)
) STRICT, WITHOUT ROWID;

-- Serves: a server's groups.
CREATE INDEX server_groups_by_server ON server_groups (workspace_id, server_id, group_id);

-- A token with which agents register servers. `uses` is the number of remaining uses. Null means no
-- limit. The token is valid only while its creator is active staff (docs/agents.md).
CREATE TABLE registration_tokens (
  id TEXT PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  creator_id INTEGER NOT NULL,
  name TEXT NOT NULL,
  key_hash TEXT NOT NULL,
  expires_at TEXT,
  uses INTEGER CHECK (uses >= 0),
  -- A GLOB pattern that the requested name must match. Its only wildcard is `*`. Null: any name.
  name_pattern TEXT,
  -- The networks from which agents may register, as a JSON array of CIDRs without host bits. Null:
  -- all networks.
  networks TEXT,
  -- Whether staff must approve each server before it runs commands.
  approval INTEGER NOT NULL DEFAULT 0 CHECK (approval IN (0, 1)),
  added_at TEXT NOT NULL,
  -- The labels that each server gets, as a JSON object, and the keys of labels that agents may set,
  -- as a JSON array.
  labels TEXT NOT NULL DEFAULT '{}',
  label_keys TEXT NOT NULL DEFAULT '[]'
) STRICT;

-- Serves: the registration of a server.
CREATE UNIQUE INDEX registration_tokens_by_key ON registration_tokens (workspace_id, key_hash);

-- Serves: the list, newest first.
CREATE INDEX registration_tokens_by_workspace ON registration_tokens (workspace_id, id);

-- Serves: the deletion of all tokens of a user.
CREATE INDEX registration_tokens_by_creator ON registration_tokens (workspace_id, creator_id);

-- The groups that a server joins at registration.
CREATE TABLE registration_token_groups (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  token_id TEXT NOT NULL,
  group_id INTEGER NOT NULL,
  PRIMARY KEY (workspace_id, token_id, group_id)
) STRICT, WITHOUT ROWID;

-- Serves: the deletion of a group.
CREATE INDEX registration_token_groups_by_group ON registration_token_groups (workspace_id, group_id);

-- ==================== Scripts (contract 14.10) ====================

-- A script: a stored program that commands run by id. `version` is the number of its latest
-- version, and `name` the name in that version.
CREATE TABLE scripts (
  id TEXT PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  name TEXT NOT NULL,
  -- The user who created it. Null: that user was deleted.
  owner_id INTEGER,
  version INTEGER NOT NULL,
  added_at TEXT NOT NULL,
  -- When it was deleted. New commands cannot use it from then on. Its versions are kept.
  hidden_at TEXT
) STRICT;

-- Serves: the uniqueness of names, the filter by name, and the quota.
CREATE UNIQUE INDEX scripts_by_name ON scripts (workspace_id, name) WHERE hidden_at IS NULL;

-- Serves: the list, newest first (ids sort by creation).
CREATE INDEX scripts_by_workspace ON scripts (workspace_id, id) WHERE hidden_at IS NULL;

-- Serves: the removal of a deleted user from scripts.
CREATE INDEX scripts_by_owner ON scripts (workspace_id, owner_id);

-- A version of a script. Nothing changes a row: commands name it, and their agents get the body
-- from here.
CREATE TABLE script_versions (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  script_id TEXT NOT NULL,
  version INTEGER NOT NULL,
  name TEXT NOT NULL,
  description TEXT NOT NULL,
  -- Name and description in Unicode lower case, for the search.
  folded_name TEXT NOT NULL,
  folded_description TEXT NOT NULL,
  interpreter TEXT NOT NULL,
  body TEXT NOT NULL,
  -- Of the body, in hexadecimal.
  sha256 TEXT NOT NULL,
  -- The declarations of the parameters, as a JSON array.
  params TEXT NOT NULL,
  -- The user who wrote this version. Null: that user was deleted.
  author_id INTEGER,
  added_at TEXT NOT NULL,
  PRIMARY KEY (workspace_id, script_id, version)
) STRICT;

-- Serves: the removal of a deleted user from versions.
CREATE INDEX script_versions_by_author ON script_versions (workspace_id, author_id);

-- ==================== Commands ====================

-- A command, as the object of its server last wrote it. The columns of the request (line, account,
-- and so on) never change. Times only move forward.
-- - state, status_message: computed from the times by farhand_domain::command::lifecycle.
-- - server_name: the name to show after the server was deleted.
-- - requested_by: a user's id. It becomes null after the user was deleted.
-- - result: the part of the output that lists show. full_result: the whole output, if it is longer.
-- - seq: 2^40 times the workspace's id, plus a number that grows with each insertion in the
--   workspace: see counted_commands.
CREATE TABLE commands (
  seq INTEGER PRIMARY KEY CHECK (seq >> 40 = workspace_id),
  id TEXT NOT NULL,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  server_id TEXT NOT NULL,
  server_name TEXT NOT NULL,
  requested_by INTEGER,
  -- The batch that the command belongs to. Null: none.
  batch_id TEXT,
  shell TEXT NOT NULL,
  line TEXT NOT NULL,
  username TEXT NOT NULL,
  groupname TEXT NOT NULL,
  -- The words of a command without a shell, as JSON.
  argv TEXT,
  -- The script that runs instead of the line, as <id>@<version>.
  script TEXT,
  -- Whether the request had an environment, standard input or a directory. D1 never stores these.
  has_inputs INTEGER NOT NULL DEFAULT 0 CHECK (has_inputs IN (0, 1)),
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
  -- The bytes of its output that may be kept. Only a command that is inserted as delivered needs it.
  output_limit INTEGER,
  -- The bytes of its output that were left out.
  output_skipped INTEGER NOT NULL DEFAULT 0,
  -- The bytes of line and inputs for the quota of stored bytes. Null if a resync restored the
  -- command.
  stored_bytes INTEGER,
  result_truncated INTEGER NOT NULL DEFAULT 0 CHECK (result_truncated IN (0, 1)),
  -- The SHA-256 of the kept result of a command in a batch, to group equal outputs.
  result_sha256 TEXT,
  result TEXT,
  full_result TEXT,
  -- The revision of the last update by the object: see servers.link_revision.
  revision INTEGER NOT NULL DEFAULT 0,
  -- Keyed hashes (under SECRET_KEY) of the Idempotency-Key and of the request body, valid for 24
  -- hours.
  idempotency_key TEXT,
  idempotency_body TEXT
) STRICT;

-- Serves: reading one command by its id, the updates by its object, and the deletion of commands
-- that ended long ago (ids begin with the time of creation).
CREATE UNIQUE INDEX commands_by_id ON commands (workspace_id, id);

-- docs/contributing/cost.md has the price of each index. A list of commands in its default order is
-- read from an index. In any other order, all matching commands are sorted.

-- Serves: the list without filters, `is_scheduled`, and filters that match most commands
-- (`shell=system`, `success=true`, `requested_by_isnull=false`).
CREATE INDEX commands_by_schedule ON commands (workspace_id, scheduled_at, id);

-- Serves: the filter `server`, and the lists of callers with partial access, one server after the
-- other.
CREATE INDEX commands_by_server ON commands (workspace_id, server_id, scheduled_at, id);

-- Serves: the filters `requested_by` and `requested_by_isnull=true`, and the removal of a deleted
-- user from commands.
CREATE INDEX commands_by_requester ON commands (workspace_id, requested_by, scheduled_at, id);

-- Serves: the filter `state` with states before the end. The index has few entries.
CREATE INDEX commands_open ON commands (workspace_id, scheduled_at, id) WHERE handled_at IS NULL;

-- Serves: the filter `success=false`.
CREATE INDEX commands_unsuccessful ON commands (workspace_id, scheduled_at, id) WHERE success = 0;

-- Serves: the filter `shell=internal`.
CREATE INDEX commands_internal ON commands (workspace_id, scheduled_at, id) WHERE shell = 'internal';

-- Serves: the lookup of an Idempotency-Key, and its uniqueness per user.
CREATE UNIQUE INDEX commands_by_key ON commands (workspace_id, requested_by, idempotency_key)
WHERE idempotency_key IS NOT NULL;

-- Serves: the search in lines that are longer than the indexed part in command_texts, newest first.
CREATE INDEX commands_long ON commands (workspace_id, seq, length(line)) WHERE length(line) > 1024;

-- Serves: the commands of a batch. A batch has at most one command for each server.
CREATE UNIQUE INDEX commands_by_batch ON commands (workspace_id, batch_id, server_id) WHERE batch_id IS NOT NULL;

-- Serves: the quotas of waiting commands. The targets of batches count as targets, not as commands.
-- A command that is inserted as delivered adds no entry.
CREATE INDEX commands_waiting ON commands (workspace_id, requested_by, batch_id)
WHERE delivered_at IS NULL AND handled_at IS NULL;

-- Responses to requests with an Idempotency-Key. For requests that create commands, `commands` has
-- the keys. A row is written in the transaction of its change, and deleted after 24 hours. The
-- operator's rows have workspace 0 and user 0, so workspace_id is not a foreign key.
CREATE TABLE idempotency_keys (
  workspace_id INTEGER NOT NULL,
  user_id INTEGER NOT NULL,
  -- Keyed hashes of the key, and of the endpoint with the body.
  key_hash TEXT NOT NULL,
  request_hash TEXT NOT NULL,
  -- The new resource as JSON, without its secrets.
  answer TEXT NOT NULL,
  added_at TEXT NOT NULL,
  PRIMARY KEY (workspace_id, user_id, key_hash)
) STRICT;

-- Serves: the deletion of expired rows.
CREATE INDEX idempotency_keys_by_added ON idempotency_keys (added_at);

-- ==================== Batches (docs/contributing/batches.md) ====================

-- A batch: one command on many servers.
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
  -- The script that runs instead of the line, as <id>@<version>.
  script TEXT,
  -- Null: the default account of each server.
  username TEXT,
  groupname TEXT NOT NULL,
  timeout INTEGER NOT NULL,
  -- Environment, standard input and directory, encrypted under SECRET_KEY. Null once the batch has
  -- ended.
  inputs TEXT,
  has_inputs INTEGER NOT NULL DEFAULT 0 CHECK (has_inputs IN (0, 1)),
  -- Whether the batch gave parameters to its script. They are deleted when it ends, as its inputs.
  has_params INTEGER NOT NULL DEFAULT 0 CHECK (has_params IN (0, 1)),
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
  counts TEXT,
  -- Whether retention has deleted commands of the batch. Their targets are not listed.
  lost_commands INTEGER NOT NULL DEFAULT 0 CHECK (lost_commands IN (0, 1))
) STRICT;

-- Serves: the list, newest first.
CREATE INDEX batches_by_time ON batches (workspace_id, added_at, id);

-- Serves: the list of the batches that a user requested.
CREATE INDEX batches_by_requester ON batches (workspace_id, requested_by, added_at, id);

-- Serves: the quotas, and the hourly search for batches whose object was never called.
CREATE INDEX batches_open ON batches (workspace_id, requested_by) WHERE finished_at IS NULL;

-- Serves: the filters by schedule.
CREATE INDEX batches_by_schedule ON batches (workspace_id, schedule_id) WHERE schedule_id IS NOT NULL;

-- Serves: whether an earlier run of a schedule has not ended (`overlap`).
CREATE INDEX batches_of_schedule ON batches (workspace_id, schedule_id) WHERE schedule_id IS NOT NULL AND finished_at IS NULL;

-- A target of a batch: a server on which it runs. `position` is its place in the batch.
CREATE TABLE batch_targets (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  batch_id TEXT NOT NULL,
  position INTEGER NOT NULL,
  server_id TEXT NOT NULL,
  -- The server's name when the batch was created.
  server_name TEXT NOT NULL,
  -- The state of a target without a command: 'queued', 'skipped', 'cancelled' or 'expired'. Null:
  -- pending, or the target's command has the state.
  state TEXT CHECK (state IN ('queued', 'skipped', 'cancelled', 'expired')),
  reason TEXT,
  PRIMARY KEY (workspace_id, batch_id, position)
) STRICT, WITHOUT ROWID;

-- Serves: the batches to notify when a server connects.
CREATE INDEX batch_targets_queued ON batch_targets (workspace_id, server_id) WHERE state = 'queued';

-- ==================== Schedules (docs/contributing/schedules.md) ====================

-- A schedule: a batch that starts at times.
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

-- ==================== Derived data of commands ====================

-- The number of commands of a workspace up to the key `up_to`. Later commands, a few hundred at
-- most, are counted whenever a list is read, so that its `count` is exact. The workspace's Sealer
-- moves `up_to` to the last command. The transaction that deletes a command subtracts it from the
-- counters that include it. Each new command gets a key above `up_to`.
CREATE TABLE counted_commands (
  workspace_id INTEGER PRIMARY KEY REFERENCES workspaces (id),
  up_to INTEGER NOT NULL,
  total INTEGER NOT NULL
) STRICT;

-- The number of commands up to `up_to` for each server (kind 'server') and for each requester (kind
-- 'requester'). `key` is the id of the server or the user.
CREATE TABLE command_counts (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  kind TEXT NOT NULL CHECK (kind IN ('server', 'requester')),
  key TEXT NOT NULL,
  total INTEGER NOT NULL,
  PRIMARY KEY (workspace_id, kind, key)
) STRICT, WITHOUT ROWID;

-- The servers of commands, with the names that they had when the commands were created. Lists show
-- and find a deleted server by that name. `number` represents server and name in command_texts. A
-- number is not reused while a command refers to it.
CREATE TABLE command_servers (
  number INTEGER PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  server_id TEXT NOT NULL,
  name TEXT NOT NULL
) STRICT;

-- Serves: the search for a server's name.
CREATE UNIQUE INDEX command_servers_by_server ON command_servers (workspace_id, server_id, name);

-- The servers on which a user requested commands. If such a server is deleted, the user can still
-- read these commands. A row is kept until the server has no commands, or the user is deleted.
CREATE TABLE command_requesters (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  user_id INTEGER NOT NULL,
  server_id TEXT NOT NULL,
  PRIMARY KEY (workspace_id, user_id, server_id)
) STRICT, WITHOUT ROWID;

-- Serves: the deletion of a server's rows together with its last command.
CREATE INDEX command_requesters_by_server ON command_requesters (workspace_id, server_id, user_id);

-- The search index. It does not store the texts again.
-- - rowid: the command's seq. The commands of a workspace are adjacent, so a search reads no
--   entries of other workspaces.
-- - server, requester: a number as three characters, which form one token. The number is from
--   command_servers, or it is the requester's id. The characters are from the private-use area.
--   Each has 14 bits, and they begin at U+F4000 and U+F8000.
-- - line: the first 1,024 characters of the line, so that long lines do not make the index large.
--   commands_long serves the remaining characters. A line feed follows. So the last two characters
--   of the line also begin a token, and words of two characters are found by such tokens.
-- - wide: the token `yes` if the line has characters that are not ASCII, and the token `lng` if the
--   line is longer than 1,024 characters.
CREATE VIRTUAL TABLE command_texts USING fts5 (
  server, requester, line, wide, tokenize = 'trigram', content = '', columnsize = 0
);

-- The rows of command_texts for all commands. To delete an entry, FTS5 needs exactly the values
-- that were inserted.
CREATE VIEW command_text_rows AS
SELECT c.seq, substr(c.line, 1, 1024) || char(10) AS line,
  iif(length(CAST(c.line AS BLOB)) > length(c.line), 'yes', '') || iif(length(c.line) > 1024, 'lng', '') AS wide,
  char(0xF4000 + (n.number >> 28 & 0x3FFF), 0xF4000 + (n.number >> 14 & 0x3FFF), 0xF4000 + (n.number & 0x3FFF)) AS server,
  iif(c.requested_by IS NULL, '', char(0xF8000 + (c.requested_by >> 28 & 0x3FFF),
    0xF8000 + (c.requested_by >> 14 & 0x3FFF), 0xF8000 + (c.requested_by & 0x3FFF))) AS requester
FROM commands c
JOIN command_servers n ON n.workspace_id = c.workspace_id AND n.server_id = c.server_id AND n.name = c.server_name;

-- These triggers keep the search index consistent with the commands.
CREATE TRIGGER commands_in AFTER INSERT ON commands BEGIN
  INSERT INTO command_servers (workspace_id, server_id, name) VALUES (new.workspace_id, new.server_id, new.server_name)
  ON CONFLICT (workspace_id, server_id, name) DO NOTHING;
  INSERT INTO command_texts (rowid, server, requester, line, wide)
  SELECT seq, server, requester, line, wide FROM command_text_rows WHERE seq = new.seq;
  -- If the requester was deleted before this insertion, the janitor clears requested_by.
  INSERT INTO deleted_users (workspace_id, user_id) SELECT new.workspace_id, new.requested_by
  WHERE new.requested_by IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM users WHERE id = new.requested_by AND workspace_id = new.workspace_id)
  ON CONFLICT (workspace_id, user_id) DO NOTHING;
END;

CREATE TRIGGER commands_requested AFTER INSERT ON commands WHEN new.requested_by IS NOT NULL BEGIN
  INSERT INTO command_requesters (workspace_id, user_id, server_id)
  VALUES (new.workspace_id, new.requested_by, new.server_id)
  ON CONFLICT (workspace_id, user_id, server_id) DO NOTHING;
END;

CREATE TRIGGER commands_out BEFORE DELETE ON commands BEGIN
  INSERT INTO command_texts (command_texts, rowid, server, requester, line, wide)
  SELECT 'delete', seq, server, requester, line, wide FROM command_text_rows WHERE seq = old.seq;
END;

-- The janitor removes a deleted user from the commands that the user requested.
CREATE TRIGGER commands_requester_before BEFORE UPDATE OF requested_by ON commands
WHEN new.requested_by IS NOT old.requested_by BEGIN
  INSERT INTO command_texts (command_texts, rowid, server, requester, line, wide)
  SELECT 'delete', seq, server, requester, line, wide FROM command_text_rows WHERE seq = old.seq;
END;

CREATE TRIGGER commands_requester_after AFTER UPDATE OF requested_by ON commands
WHEN new.requested_by IS NOT old.requested_by BEGIN
  INSERT INTO command_texts (rowid, server, requester, line, wide)
  SELECT seq, server, requester, line, wide FROM command_text_rows WHERE seq = new.seq;
END;

-- ==================== Derived data of batches (docs/contributing/batches.md) ====================

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

-- The service inserts the targets after their batch. An import of `npm run export` inserts them
-- before it, and the commands last.
CREATE TRIGGER batch_counts_in AFTER INSERT ON batches WHEN new.finished_at IS NULL BEGIN
  INSERT INTO batch_counts (workspace_id, batch_id, queued, cancelled, expired, skipped)
  SELECT new.workspace_id, new.id, count(*) FILTER (WHERE state = 'queued'), count(*) FILTER (WHERE state = 'cancelled'),
    count(*) FILTER (WHERE state = 'expired'), count(*) FILTER (WHERE state = 'skipped')
  FROM batch_targets WHERE workspace_id = new.workspace_id AND batch_id = new.id;
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

-- ==================== Audit log (docs/audit.md) ====================

-- An audit event of a workspace. Workspace 0 has the operator's events in the region cell. They are
-- kept longer than any workspace, so workspace_id is not a foreign key. The row is written in the
-- transaction of the change that it records.
-- `seq` is 2^40 times the workspace's id, plus the number of the event in the workspace, from 1 on.
-- D1 has one writer, so the numbers grow in the order of the changes. The events of a workspace are
-- adjacent. The number is also the event's place in the audit chain (`link`).
CREATE TABLE audit_events (
  seq INTEGER PRIMARY KEY CHECK (seq >> 40 = workspace_id),
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
  details TEXT NOT NULL
) STRICT;

-- The seals of consecutive events, from `first` to `last` by their `seq`. Only the workspace's
-- Sealer writes a row, for all events that it seals together. `hashes` has the hashes of the events
-- in the audit chain, 64 characters each.
-- The table also serves the filter by time. `earliest` is not later than any event of the row.
-- `latest` is not earlier than any event of the row or of a row before it.
CREATE TABLE audit_seals (
  last INTEGER PRIMARY KEY CHECK (last >> 40 = workspace_id),
  workspace_id INTEGER NOT NULL,
  first INTEGER NOT NULL,
  earliest TEXT NOT NULL,
  latest TEXT NOT NULL,
  hashes TEXT NOT NULL
) STRICT;

-- Counts anonymous events, which are not written to the audit log one by one: failed logins and
-- reset requests (docs/audit.md). `written_at` is when the last event of the action and object was
-- written. `pending` is the number of occurrences since then. `object_id` is a user's id, or ''.
CREATE TABLE anonymous_events (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  action TEXT NOT NULL,
  object_id TEXT NOT NULL,
  pending INTEGER NOT NULL,
  written_at TEXT NOT NULL,
  PRIMARY KEY (workspace_id, action, object_id)
) STRICT, WITHOUT ROWID;

-- The list without filters and the filter by time read the events by `seq`.

-- Serves: the filter by object.
CREATE INDEX audit_events_by_object ON audit_events (workspace_id, object_id);

-- Serves: the filters by action and by actor. The filter by actor alone searches the index once for
-- each action.
CREATE INDEX audit_events_by_action ON audit_events (workspace_id, action, actor_name);

-- Serves: the filter by outcome, for the few unsuccessful events.
CREATE INDEX audit_events_by_outcome ON audit_events (workspace_id, outcome) WHERE outcome <> 'success';

-- Serves: the search for anonymous events that are old enough to be deleted.
CREATE INDEX audit_events_anonymous ON audit_events (workspace_id) WHERE actor_type = 'anonymous';

-- The chain entry of an anonymous event that was deleted because of its age: the digest of the
-- event's columns. The hash of the entry remains in audit_seals. `link` is the event's place in the
-- chain. `number` grows by one from row to row, so that the difference of two numbers is a number
-- of rows.
CREATE TABLE audit_expired (
  workspace_id INTEGER NOT NULL,
  link INTEGER NOT NULL,
  number INTEGER NOT NULL,
  digest TEXT NOT NULL,
  PRIMARY KEY (workspace_id, link)
) STRICT, WITHOUT ROWID;

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

-- ==================== Quotas of bytes (docs/contributing/quotas.md) ====================

-- The bytes that a workspace and each of its users stored, by hour (contract 11.4). A row is used again when its
-- hour is older than a day. The bytes of uncounted commands are read from their rows: see
-- counted_commands.
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

-- Counts the kept output of a command that the counters already include. At most 16 MiB of output
-- are kept.
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
-- farhand_domain::limits::quota::COUNTED_ACTIONS has the same actions.
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

-- ==================== Security: the effects of changes ====================

-- Triggers apply these effects in the transaction of the change, no matter which statement makes
-- the change. No result depends on the order of the triggers of one event. The column `resets` is
-- about the user's pending reset requests. The columns `servers` and `deleted` are about the servers
-- and the deleted servers that the user owns: `none` means that they have no owner afterwards.
--
-- event on a user       | sessions | API tokens | resets | reg. tokens | memberships | servers | deleted
-- password changed      | deleted  |            | void   |             |             |         |
-- e-mail changed        |          |            | void   |             |             |         |
-- staff, superuser lost | deleted  |            |        | (1)         |             | (2)     | none
-- deactivated           | deleted  | disabled   | void   | (1)         |             |         |
-- deleted               | deleted  | deleted    | void   | deleted     | deleted     | none    | none
--
-- (1) No trigger: a registration token is valid only while its creator is active staff.
-- (2) No trigger: the statement that changes the user clears the owner, unless the request says
--     `keep_servers: true`. Deleted servers lose their owner also then.
--
-- event                       | effect
-- user deleted                | schedules of the user are disabled, and lose owner and credential
--                             | scripts and versions of the user lose their owner and author
--                             | the bytes counted for the user are deleted
-- group deleted               | its memberships and its links to servers and tokens are deleted
-- server deleted              | its links to groups are deleted; if approved, its name is kept 30 days
-- server renamed              | if approved, its old name is kept 30 days
-- registration token deleted  | its links to groups are deleted
-- API token disabled, deleted | schedules that it created are disabled
-- session revoked             | schedules that it created are disabled, and lose their credential
-- schedule deleted            | its runs are deleted
--
-- An API token that expires disables its schedules when the next run is due.

CREATE TRIGGER users_password AFTER UPDATE OF password_changed_at ON users BEGIN
  DELETE FROM sessions WHERE workspace_id = new.workspace_id AND user_id = new.id;
  UPDATE reset_requests SET user_id = NULL WHERE workspace_id = new.workspace_id AND user_id = new.id;
END;

CREATE TRIGGER users_email AFTER UPDATE OF email ON users WHEN new.email <> old.email BEGIN
  UPDATE reset_requests SET user_id = NULL WHERE workspace_id = new.workspace_id AND user_id = new.id;
END;

CREATE TRIGGER users_demoted AFTER UPDATE OF is_staff, is_superuser ON users
WHEN new.is_staff < old.is_staff OR new.is_superuser < old.is_superuser BEGIN
  DELETE FROM sessions WHERE workspace_id = new.workspace_id AND user_id = new.id;
END;

CREATE TRIGGER users_deactivated AFTER UPDATE OF is_active ON users WHEN old.is_active = 1 AND new.is_active = 0 BEGIN
  DELETE FROM sessions WHERE workspace_id = new.workspace_id AND user_id = new.id;
  UPDATE api_tokens SET enabled = 0, updated_at = strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')
  WHERE workspace_id = new.workspace_id AND user_id = new.id AND enabled = 1;
  UPDATE reset_requests SET user_id = NULL WHERE workspace_id = new.workspace_id AND user_id = new.id;
END;

CREATE TRIGGER users_deleted AFTER DELETE ON users BEGIN
  DELETE FROM sessions WHERE workspace_id = old.workspace_id AND user_id = old.id;
  DELETE FROM revoked_sessions WHERE workspace_id = old.workspace_id AND user_id = old.id;
  DELETE FROM api_tokens WHERE workspace_id = old.workspace_id AND user_id = old.id;
  UPDATE reset_requests SET user_id = NULL WHERE workspace_id = old.workspace_id AND user_id = old.id;
  UPDATE servers SET owner_id = NULL WHERE workspace_id = old.workspace_id AND owner_id = old.id;
  DELETE FROM memberships WHERE workspace_id = old.workspace_id AND user_id = old.id;
  DELETE FROM command_requesters WHERE workspace_id = old.workspace_id AND user_id = old.id;
  DELETE FROM registration_tokens WHERE workspace_id = old.workspace_id AND creator_id = old.id;
END;

CREATE TRIGGER users_deleted_schedules AFTER DELETE ON users BEGIN
  UPDATE schedules SET owner_id = NULL, session = NULL, api_token = NULL, enabled = 0, revision = revision + 1,
    updated_at = strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')
  WHERE workspace_id = old.workspace_id AND owner_id = old.id;
END;

CREATE TRIGGER users_deleted_scripts AFTER DELETE ON users BEGIN
  UPDATE scripts SET owner_id = NULL WHERE workspace_id = old.workspace_id AND owner_id = old.id;
  UPDATE script_versions SET author_id = NULL WHERE workspace_id = old.workspace_id AND author_id = old.id;
END;

CREATE TRIGGER quota_bytes_user_out AFTER DELETE ON users BEGIN
  DELETE FROM quota_bytes WHERE workspace_id = old.workspace_id AND user_id = old.id;
END;

CREATE TRIGGER deleted_servers_demoted AFTER UPDATE OF is_staff, is_superuser ON users
WHEN new.is_staff < old.is_staff OR new.is_superuser < old.is_superuser BEGIN
  UPDATE deleted_servers SET owner_id = NULL WHERE workspace_id = new.workspace_id AND owner_id = new.id;
END;

CREATE TRIGGER deleted_servers_user_deleted AFTER DELETE ON users BEGIN
  UPDATE deleted_servers SET owner_id = NULL WHERE workspace_id = old.workspace_id AND owner_id = old.id;
END;

CREATE TRIGGER groups_deleted AFTER DELETE ON groups BEGIN
  DELETE FROM memberships WHERE workspace_id = old.workspace_id AND group_id = old.id;
  DELETE FROM server_groups WHERE workspace_id = old.workspace_id AND group_id = old.id;
  DELETE FROM registration_token_groups WHERE workspace_id = old.workspace_id AND group_id = old.id;
END;

CREATE TRIGGER servers_deleted AFTER DELETE ON servers BEGIN
  DELETE FROM server_groups WHERE workspace_id = old.workspace_id AND server_id = old.id;
  INSERT INTO server_names (workspace_id, name, freed_at)
  SELECT old.workspace_id, old.name, strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now') WHERE old.registration = 'active'
  ON CONFLICT (workspace_id, name) DO UPDATE SET freed_at = excluded.freed_at;
END;

CREATE TRIGGER servers_renamed AFTER UPDATE OF name ON servers
WHEN new.name <> old.name AND old.registration = 'active' BEGIN
  INSERT INTO server_names (workspace_id, name, freed_at)
  VALUES (old.workspace_id, old.name, strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now'))
  ON CONFLICT (workspace_id, name) DO UPDATE SET freed_at = excluded.freed_at;
END;

CREATE TRIGGER registration_tokens_deleted AFTER DELETE ON registration_tokens BEGIN
  DELETE FROM registration_token_groups WHERE workspace_id = old.workspace_id AND token_id = old.id;
END;

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

CREATE TRIGGER schedules_deleted AFTER DELETE ON schedules BEGIN
  DELETE FROM schedule_runs WHERE workspace_id = old.workspace_id AND schedule_id = old.id;
END;
