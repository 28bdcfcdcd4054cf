-- A workflow is known in each of its versions: which of them new runs get depends on the workers that are there.
alter table workflows_seen rename to workflows_seen_2;
create table workflows_seen (
    org text not null,
    environment text not null,
    name text not null,
    version text not null,
    worker_tags text,
    definition text,
    first_seen_at bigint not null,
    seen_at bigint not null,
    primary key (org, environment, name, version)
);
insert into workflows_seen (org, environment, name, version, worker_tags, definition, first_seen_at, seen_at)
select org, environment, name, version, worker_tags, definition, first_seen_at, seen_at from workflows_seen_2;
drop table workflows_seen_2;
