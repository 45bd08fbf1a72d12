-- The index of lines by workspace: a command's place in it is its workspace's id and then its seq. So the commands of a workspace
-- lie beside each other there, and a search enters the index where they begin and leaves it where they end, however many others
-- find the same words.

DROP TRIGGER commands_in;
DROP TRIGGER commands_out;
DROP TRIGGER commands_requester_before;
DROP TRIGGER commands_requester_after;
DROP VIEW command_text_rows;
DROP TABLE command_texts;

-- The search. Its rowid is 2^40 times the workspace's id, and the command's seq. Beside the line, whose command it is, as three
-- characters that stand for a number and are one token of the index: the number in command_servers, and the requester's id. They
-- are of a private plane of Unicode, 14 bits each, and each column has its own: U+F4000, U+F8000.
-- The line ends with a line feed, so that its last two characters begin a token, too: that is how words of two are found.
-- `wide` has its one token where the line is not all ASCII. The texts themselves are not kept a second time.
CREATE VIRTUAL TABLE command_texts USING fts5 (
  server, requester, line, wide, tokenize = 'trigram', content = '', columnsize = 0
);

-- What command_texts holds of each command: to be put in, and word for word the same to be taken out.
CREATE VIEW command_text_rows AS
SELECT c.seq, (c.workspace_id << 40) + c.seq AS place, c.line || char(10) AS line,
  iif(length(CAST(c.line AS BLOB)) > length(c.line), 'yes', '') AS wide,
  char(0xF4000 + (n.number >> 28 & 0x3FFF), 0xF4000 + (n.number >> 14 & 0x3FFF), 0xF4000 + (n.number & 0x3FFF)) AS server,
  iif(c.requested_by IS NULL, '', char(0xF8000 + (c.requested_by >> 28 & 0x3FFF),
    0xF8000 + (c.requested_by >> 14 & 0x3FFF), 0xF8000 + (c.requested_by & 0x3FFF))) AS requester
FROM commands c
JOIN command_servers n ON n.workspace_id = c.workspace_id AND n.server_id = c.server_id AND n.name = c.server_name;

-- The commands that are there already.
INSERT INTO command_texts (rowid, server, requester, line, wide)
SELECT place, server, requester, line, wide FROM command_text_rows ORDER BY place;

CREATE TRIGGER commands_in AFTER INSERT ON commands BEGIN
  INSERT INTO command_counts (workspace_id, kind, key, total)
  VALUES (new.workspace_id, 'shell', new.shell, 1),
    (new.workspace_id, 'requester', coalesce(new.requested_by, ''), 1)
  ON CONFLICT (workspace_id, kind, key) DO UPDATE SET total = total + 1;
  INSERT INTO command_servers (workspace_id, server_id, name, total, internal, nobody)
  VALUES (new.workspace_id, new.server_id, new.server_name, 1, new.shell = 'internal', new.requested_by IS NULL)
  ON CONFLICT (workspace_id, server_id, name) DO UPDATE
  SET total = total + 1, internal = internal + excluded.internal, nobody = nobody + excluded.nobody;
  INSERT INTO command_texts (rowid, server, requester, line, wide)
  SELECT place, server, requester, line, wide FROM command_text_rows WHERE seq = new.seq;
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
  INSERT INTO command_texts (command_texts, rowid, server, requester, line, wide)
  SELECT 'delete', place, server, requester, line, wide FROM command_text_rows WHERE seq = old.seq;
END;

-- A deleted user's name is taken off their commands.
CREATE TRIGGER commands_requester_before BEFORE UPDATE OF requested_by ON commands
WHEN new.requested_by IS NOT old.requested_by BEGIN
  UPDATE command_counts SET total = total - 1
  WHERE workspace_id = old.workspace_id AND kind = 'requester' AND key = coalesce(old.requested_by, '');
  INSERT INTO command_texts (command_texts, rowid, server, requester, line, wide)
  SELECT 'delete', place, server, requester, line, wide FROM command_text_rows WHERE seq = old.seq;
END;

CREATE TRIGGER commands_requester_after AFTER UPDATE OF requested_by ON commands
WHEN new.requested_by IS NOT old.requested_by BEGIN
  INSERT INTO command_counts (workspace_id, kind, key, total)
  VALUES (new.workspace_id, 'requester', coalesce(new.requested_by, ''), 1)
  ON CONFLICT (workspace_id, kind, key) DO UPDATE SET total = total + 1;
  UPDATE command_servers SET nobody = nobody + (new.requested_by IS NULL) - (old.requested_by IS NULL)
  WHERE workspace_id = new.workspace_id AND server_id = new.server_id AND name = new.server_name;
  INSERT INTO command_texts (rowid, server, requester, line, wide)
  SELECT place, server, requester, line, wide FROM command_text_rows WHERE seq = new.seq;
END;
