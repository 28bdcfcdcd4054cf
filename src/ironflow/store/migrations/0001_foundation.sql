-- Foundation: runs, their journal, the dispatch queue, leases, sessions, waits, lanes, pauses, audit.
-- One text for both databases: comments that open with the name of a database are unpacked for that database only.
-- Every table carries org and environment where a row belongs to a tenant. Times are milliseconds since 1970.

create table runs (
    run_id text /*postgres: collate "C" */ not null primary key,
    org text not null default 'default',
    environment text not null default 'default',
    workflow text not null,
    version text not null,
    state text not null,
    execution_seq bigint not null default 0,
    lease_token_hash text,
    facts bigint not null default 0,
    epoch bigint not null default 1,
    attempt bigint not null default 1,
    retry_count bigint not null default 0,
    lease_recoveries bigint not null default 0,
    consecutive_recoveries bigint not null default 0,
    charged_recoveries bigint not null default 0,
    priority bigint not null default 0,
    route text not null,
    root_run_id text not null,
    parent_run_id text,
    created_at bigint not null,
    started_at bigint,
    ended_at bigint,
    deadline_at bigint,
    scheduled_at bigint,
    max_recoveries bigint,
    compensations bigint not null default 0,
    compensating_for text,
    resume_state text,
    reason text,
    status_text text,
    warnings bigint not null default 0,
    input_hash text,
    idempotency_key text,
    concurrency_key text,
    labels text,
    limits text,
    python text
) /*sqlite: without rowid */;

-- Keyset paging, newest first; the workflow and state filters of `runs list` walk it too.
create index runs_created on runs (org, environment, created_at, run_id);
-- Only live rows: what the scanner's invariant check looks at is bounded by the work in flight, not by history.
-- Its key does not hold the state, so a move between live states leaves the index alone.
create index runs_live on runs (run_id) where ended_at is null;
create unique index runs_idempotency on runs (org, environment, workflow, idempotency_key)
    where idempotency_key is not null;
create unique index runs_concurrency on runs (org, environment, concurrency_key)
    where concurrency_key is not null and ended_at is null;
-- Runs with a deadline that have not ended: what the scanner asks for on every tick.
create index runs_deadline on runs (deadline_at) where deadline_at is not null and ended_at is null;
create index runs_children on runs (parent_run_id) where parent_run_id is not null;

create table journal_events (
    run_id text /*postgres: collate "C" */ not null,
    seq bigint not null,
    kind text not null,
    step_id text,
    payload text,
    execution_seq bigint not null,
    at bigint not null,
    primary key (run_id, seq)
) /*sqlite: without rowid */;

-- A payload over 8 KiB would make every page of the journal's tree hold a handful of rows.
create table journal_payloads (
    run_id text /*postgres: collate "C" */ not null,
    seq bigint not null,
    payload text not null,
    primary key (run_id, seq)
);

create table dispatch_queue (
    run_id text /*postgres: collate "C" */ not null primary key,
    route text /*postgres: collate "C" */ not null,
    status text not null default 'ready',
    priority bigint not null default 0,
    enqueued_at bigint not null,
    eligible_at bigint not null,
    execution_seq bigint not null,
    blocked_lane text,
    reserved_by text,
    reservation_token text,
    reserved_until bigint
) /*sqlite: without rowid */;

-- The claim walks one route at a time in the order it hands out, so a blocked or unroutable backlog costs nothing.
create index dispatch_queue_order on dispatch_queue (route, status, priority desc, enqueued_at, run_id);
create index dispatch_queue_due on dispatch_queue (status, eligible_at);
create index dispatch_queue_blocked on dispatch_queue (blocked_lane, priority desc, enqueued_at)
    where blocked_lane is not null;

-- No index on expires_at: the table holds live rows only, and a renewal must stay one cheap update.
create table concurrency_leases (
    run_id text /*postgres: collate "C" */ not null primary key,
    execution_seq bigint not null,
    token_hash text not null,
    session_id text not null,
    acquired_at bigint not null,
    expires_at bigint not null,
    executing bigint
) /*sqlite: without rowid */;

create table worker_sessions (
    session_id text not null primary key,
    worker_id text not null,
    host text not null,
    boot_id text not null,
    pid bigint not null,
    process_id text not null,
    lock_path text,
    lock_device bigint,
    lock_inode bigint,
    wake_address text,
    routes text not null,
    slots bigint not null,
    credits bigint not null,
    started_at bigint not null,
    heartbeat_at bigint not null,
    expires_at bigint not null,
    suspect_since bigint,
    draining bigint not null default 0
);

create table waits (
    run_id text /*postgres: collate "C" */ not null,
    step_id text not null,
    kind text not null,
    status text not null,
    due_at bigint,
    pre_claim_status text,
    claimed_by text,
    claimed_at bigint,
    primary key (run_id, step_id)
) /*sqlite: without rowid */;

create index waits_due on waits (status, due_at);

-- A run's place in a concurrency limit. Use is counted from leases and reservations, never kept in a counter.
create table run_lanes (
    run_id text /*postgres: collate "C" */ not null,
    lane text not null,
    lane_limit bigint not null,
    primary key (run_id, lane)
) /*sqlite: without rowid */;
create index run_lanes_lane on run_lanes (lane, run_id);

-- The row two claims of one lane queue up on.
create table lanes (
    lane text not null primary key
) /*sqlite: without rowid */;

create table workflow_pauses (
    org text not null,
    workflow text not null,
    paused_at bigint not null,
    paused_by text,
    primary key (org, workflow)
);

create table workflows_seen (
    name text not null primary key,
    version text not null,
    worker_tags text,
    first_seen_at bigint not null,
    seen_at bigint not null
);

create table audit_log (
    audit_id text not null primary key,
    org text not null default 'default',
    at bigint not null,
    action text not null,
    actor text not null,
    run_id text,
    fields text
);
create index audit_log_at on audit_log (at);
create index audit_log_run on audit_log (run_id);

-- The journal is append-only, and the database itself says so. Retention is the one exception: it names the runs of a
-- tree in `retention_passes`, deletes their journals, and takes the names out again, all in one transaction, so the
-- table is empty whenever anybody else looks.
create table retention_passes (
    run_id text /*postgres: collate "C" */ not null primary key
) /*sqlite: without rowid */;

/*sqlite:
create trigger journal_events_no_update before update on journal_events
begin select raise(abort, 'the journal is append-only: journal_events cannot be updated'); end;
create trigger journal_events_no_delete before delete on journal_events
when not exists (select 1 from retention_passes p where p.run_id = old.run_id)
begin select raise(abort, 'the journal is append-only: journal_events cannot be deleted'); end;
create trigger journal_payloads_no_update before update on journal_payloads
begin select raise(abort, 'the journal is append-only: journal_payloads cannot be updated'); end;
create trigger journal_payloads_no_delete before delete on journal_payloads
when not exists (select 1 from retention_passes p where p.run_id = old.run_id)
begin select raise(abort, 'the journal is append-only: journal_payloads cannot be deleted'); end;
*/
/*postgres:
create function journal_is_append_only() returns trigger language plpgsql as $body$
begin
    if tg_op = 'DELETE' and exists (select 1 from retention_passes p where p.run_id = old.run_id) then
        return old;
    end if;
    raise exception 'the journal is append-only: % cannot be changed by %', tg_table_name, lower(tg_op);
end $body$;
create function journal_is_never_emptied() returns trigger language plpgsql as $body$
begin
    raise exception 'the journal is append-only: % cannot be truncated', tg_table_name;
end $body$;
create trigger journal_events_append_only before update or delete on journal_events
    for each row execute function journal_is_append_only();
create trigger journal_events_never_emptied before truncate on journal_events
    for each statement execute function journal_is_never_emptied();
create trigger journal_payloads_append_only before update or delete on journal_payloads
    for each row execute function journal_is_append_only();
create trigger journal_payloads_never_emptied before truncate on journal_payloads
    for each statement execute function journal_is_never_emptied();
*/
