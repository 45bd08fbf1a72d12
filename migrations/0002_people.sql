-- People: their lists, what a change of one of them ends, and password resets.

-- First and last name in lower case as Unicode has it, which SQLite's lower() does not know: for the search.
ALTER TABLE users ADD COLUMN folded_first_name TEXT NOT NULL DEFAULT '';
ALTER TABLE users ADD COLUMN folded_last_name TEXT NOT NULL DEFAULT '';
-- When the password was last set to another one. A hash that is only made again, with more rounds, does not move it.
ALTER TABLE users ADD COLUMN password_changed_at TEXT;

-- A request for a password reset, which counts for its 24 hours whether or not the address was anybody's, and whatever
-- comes of it. `address_hash` is the keyed hash of the address asked for. `user_id` is whose password it may set: null
-- where there was no such user, and once it is used or void. The key in the mail is made of `id` and TOKEN_PEPPER.
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
-- Serves: the end of all of a user's requests together.
-- Not only of those that are somebody's: a request must not take other work for who is registered.
CREATE INDEX reset_requests_by_user ON reset_requests (workspace_id, user_id);
-- Serves: clearing away what expired.
CREATE INDEX reset_requests_by_expiry ON reset_requests (workspace_id, expires_at);

-- A user who was deleted, until none of their commands names them any more.
CREATE TABLE departed_users (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  user_id INTEGER NOT NULL,
  PRIMARY KEY (workspace_id, user_id)
) STRICT, WITHOUT ROWID;

-- Serves: taking a deleted user's name off their commands, some at a time.
CREATE INDEX commands_by_requester ON commands (workspace_id, requested_by, scheduled_at, id);
-- Serves: the servers of an owner.
CREATE INDEX servers_by_owner ON servers (workspace_id, owner_id, id);
-- Serves: the list of users, oldest first: an index ends with the rowid, which is the id.
CREATE INDEX users_by_workspace ON users (workspace_id);
-- Serves: the rule that a workspace keeps a superuser.
CREATE INDEX users_superusers ON users (workspace_id) WHERE is_superuser = 1 AND is_active = 1;

-- What a change of a user ends is ended here, in the same transaction and whichever statement makes the change.
CREATE TRIGGER users_password AFTER UPDATE OF password_changed_at ON users BEGIN
  DELETE FROM sessions WHERE workspace_id = new.workspace_id AND user_id = new.id;
  UPDATE reset_requests SET user_id = NULL WHERE workspace_id = new.workspace_id AND user_id = new.id;
END;

CREATE TRIGGER users_email AFTER UPDATE OF email ON users WHEN new.email <> old.email BEGIN
  UPDATE reset_requests SET user_id = NULL WHERE workspace_id = new.workspace_id AND user_id = new.id;
END;

CREATE TRIGGER users_deactivated AFTER UPDATE OF is_active ON users WHEN old.is_active = 1 AND new.is_active = 0 BEGIN
  DELETE FROM sessions WHERE workspace_id = new.workspace_id AND user_id = new.id;
  UPDATE api_tokens SET enabled = 0, updated_at = strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')
  WHERE workspace_id = new.workspace_id AND user_id = new.id AND enabled = 1;
  UPDATE reset_requests SET user_id = NULL WHERE workspace_id = new.workspace_id AND user_id = new.id;
END;

CREATE TRIGGER users_deleted AFTER DELETE ON users BEGIN
  DELETE FROM sessions WHERE workspace_id = old.workspace_id AND user_id = old.id;
  DELETE FROM api_tokens WHERE workspace_id = old.workspace_id AND user_id = old.id;
  UPDATE reset_requests SET user_id = NULL WHERE workspace_id = old.workspace_id AND user_id = old.id;
  UPDATE servers SET owner_id = NULL WHERE workspace_id = old.workspace_id AND owner_id = old.id;
END;
