-- The key that registered a session: no other one may act for it.
alter table worker_sessions add column key_id text;
