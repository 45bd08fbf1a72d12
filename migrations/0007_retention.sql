-- Retention: what goes with the last command of a server.

-- Serves: the end of what is noted of a server's requesters. It is written once for each user and server.
CREATE INDEX command_requesters_by_server ON command_requesters (workspace_id, server_id, user_id);
