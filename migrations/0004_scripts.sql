-- Scripts: stored programs that commands run by id (contract 14.10).

-- A script. `version` is the number of its latest version, and `name` the name in that version.
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

CREATE TRIGGER users_deleted_scripts AFTER DELETE ON users BEGIN
  UPDATE scripts SET owner_id = NULL WHERE workspace_id = old.workspace_id AND owner_id = old.id;
  UPDATE script_versions SET author_id = NULL WHERE workspace_id = old.workspace_id AND author_id = old.id;
END;

-- The script that runs instead of the line, as <id>@<version>.
ALTER TABLE commands ADD COLUMN script TEXT;
ALTER TABLE batches ADD COLUMN script TEXT;

-- Whether the batch gave parameters to its script. They are deleted when it ends, as its inputs.
ALTER TABLE batches ADD COLUMN has_params INTEGER NOT NULL DEFAULT 0 CHECK (has_params IN (0, 1));
