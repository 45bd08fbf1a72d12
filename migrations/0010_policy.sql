-- The policy of a host, as its agent reports it: a JSON object with `mode` and `sha256`. Null: the
-- agent does not report it.
ALTER TABLE servers ADD COLUMN policy TEXT;
