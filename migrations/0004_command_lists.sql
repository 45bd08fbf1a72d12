-- Lists of commands: filters, orderings, search and counts, none of which reads the table (docs/performance.md, What lists
-- cost). An index of (workspace, column, id) is read from either end.

-- Serves: `server`, and the lists of callers who reach some servers only, one server after the other.
CREATE INDEX commands_by_server ON commands (workspace_id, server_id, scheduled_at, id);
-- Serves: `shell`.
CREATE INDEX commands_by_shell ON commands (workspace_id, shell, scheduled_at, id);
-- Serves: `requested_by_isnull=false`. (`true` and `requested_by` are served by commands_by_requester.)
CREATE INDEX commands_requested ON commands (workspace_id, scheduled_at, id) WHERE requested_by IS NOT NULL;
-- Serves: `is_scheduled=true`, and what command_horizons counts.
CREATE INDEX commands_planned ON commands (workspace_id, scheduled_at, id) WHERE scheduled_at > added_at;
-- Serve: `ordering` by each of these. (commands_by_schedule serves that by scheduled_at.)
CREATE INDEX commands_by_added ON commands (workspace_id, added_at, id);
CREATE INDEX commands_by_delivered ON commands (workspace_id, delivered_at, id);
CREATE INDEX commands_by_acked ON commands (workspace_id, acked_at, id);
CREATE INDEX commands_by_handled ON commands (workspace_id, handled_at, id);

DROP TRIGGER commands_count_in;
DROP TRIGGER commands_count_out;
DROP TABLE command_counts;

-- How many commands a workspace has, by shell (kind 'shell'; those of all shells are all there are) and by requester (kind
-- 'requester', the key is the user's id, '' for none). The triggers keep it exact, so that a list's `count` counts no rows.
CREATE TABLE command_counts (
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  kind TEXT NOT NULL,
  key TEXT NOT NULL,
  total INTEGER NOT NULL,
  PRIMARY KEY (workspace_id, kind, key)
) STRICT, WITHOUT ROWID;

-- How many commands a server has, by the name that it had when they were made: a server that is gone is shown, and found,
-- by that. `number` stands for server and name in command_texts, and is not used again while a command has it.
CREATE TABLE command_servers (
  number INTEGER PRIMARY KEY,
  workspace_id INTEGER NOT NULL REFERENCES workspaces (id),
  server_id TEXT NOT NULL,
  name TEXT NOT NULL,
  total INTEGER NOT NULL,
  -- Of those: with the shell `internal`, and without a requester.
  internal INTEGER NOT NULL,
  nobody INTEGER NOT NULL
) STRICT;

-- Serves: the count of a server's commands, and the search for its name.
CREATE UNIQUE INDEX command_servers_by_server ON command_servers (workspace_id, server_id, name);

-- How many commands are scheduled for later than `moment`. Time moves on by itself, so what came due since is taken off
-- when it is read, and for good whenever a scheduled command is made, goes out or ends.
CREATE TABLE command_horizons (
  workspace_id INTEGER PRIMARY KEY REFERENCES workspaces (id),
  moment TEXT NOT NULL,
  total INTEGER NOT NULL
) STRICT;

-- The search. Beside the line, whose command it is, as three characters that stand for a number and are one token of the
-- index: the workspace, so that nobody pays for the matches of others; the number in command_servers; the requester's id.
-- They are of a private plane of Unicode, 14 bits each, and each column has its own: U+F0000, U+F4000, U+F8000.
-- The line ends with a line feed, so that its last two characters begin a token, too: that is how words of two are found.
-- `wide` has its one token where the line is not all ASCII. The texts themselves are not kept a second time.
CREATE VIRTUAL TABLE command_texts USING fts5 (
  workspace, server, requester, line, wide, tokenize = 'trigram', content = '', columnsize = 0
);

-- What command_texts holds of each command: to be put in, and word for word the same to be taken out.
CREATE VIEW command_text_rows AS
SELECT c.seq, c.line || char(10) AS line, iif(length(CAST(c.line AS BLOB)) > length(c.line), 'yes', '') AS wide,
  char(0xF0000 + (c.workspace_id >> 28 & 0x3FFF), 0xF0000 + (c.workspace_id >> 14 & 0x3FFF),
    0xF0000 + (c.workspace_id & 0x3FFF)) AS workspace,
  char(0xF4000 + (n.number >> 28 & 0x3FFF), 0xF4000 + (n.number >> 14 & 0x3FFF), 0xF4000 + (n.number & 0x3FFF)) AS server,
  iif(c.requested_by IS NULL, '', char(0xF8000 + (c.requested_by >> 28 & 0x3FFF),
    0xF8000 + (c.requested_by >> 14 & 0x3FFF), 0xF8000 + (c.requested_by & 0x3FFF))) AS requester
FROM commands c
JOIN command_servers n ON n.workspace_id = c.workspace_id AND n.server_id = c.server_id AND n.name = c.server_name;

-- The commands that are there already.
INSERT INTO command_counts (workspace_id, kind, key, total)
SELECT workspace_id, 'shell', shell, count(*) FROM commands GROUP BY workspace_id, shell;
INSERT INTO command_counts (workspace_id, kind, key, total)
SELECT workspace_id, 'requester', coalesce(requested_by, ''), count(*) FROM commands GROUP BY workspace_id, requested_by;
INSERT INTO command_servers (workspace_id, server_id, name, total, internal, nobody)
SELECT workspace_id, server_id, server_name, count(*), sum(shell = 'internal'), sum(requested_by IS NULL)
FROM commands GROUP BY workspace_id, server_id, server_name;
INSERT INTO command_horizons (workspace_id, moment, total)
SELECT workspace_id, strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now'),
  sum(scheduled_at > strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now'))
FROM commands WHERE scheduled_at > added_at GROUP BY workspace_id;
INSERT INTO command_texts (rowid, workspace, server, requester, line, wide)
SELECT seq, workspace, server, requester, line, wide FROM command_text_rows;
INSERT INTO departed_users (workspace_id, user_id)
SELECT DISTINCT c.workspace_id, c.requested_by FROM commands c WHERE c.requested_by IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM users u WHERE u.id = c.requested_by AND u.workspace_id = c.workspace_id)
ON CONFLICT (workspace_id, user_id) DO NOTHING;

CREATE TRIGGER commands_in AFTER INSERT ON commands BEGIN
  INSERT INTO command_counts (workspace_id, kind, key, total)
  VALUES (new.workspace_id, 'shell', new.shell, 1),
    (new.workspace_id, 'requester', coalesce(new.requested_by, ''), 1)
  ON CONFLICT (workspace_id, kind, key) DO UPDATE SET total = total + 1;
  INSERT INTO command_servers (workspace_id, server_id, name, total, internal, nobody)
  VALUES (new.workspace_id, new.server_id, new.server_name, 1, new.shell = 'internal', new.requested_by IS NULL)
  ON CONFLICT (workspace_id, server_id, name) DO UPDATE
  SET total = total + 1, internal = internal + excluded.internal, nobody = nobody + excluded.nobody;
  INSERT INTO command_texts (rowid, workspace, server, requester, line, wide)
  SELECT seq, workspace, server, requester, line, wide FROM command_text_rows WHERE seq = new.seq;
  -- Whose user was deleted meanwhile: lists without a requester know it by that.
  INSERT INTO departed_users (workspace_id, user_id) SELECT new.workspace_id, new.requested_by
  WHERE new.requested_by IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM users WHERE id = new.requested_by AND workspace_id = new.workspace_id)
  ON CONFLICT (workspace_id, user_id) DO NOTHING;
END;

CREATE TRIGGER commands_out BEFORE DELETE ON commands BEGIN
  UPDATE command_counts SET total = total - 1 WHERE workspace_id = old.workspace_id
    AND ((kind = 'shell' AND key = old.shell) OR (kind = 'requester' AND key = coalesce(old.requested_by, '')));
  UPDATE command_servers SET total = total - 1, internal = internal - (old.shell = 'internal'),
    nobody = nobody - (old.requested_by IS NULL)
  WHERE workspace_id = old.workspace_id AND server_id = old.server_id AND name = old.server_name;
  INSERT INTO command_texts (command_texts, rowid, workspace, server, requester, line, wide)
  SELECT 'delete', seq, workspace, server, requester, line, wide FROM command_text_rows WHERE seq = old.seq;
END;

-- A deleted user's name is taken off their commands.
CREATE TRIGGER commands_requester_before BEFORE UPDATE OF requested_by ON commands
WHEN new.requested_by IS NOT old.requested_by BEGIN
  UPDATE command_counts SET total = total - 1
  WHERE workspace_id = old.workspace_id AND kind = 'requester' AND key = coalesce(old.requested_by, '');
  INSERT INTO command_texts (command_texts, rowid, workspace, server, requester, line, wide)
  SELECT 'delete', seq, workspace, server, requester, line, wide FROM command_text_rows WHERE seq = old.seq;
END;

CREATE TRIGGER commands_requester_after AFTER UPDATE OF requested_by ON commands
WHEN new.requested_by IS NOT old.requested_by BEGIN
  INSERT INTO command_counts (workspace_id, kind, key, total)
  VALUES (new.workspace_id, 'requester', coalesce(new.requested_by, ''), 1)
  ON CONFLICT (workspace_id, kind, key) DO UPDATE SET total = total + 1;
  UPDATE command_servers SET nobody = nobody + (new.requested_by IS NULL) - (old.requested_by IS NULL)
  WHERE workspace_id = new.workspace_id AND server_id = new.server_id AND name = new.server_name;
  INSERT INTO command_texts (rowid, workspace, server, requester, line, wide)
  SELECT seq, workspace, server, requester, line, wide FROM command_text_rows WHERE seq = new.seq;
END;

-- Moves a horizon to now, over the commands that came due: each is passed once. Without any, nothing is written.
CREATE VIEW command_horizons_now AS
SELECT h.workspace_id, strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now') AS moment,
  (SELECT count(*) FROM commands c WHERE c.workspace_id = h.workspace_id AND c.scheduled_at > c.added_at
    AND c.scheduled_at > h.moment AND c.scheduled_at <= strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')) AS passed
FROM command_horizons h;

CREATE TRIGGER commands_planned_in AFTER INSERT ON commands WHEN new.scheduled_at > new.added_at BEGIN
  INSERT INTO command_horizons (workspace_id, moment, total)
  VALUES (new.workspace_id, strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now'), 0) ON CONFLICT (workspace_id) DO NOTHING;
  UPDATE command_horizons SET total = total + 1
  WHERE workspace_id = new.workspace_id AND moment < new.scheduled_at;
  UPDATE command_horizons SET moment = n.moment, total = total - n.passed FROM command_horizons_now n
  WHERE command_horizons.workspace_id = new.workspace_id AND n.workspace_id = new.workspace_id AND n.passed > 0;
END;

CREATE TRIGGER commands_planned_on AFTER UPDATE OF delivered_at, handled_at ON commands
WHEN new.scheduled_at > new.added_at
  AND (new.delivered_at IS NOT old.delivered_at OR new.handled_at IS NOT old.handled_at) BEGIN
  UPDATE command_horizons SET moment = n.moment, total = total - n.passed FROM command_horizons_now n
  WHERE command_horizons.workspace_id = new.workspace_id AND n.workspace_id = new.workspace_id AND n.passed > 0;
END;

CREATE TRIGGER commands_planned_out AFTER DELETE ON commands WHEN old.scheduled_at > old.added_at BEGIN
  UPDATE command_horizons SET total = total - 1
  WHERE workspace_id = old.workspace_id AND moment < old.scheduled_at;
END;
