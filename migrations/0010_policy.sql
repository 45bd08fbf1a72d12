-- The policy of a host, as its agent reports it: a JSON object with `mode` and `sha256`. Null: the
-- agent does not report it.
ALTER TABLE servers ADD COLUMN policy TEXT;
-- Of a deleted server, too (0009_server_grace.sql).
ALTER TABLE deleted_servers ADD COLUMN policy TEXT;
