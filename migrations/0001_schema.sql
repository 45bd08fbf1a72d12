-- Farhand's tables in D1.
--
-- Times are texts of one width, 2026-11-21T01:23:45.678901+00:00. They sort in time order and go into responses as they are.
-- Booleans are 0 and 1. Every tenant table has workspace_id, and every index on one begins with it.
-- Columns with a user's id are not foreign keys: checking one when a user is deleted would need an index that does not
-- begin with workspace_id, or a scan of all tenants' rows. Triggers delete the dependent rows in the same transaction.

-- ==================== Tenants and people ====================

-- A tenant. A deleted one keeps its row until all its data is purged.
-- AUTOINCREMENT: an id is never reused, so data of a purged workspace cannot appear in a new one.
-- `last_user_id` and `last_group_id` are the highest ids that users and groups of the workspace ever had. Triggers raise them
-- with each new row, so an id is never reused in its workspace and reveals nothing about other workspaces.
CREATE TABLE workspaces (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  slug TEXT NOT NULL,
  name TEXT NOT NULL,
  added_at TEXT NOT NULL,
  -- Since when everything in the workspace is refused.
  deleted_at TEXT,
  -- When the purge of a deleted workspace begins. Until then it can be undeleted.
  purge_at TEXT,
  -- 1 from the beginning of the purge on. From then on the slug is free.
  is_purging INTEGER NOT NULL DEFAULT 0,
  last_user_id INTEGER NOT NULL DEFAULT 0,
  last_group_id INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Serves: the janitor's search for workspaces to purge.
CREATE INDEX workspaces_purging ON workspaces (id) WHERE is_purging = 1;

-- Serves: the janitor's search for workspaces whose grace period is over.
CREATE INDEX workspaces_by_purge ON workspaces (purge_at) WHERE purge_at IS NOT NULL;

-- Serves: the Host header of every request. At most one live workspace has a slug.
CREATE UNIQUE INDEX workspaces_by_slug ON workspaces (slug) WHERE deleted_at IS NULL;

-- Serves: the operator's changes. A slug stays taken until the purge begins.
CREATE UNIQUE INDEX workspaces_by_taken_slug ON workspaces (slug) WHERE is_purging = 0;

-- A user. `password` is a PHC string of PBKDF2-HMAC-SHA-256. `id` counts within the workspace: see last_user_id.
-- The primary key also serves the list of users, oldest first.
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
  -- Both names in Unicode lower case, for the search: SQLite's lower() knows ASCII only.
  -- One column each, so that concurrent changes of both names need not read the other one.
  folded_first_name TEXT NOT NULL DEFAULT '',
  folded_last_name TEXT NOT NULL DEFAULT '',
  -- When the password last changed. Re-hashing the same password with more rounds does not move it.
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

-- A deleted user whose commands still name them. The janitor clears the commands, then this row.
CREATE TABLE departed_users (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  user_id INTEGER NOT NULL,
  PRIMARY KEY (workspace_id, user_id)
) STRICT, WITHOUT ROWID;

-- ==================== Credentials ====================

-- A login. The row decides whether its token is alive; KV only caches. Revoking deletes the row.
-- `refreshed_at` is when `expires_at` was last moved.
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

-- Serves: a user's list of sessions, and revoking all of them.
CREATE INDEX sessions_by_user ON sessions (workspace_id, user_id, id);

-- A revoked session: the commands that it created and that still wait are not delivered. A logout or an expiry adds no row.
-- `is_settled` is 1 once the servers' objects have cancelled those commands. Until then, and for a command that was being
-- created during the revocation, the recheck before delivery reads this table.
CREATE TABLE revoked_sessions (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  id TEXT NOT NULL,
  user_id INTEGER NOT NULL,
  revoked_at TEXT NOT NULL,
  is_settled INTEGER NOT NULL DEFAULT 0 CHECK (is_settled IN (0, 1)),
  PRIMARY KEY (workspace_id, id)
) STRICT, WITHOUT ROWID;

-- Serves: deleting a user's rows.
CREATE INDEX revoked_sessions_by_user ON revoked_sessions (workspace_id, user_id);

-- Serves: the janitor's search for users whose commands are to be cancelled.
CREATE INDEX revoked_sessions_open ON revoked_sessions (workspace_id, user_id, id) WHERE is_settled = 0;

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

-- A request for a password reset. It counts for 24 hours whether or not the address is registered, and whatever its outcome.
-- `address_hash` is the keyed hash of the requested address. `user_id` is the user whose password it may set: null for an
-- unregistered address, and once the request is used or void. The key in the mail is derived from `id`.
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

-- Serves: voiding all of a user's requests. It has no condition on user_id, so that a request costs the same for
-- registered and unregistered addresses.
CREATE INDEX reset_requests_by_user ON reset_requests (workspace_id, user_id);

-- Serves: deleting expired requests.
CREATE INDEX reset_requests_by_expiry ON reset_requests (workspace_id, expires_at);

-- ==================== Servers and groups ====================

-- A server. The Durable Object with the same id holds its connection. The columns about host and connection are what
-- that object last reported.
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
  -- Counts the object's reports about this row. An older report that arrives late changes nothing.
  link_revision INTEGER NOT NULL DEFAULT 0,
  added_at TEXT NOT NULL,
  updated_at TEXT NOT NULL,
  -- The agent's host facts in Unicode lower case, for the search.
  folded TEXT NOT NULL DEFAULT '',
  -- A pending server runs no commands until staff approve it.
  registration TEXT NOT NULL DEFAULT 'active' CHECK (registration IN ('pending', 'active')),
  -- The fingerprint of the agent's key, of a server that was registered with a token that asks for approval.
  fingerprint TEXT,
  -- When a second agent with this server's id and key was last refused; null: not recently.
  identity_conflict_at TEXT,
  -- The remote account of commands that name none: set by a user; null: `reported_username`.
  default_username TEXT,
  -- The only account that its agent can use, as reported by an agent that is not root.
  reported_username TEXT
) STRICT;

-- Serves: deleting servers that were not approved in time.
CREATE INDEX servers_pending ON servers (workspace_id, added_at) WHERE registration = 'pending';

-- Serves: a command that names its server, and the uniqueness of names.
CREATE UNIQUE INDEX servers_by_name ON servers (workspace_id, name);

-- Serves: the list of servers, newest first.
CREATE INDEX servers_by_workspace ON servers (workspace_id, id);

-- Serves: an owner's servers.
CREATE INDEX servers_by_owner ON servers (workspace_id, owner_id, id);

-- A name that a server gave up less than 30 days ago, by a deletion or a new name. No pending server gets it.
CREATE TABLE server_names (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  name TEXT NOT NULL,
  freed_at TEXT NOT NULL,
  PRIMARY KEY (workspace_id, name)
) STRICT, WITHOUT ROWID;

-- Serves: deleting the rows that are older.
CREATE INDEX server_names_by_time ON server_names (workspace_id, freed_at);

CREATE TRIGGER server_names_in AFTER INSERT ON server_names BEGIN
  DELETE FROM server_names WHERE workspace_id = new.workspace_id
    AND freed_at <= strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now', '-30 days');
END;

-- A group: its members can access its servers (contract 5.4). The folded columns are in Unicode lower case, for the search.
-- `id` counts within the workspace: see last_group_id. The primary key also serves the list of groups, oldest first.
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

-- Serves: the servers a user can access; a user is in a group at most once.
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

-- A deleted server that still has commands. Its object keeps their output.
CREATE TABLE gone_servers (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  id TEXT NOT NULL,
  PRIMARY KEY (workspace_id, id)
) STRICT, WITHOUT ROWID;

-- A token that agents register servers with. `uses` is the number of uses left; null means no limit.
-- It is valid only while its creator is active staff (docs/agents.md).
CREATE TABLE registration_tokens (
  id TEXT PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  creator_id INTEGER NOT NULL,
  name TEXT NOT NULL,
  key_hash TEXT NOT NULL,
  expires_at TEXT,
  uses INTEGER CHECK (uses >= 0),
  -- A pattern that the name an agent asks for must match; it is a GLOB pattern whose only wildcard is `*`. Null: any name.
  name_pattern TEXT,
  -- The networks from which agents may register, as a JSON array of CIDRs without host bits. Null: all.
  networks TEXT,
  -- Whether staff must approve each server before it runs commands.
  approval INTEGER NOT NULL DEFAULT 0 CHECK (approval IN (0, 1)),
  added_at TEXT NOT NULL
) STRICT;

-- Serves: the registration of a server.
CREATE UNIQUE INDEX registration_tokens_by_key ON registration_tokens (workspace_id, key_hash);

-- Serves: the list, newest first.
CREATE INDEX registration_tokens_by_workspace ON registration_tokens (workspace_id, id);

-- Serves: deleting all tokens of a user.
CREATE INDEX registration_tokens_by_creator ON registration_tokens (workspace_id, creator_id);

-- The groups that a server joins at registration.
CREATE TABLE registration_token_groups (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  token_id TEXT NOT NULL,
  group_id INTEGER NOT NULL,
  PRIMARY KEY (workspace_id, token_id, group_id)
) STRICT, WITHOUT ROWID;

-- Serves: deleting a group.
CREATE INDEX registration_token_groups_by_group ON registration_token_groups (workspace_id, group_id);

-- ==================== Commands ====================

-- A command, as its server's object last reported it. What was requested (line, account ...) never changes, and its times
-- only move forward. `state` and `status_message` are computed from the times by farhand_domain::lifecycle.
-- `server_name` is kept for deleted servers. `requested_by` is a user's id, null once that user is deleted.
-- `result` is the part of the output that lists show; `full_result` is all of it, if it is longer.
-- `seq` is 2^40 times the workspace's id, plus a number in the workspace that grows with each insert: see counted_commands.
CREATE TABLE commands (
  seq INTEGER PRIMARY KEY CHECK (seq >> 40 = workspace_id),
  id TEXT NOT NULL,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  server_id TEXT NOT NULL,
  server_name TEXT NOT NULL,
  requested_by INTEGER,
  shell TEXT NOT NULL,
  line TEXT NOT NULL,
  username TEXT NOT NULL,
  groupname TEXT NOT NULL,
  -- The words of a command without a shell, as JSON.
  argv TEXT,
  -- Whether it was given an environment, standard input or a directory. D1 never has these.
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
  -- What its line and its inputs count for the quota of stored bytes. Null for a command that was restored.
  stored_bytes INTEGER,
  result_truncated INTEGER NOT NULL DEFAULT 0 CHECK (result_truncated IN (0, 1)),
  result TEXT,
  full_result TEXT,
  -- As link_revision of servers.
  revision INTEGER NOT NULL DEFAULT 0,
  -- Keyed hashes (under SECRET_KEY) of the Idempotency-Key and of the request body, valid for 24 hours.
  idempotency_key TEXT,
  idempotency_body TEXT
) STRICT;

-- Serves: one command by its id, the object's reports about it, and deleting commands that ended long ago: ids begin with the
-- time of creation.
CREATE UNIQUE INDEX commands_by_id ON commands (workspace_id, id);

-- docs/contributing/cost.md has the price of each index. In its default order a list of commands is
-- read by an index; in another order it sorts all commands that match.

-- Serves: the list without filters, `is_scheduled`, and filters that match most commands
-- (`shell=system`, `success=true`, `requested_by_isnull=false`).
CREATE INDEX commands_by_schedule ON commands (workspace_id, scheduled_at, id);

-- Serves: `server`, and the lists of callers who can access only some servers, one server after the other.
CREATE INDEX commands_by_server ON commands (workspace_id, server_id, scheduled_at, id);

-- Serves: `requested_by`, `requested_by_isnull=true`, and removing a deleted user from their commands in steps.
CREATE INDEX commands_by_requester ON commands (workspace_id, requested_by, scheduled_at, id);

-- Serves: `state` with states before the end. Few commands are in it.
CREATE INDEX commands_open ON commands (workspace_id, scheduled_at, id) WHERE handled_at IS NULL;

-- Serves: `success=false`.
CREATE INDEX commands_unsuccessful ON commands (workspace_id, scheduled_at, id) WHERE success = 0;

-- Serves: `shell=internal`.
CREATE INDEX commands_internal ON commands (workspace_id, scheduled_at, id) WHERE shell = 'internal';

-- Serves: the lookup of an Idempotency-Key, and that each is used once per user.
CREATE UNIQUE INDEX commands_by_key ON commands (workspace_id, requested_by, idempotency_key)
WHERE idempotency_key IS NOT NULL;

-- Serves: the quotas of waiting commands. A command that is inserted as delivered is never in it.
CREATE INDEX commands_waiting ON commands (workspace_id, requested_by) WHERE delivered_at IS NULL AND handled_at IS NULL;

-- Serves: the search in lines that are longer than what command_texts has of them, newest first.
CREATE INDEX commands_long ON commands (workspace_id, seq, length(line)) WHERE length(line) > 1024;

-- Answers to requests with an Idempotency-Key, but for those that create commands, which keep theirs themselves. A row is
-- written in the transaction of its change, and deleted after 24 hours. The operator's rows have workspace 0 and user 0, so the
-- column is not a foreign key.
CREATE TABLE idempotency_keys (
  workspace_id INTEGER NOT NULL,
  user_id INTEGER NOT NULL,
  -- Keyed hashes: of the key, and of the endpoint with the body.
  key_hash TEXT NOT NULL,
  request_hash TEXT NOT NULL,
  -- The new resource as JSON, without its secrets.
  answer TEXT NOT NULL,
  added_at TEXT NOT NULL,
  PRIMARY KEY (workspace_id, user_id, key_hash)
) STRICT;

-- Serves: deleting expired rows.
CREATE INDEX idempotency_keys_by_added ON idempotency_keys (added_at);

-- ==================== Derived data of commands ====================

-- How many commands a workspace has up to the key `up_to`. Those behind it, some hundred at most, are counted when a list is read,
-- so that its `count` is exact. The workspace's Sealer moves `up_to` to the last command. A deletion takes a command out of the
-- counters that have it, in its transaction. No command gets a key up to `up_to`.
-- `bytes` is what these commands stored on the latest `day` (UTC, 2026-11-21), for the quota: lines and inputs on the day of
-- their insert, and output. For the commands behind `up_to` it is read from their rows.
CREATE TABLE counted_commands (
  workspace_id INTEGER PRIMARY KEY REFERENCES workspaces (id),
  up_to INTEGER NOT NULL,
  total INTEGER NOT NULL,
  day TEXT NOT NULL,
  bytes INTEGER NOT NULL
) STRICT;

-- Output of a command that is counted already. At most 16 MiB of it are kept.
CREATE TRIGGER commands_output AFTER UPDATE OF output_bytes ON commands WHEN new.output_bytes > old.output_bytes
  AND (new.stored_bytes IS NULL OR new.seq <= (SELECT up_to FROM counted_commands WHERE workspace_id = new.workspace_id)) BEGIN
  UPDATE counted_commands SET day = strftime('%Y-%m-%d', 'now'), bytes = iif(day = strftime('%Y-%m-%d', 'now'), bytes, 0)
    + min(new.output_bytes, 16777216) - min(old.output_bytes, 16777216)
  WHERE workspace_id = new.workspace_id;
END;

-- How many of them a server has (kind 'server', the key is its id), and a user requested (kind 'requester').
CREATE TABLE command_counts (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  kind TEXT NOT NULL CHECK (kind IN ('server', 'requester')),
  key TEXT NOT NULL,
  total INTEGER NOT NULL,
  PRIMARY KEY (workspace_id, kind, key)
) STRICT, WITHOUT ROWID;

-- The servers of commands, by the names they had when the commands were created: a deleted server is shown and found by that
-- name. `number` stands for server and name in command_texts. It is not reused while a command refers to it.
CREATE TABLE command_servers (
  number INTEGER PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  server_id TEXT NOT NULL,
  name TEXT NOT NULL
) STRICT;

-- Serves: the search for a server's name.
CREATE UNIQUE INDEX command_servers_by_server ON command_servers (workspace_id, server_id, name);

-- The servers on which a user requested commands. The commands they requested on deleted servers stay readable to them.
-- A row stays until the server has no commands, or the user is deleted.
CREATE TABLE command_requesters (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  user_id INTEGER NOT NULL,
  server_id TEXT NOT NULL,
  PRIMARY KEY (workspace_id, user_id, server_id)
) STRICT, WITHOUT ROWID;

-- Serves: deleting a server's rows, with its last command.
CREATE INDEX command_requesters_by_server ON command_requesters (workspace_id, server_id, user_id);

-- The search index. Its rowid is the command's seq: the commands of a workspace are adjacent, so a search reads no other
-- workspace's part. Server and requester are three characters each that encode a number and form
-- one token: the number in command_servers, and the requester's id. They are private-use characters with 14 bits each, from
-- U+F4000 and U+F8000. `line` has the first 1,024 characters, so the index stays small whatever lines people send; commands_long
-- serves the rest. It ends with a line feed, so that its last two characters begin a token too: this is how words of two
-- characters are found. `wide` has the token `yes` if the line is not all ASCII, and `lng` if it is longer than 1,024 characters.
-- The texts are not stored a second time.
CREATE VIRTUAL TABLE command_texts USING fts5 (
  server, requester, line, wide, tokenize = 'trigram', content = '', columnsize = 0
);

-- The row of command_texts for each command. An FTS5 'delete' needs exactly the values that were inserted.
CREATE VIEW command_text_rows AS
SELECT c.seq, substr(c.line, 1, 1024) || char(10) AS line,
  iif(length(CAST(c.line AS BLOB)) > length(c.line), 'yes', '') || iif(length(c.line) > 1024, 'lng', '') AS wide,
  char(0xF4000 + (n.number >> 28 & 0x3FFF), 0xF4000 + (n.number >> 14 & 0x3FFF), 0xF4000 + (n.number & 0x3FFF)) AS server,
  iif(c.requested_by IS NULL, '', char(0xF8000 + (c.requested_by >> 28 & 0x3FFF),
    0xF8000 + (c.requested_by >> 14 & 0x3FFF), 0xF8000 + (c.requested_by & 0x3FFF))) AS requester
FROM commands c
JOIN command_servers n ON n.workspace_id = c.workspace_id AND n.server_id = c.server_id AND n.name = c.server_name;

-- The search index follows the commands.
CREATE TRIGGER commands_in AFTER INSERT ON commands BEGIN
  INSERT INTO command_servers (workspace_id, server_id, name) VALUES (new.workspace_id, new.server_id, new.server_name)
  ON CONFLICT (workspace_id, server_id, name) DO NOTHING;
  INSERT INTO command_texts (rowid, server, requester, line, wide)
  SELECT seq, server, requester, line, wide FROM command_text_rows WHERE seq = new.seq;
  -- The requester may have been deleted before this insert: the janitor then clears requested_by.
  INSERT INTO departed_users (workspace_id, user_id) SELECT new.workspace_id, new.requested_by
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

-- The janitor removes a deleted user from their commands.
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

-- ==================== Security: what a change ends ====================

-- In the transaction of the change, whichever statement makes it. One trigger for each event.
-- Resets are the pending ones of the user's password, servers those that the user owns.
--
-- event on a user       | sessions | API tokens | resets | registration tokens | memberships | servers
-- password changed      | deleted  |            | void   |                     |             |
-- e-mail changed        |          |            | void   |                     |             |
-- staff, superuser lost | deleted  |            |        | (1)                 |             | (2)
-- deactivated           | deleted  | disabled   | void   | (1)                 |             |
-- deleted               | deleted  | deleted    | void   | deleted             | deleted     | no owner
--
-- (1) No trigger: a registration token is valid only while its creator is active staff.
-- (2) No trigger: the statement that changes the user clears the owner, unless the request says
--     `keep_servers: true`.
--
-- event                      | effect
-- group deleted              | its memberships and links to servers and registration tokens are deleted
-- server deleted             | its links to groups are deleted; if it was approved, its name is kept 30 days
-- server renamed             | if it was approved, its old name is kept 30 days
-- registration token deleted | its links to groups are deleted

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

-- ==================== Audit log (docs/audit.md) ====================

-- An event in a workspace. Workspace 0 holds the operator's events in the region cell, which outlive workspaces, so the column
-- is not a foreign key. The row is written in the transaction of the change that it records.
-- `seq` is 2^40 times the workspace's id, plus the event's number in the workspace, from 1 on. D1 has one writer, so the numbers
-- grow in the order of the changes, and a workspace's events are adjacent. The number is also the event's link in the chain.
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

-- The seals of some events that follow each other, `first` to `last` by their `seq`. Only the workspace's Sealer writes it, one
-- row for all events that it finds. `hashes` has the hash of each event in the chain, 64 characters each.
-- Serves also: the filter by time. No event of the row is earlier than `earliest`; none of it or of an earlier row is later
-- than `latest`.
CREATE TABLE audit_seals (
  last INTEGER PRIMARY KEY CHECK (last >> 40 = workspace_id),
  workspace_id INTEGER NOT NULL,
  first INTEGER NOT NULL,
  earliest TEXT NOT NULL,
  latest TEXT NOT NULL,
  hashes TEXT NOT NULL
) STRICT;

-- Anonymous events that are not in the audit log one by one: failed logins and reset requests (docs/audit.md). `pending` counts
-- those since `written_at`, when the last event of the action and object was written. `object_id` is a user's id, or ''.
CREATE TABLE anonymous_events (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  action TEXT NOT NULL,
  object_id TEXT NOT NULL,
  pending INTEGER NOT NULL,
  written_at TEXT NOT NULL,
  PRIMARY KEY (workspace_id, action, object_id)
) STRICT, WITHOUT ROWID;

-- The list without filters, and its filter by time, read the events in their own order.

-- Serves: the filter by object.
CREATE INDEX audit_events_by_object ON audit_events (workspace_id, object_id);

-- Serves: the filters by action and by actor. The one by actor alone looks up each action that is there.
CREATE INDEX audit_events_by_action ON audit_events (workspace_id, action, actor_name);

-- Serves: the filter by outcome, for the few events without success.
CREATE INDEX audit_events_by_outcome ON audit_events (workspace_id, outcome) WHERE outcome <> 'success';

-- Serves: the search for anonymous events that are older than they are kept.
CREATE INDEX audit_events_anonymous ON audit_events (workspace_id) WHERE actor_type = 'anonymous';

-- What stays in the chain of an anonymous event that was deleted because of its age: the digest of its columns. Its hash stays in
-- audit_seals. `number` grows by one from link to link, so that the number of events is the difference of two.
CREATE TABLE audit_expired (
  workspace_id INTEGER NOT NULL,
  link INTEGER NOT NULL,
  number INTEGER NOT NULL,
  digest TEXT NOT NULL,
  PRIMARY KEY (workspace_id, link)
) STRICT, WITHOUT ROWID;
