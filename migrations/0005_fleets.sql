-- Fleets: groups of users and servers, servers that are gone, and agents that register themselves.

-- A group: its members reach its servers (contract 5). The folded texts are in lower case as Unicode has it, for the search.
-- AUTOINCREMENT: the id of a deleted group is never another one's.
CREATE TABLE groups (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  name TEXT NOT NULL,
  display_name TEXT NOT NULL,
  description TEXT NOT NULL,
  folded_display_name TEXT NOT NULL,
  folded_description TEXT NOT NULL,
  added_at TEXT NOT NULL,
  updated_at TEXT NOT NULL
) STRICT;

-- Serves: the uniqueness of names, and the filter by one.
CREATE UNIQUE INDEX groups_by_name ON groups (workspace_id, name);
-- Serves: the list, oldest first: an index ends with the rowid, which is the id.
CREATE INDEX groups_by_workspace ON groups (workspace_id);

-- Who is in a group, and as what.
CREATE TABLE memberships (
  id TEXT PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  group_id INTEGER NOT NULL,
  user_id INTEGER NOT NULL,
  role TEXT NOT NULL CHECK (role IN ('member', 'manager', 'owner'))
) STRICT;

-- Serves: what a user reaches, and that nobody is in a group twice.
CREATE UNIQUE INDEX memberships_by_user ON memberships (workspace_id, user_id, group_id);
-- Serves: the members of a group, and its owners.
CREATE INDEX memberships_by_group ON memberships (workspace_id, group_id, role);
-- Serves: the list, oldest first (ids sort by creation).
CREATE INDEX memberships_by_workspace ON memberships (workspace_id, id);

-- The servers of a group.
CREATE TABLE server_groups (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  group_id INTEGER NOT NULL,
  server_id TEXT NOT NULL,
  PRIMARY KEY (workspace_id, group_id, server_id)
) STRICT, WITHOUT ROWID;

-- Serves: the groups of a server.
CREATE INDEX server_groups_by_server ON server_groups (workspace_id, server_id, group_id);

-- A server that was deleted and of which there are commands: its object still has their output.
CREATE TABLE gone_servers (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  id TEXT NOT NULL,
  PRIMARY KEY (workspace_id, id)
) STRICT, WITHOUT ROWID;

-- On which servers a user ever asked for commands: of those that are gone, their own stay readable to them.
CREATE TABLE command_requesters (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  user_id INTEGER NOT NULL,
  server_id TEXT NOT NULL,
  PRIMARY KEY (workspace_id, user_id, server_id)
) STRICT, WITHOUT ROWID;

INSERT INTO command_requesters (workspace_id, user_id, server_id)
SELECT DISTINCT workspace_id, requested_by, server_id FROM commands WHERE requested_by IS NOT NULL;

CREATE TRIGGER commands_requested AFTER INSERT ON commands WHEN new.requested_by IS NOT NULL BEGIN
  INSERT INTO command_requesters (workspace_id, user_id, server_id)
  VALUES (new.workspace_id, new.requested_by, new.server_id)
  ON CONFLICT (workspace_id, user_id, server_id) DO NOTHING;
END;

-- What a server's agent told of its host, in lower case as Unicode has it, for the search.
ALTER TABLE servers ADD COLUMN folded TEXT NOT NULL DEFAULT '';

-- What agents register servers with. `uses` is how often it still can be used, null for any number.
-- It is as good as its creator, who must be staff (docs/agents.md).
CREATE TABLE registration_tokens (
  id TEXT PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  creator_id INTEGER NOT NULL,
  name TEXT NOT NULL,
  key_hash TEXT NOT NULL,
  expires_at TEXT,
  uses INTEGER CHECK (uses >= 0),
  added_at TEXT NOT NULL
) STRICT;

-- Serves: the registration of a server.
CREATE UNIQUE INDEX registration_tokens_by_key ON registration_tokens (workspace_id, key_hash);
-- Serves: the list, newest first.
CREATE INDEX registration_tokens_by_workspace ON registration_tokens (workspace_id, id);
-- Serves: the end of a user's tokens together.
CREATE INDEX registration_tokens_by_creator ON registration_tokens (workspace_id, creator_id);

-- The groups that a server comes into with its registration.
CREATE TABLE registration_token_groups (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  token_id TEXT NOT NULL,
  group_id INTEGER NOT NULL,
  PRIMARY KEY (workspace_id, token_id, group_id)
) STRICT, WITHOUT ROWID;

-- Serves: the end of a group.
CREATE INDEX registration_token_groups_by_group ON registration_token_groups (workspace_id, group_id);

-- What goes along with whom, in the same transaction and whichever statement deletes.
CREATE TRIGGER groups_deleted AFTER DELETE ON groups BEGIN
  DELETE FROM memberships WHERE workspace_id = old.workspace_id AND group_id = old.id;
  DELETE FROM server_groups WHERE workspace_id = old.workspace_id AND group_id = old.id;
  DELETE FROM registration_token_groups WHERE workspace_id = old.workspace_id AND group_id = old.id;
END;

CREATE TRIGGER servers_deleted AFTER DELETE ON servers BEGIN
  DELETE FROM server_groups WHERE workspace_id = old.workspace_id AND server_id = old.id;
END;

CREATE TRIGGER registration_tokens_deleted AFTER DELETE ON registration_tokens BEGIN
  DELETE FROM registration_token_groups WHERE workspace_id = old.workspace_id AND token_id = old.id;
END;

CREATE TRIGGER users_left AFTER DELETE ON users BEGIN
  DELETE FROM memberships WHERE workspace_id = old.workspace_id AND user_id = old.id;
  DELETE FROM command_requesters WHERE workspace_id = old.workspace_id AND user_id = old.id;
  DELETE FROM registration_tokens WHERE workspace_id = old.workspace_id AND creator_id = old.id;
END;
