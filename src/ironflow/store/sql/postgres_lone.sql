-- One run, one statement, spelled out: what a lone caller most often waits for, without a call of a function, which
-- is no small part of such a commit. What has more to say goes through the functions of `postgres_functions.sql`, whose
-- answer these give, too: the clock times eight, plus 0 applied or 1 stale.

-- fragment: owned
owned as materialized (
    select 1 from runs
    where run_id = :run and execution_seq = :execution_seq and lease_token_hash = :token
      and state in ('running', 'cancelling')
    for no key update
), clock as materialized (
    -- Read from the locked row, so that the time is from after the wait for it.
    select ironflow_clock_v(:floor::bigint) as at from owned
)

-- fragment: owners_answer
select coalesce((select at * 8 from clock), ironflow_clock_v(:floor::bigint) * 8 + 1)

-- name: append_1
with {owned}, journal as (
    insert into journal_events (run_id, seq, kind, step_id, payload, execution_seq, at)
    select :run, :seq::bigint, :kind_1, :step_1, :payload_1, :execution_seq, at from clock
)
{owners_answer}

-- name: append_2
with {owned}, journal as (
    insert into journal_events (run_id, seq, kind, step_id, payload, execution_seq, at)
    select :run, :seq::bigint + e.n, e.kind, e.step, e.payload, :execution_seq, at
    from clock, (values (0, :kind_1, :step_1, :payload_1), (1, :kind_2, :step_2, :payload_2))
        as e (n, kind, step, payload)
)
{owners_answer}

-- A start that waits in the queue, of a run that looks new: the row, its first event, its place. So without
-- `on conflict`, which looks into every unique index first; whoever meets a row that is there asks again by way of the
-- function, which says what it met.
-- name: create_queued
with clock as materialized (
    select ironflow_clock_v(:floor::bigint) as at
), created as (
    insert into runs (
        run_id, org, environment, workflow, version, state, execution_seq, lease_token_hash, priority, route,
        root_run_id, parent_run_id, created_at, started_at, deadline_at, scheduled_at, max_recoveries, input_hash,
        idempotency_key, concurrency_key, labels, limits, python
    )
    select :run, :org, :environment, :workflow, :version, :state, :execution_seq, :token, :run_priority, :run_route,
           :root, :parent, coalesce(nullif(:created::bigint, 0), at), :started, :deadline, :scheduled, :max_recoveries,
           :input_hash, :idempotency_key, :concurrency_key, :labels, :limits, :python
    from clock
), journal as (
    insert into journal_events (run_id, seq, kind, step_id, payload, execution_seq, at)
    select :run, :seq, :kind, :step, :payload, :fence, at from clock
), queued as (
    insert into dispatch_queue (run_id, route, status, priority, enqueued_at, eligible_at, execution_seq)
    select :run, :route,
           case when :status in ('ready', 'delayed')
                then case when :eligible::bigint <= at then 'ready' else 'delayed' end else :status end,
           :priority, coalesce(nullif(:enqueued::bigint, 0), at), coalesce(nullif(:eligible::bigint, 0), at), :queue_seq
    from clock
)
select at * 8 from clock
