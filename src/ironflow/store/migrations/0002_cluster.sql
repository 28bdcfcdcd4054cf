-- Cluster: scopes (whose a row is), keys, what a workflow's code declares, and workers over HTTP.

-- A pause and a workflow belong to one environment of an organisation. Neither database can change a primary key in
-- one way that both understand, so the tables are made anew.
alter table workflow_pauses rename to workflow_pauses_1;
create table workflow_pauses (
    org text not null,
    environment text not null,
    workflow text not null,
    paused_at bigint not null,
    paused_by text,
    primary key (org, environment, workflow)
);
insert into workflow_pauses (org, environment, workflow, paused_at, paused_by)
select org, 'default', workflow, paused_at, paused_by from workflow_pauses_1;
drop table workflow_pauses_1;

-- `definition`: what a start needs to know where the code is not, as JSON.
alter table workflows_seen rename to workflows_seen_1;
create table workflows_seen (
    org text not null,
    environment text not null,
    name text not null,
    version text not null,
    worker_tags text,
    definition text,
    first_seen_at bigint not null,
    seen_at bigint not null,
    primary key (org, environment, name)
);
insert into workflows_seen (org, environment, name, version, worker_tags, first_seen_at, seen_at)
select 'default', 'default', name, version, worker_tags, first_seen_at, seen_at from workflows_seen_1;
drop table workflows_seen_1;

alter table worker_sessions add column org text not null default 'default';
alter table worker_sessions add column environment text not null default 'default';
alter table worker_sessions add column kind text not null default 'embedded';
alter table worker_sessions add column serves text;
alter table worker_sessions add column supervisor text;

-- Ids of entries grow with time, so they are the order of the lists; no index of times is needed beside them.
alter table audit_log add column environment text not null default 'default';
drop index audit_log_at;
drop index audit_log_run;
create index audit_log_scope on audit_log (org, environment, audit_id);
create index audit_log_run on audit_log (run_id, audit_id);

-- Of a key only its hash is kept: it is shown once, when it is made.
create table api_keys (
    key_id text not null primary key,
    org text not null,
    environment text not null,
    kind text not null,
    role text,
    name text not null,
    key_hash text not null unique,
    workflows text,
    created_at bigint not null,
    created_by text not null,
    expires_at bigint,
    revoked_at bigint,
    last_used_at bigint
);
create index api_keys_org on api_keys (org, created_at);
