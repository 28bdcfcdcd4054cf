-- The transaction that looks first: lock, read, decide in Python, write. Loaded together with `columns`.
--
-- Locks are taken in one order by everybody: run rows by id, then queue rows, leases and waits by id, then lanes by
-- name; the time is read after the last of them. A row that is only in the way of a sweep is skipped, never waited for.

-- name: lock_runs
select {run_columns} from runs where run_id = any(:ids::text[]) order by run_id for no key update

-- Lock and look, in one round trip: see the function.
-- name: look
select at, run, last_seq, queue, lease, waits
from ironflow_look_v(:floor::bigint, :ids::text[], :skip_locked::boolean)

-- A statement of its own after the one that locked the run rows: what this one sees is what nobody else can change.
-- (In one statement the number of the last event would be from before the wait.)
-- name: last_seqs
select i.run_id, coalesce((select max(e.seq) from journal_events e where e.run_id = i.run_id), 0) as last_seq
from unnest(:ids::text[]) as i (run_id)

-- name: lock_queue
select {queue_columns} from dispatch_queue where run_id = any(:ids::text[]) order by run_id for update

-- name: clock
select ironflow_clock_v(:floor::bigint)

-- name: paused_among
select org, environment, workflow from workflow_pauses where workflow = any(:workflows::text[])

-- fragment: delete_leases
delete from concurrency_leases where run_id = any(:leases_ids::text[])

-- name: delete_queue
delete from dispatch_queue where run_id = any(:ids::text[])

-- name: delete_waits
delete from waits where run_id = any(:ids::text[])

-- name: insert_runs
insert into runs ({run_columns})
select * from unnest(
    :run_id::text[], :workflow::text[], :version::text[], :state::text[], :route::text[], :root_run_id::text[],
    :created_at::bigint[], :org::text[], :environment::text[], :execution_seq::bigint[], :lease_token_hash::text[],
    :facts::bigint[], :epoch::bigint[], :attempt::bigint[], :retry_count::bigint[], :lease_recoveries::bigint[],
    :consecutive_recoveries::bigint[], :charged_recoveries::bigint[], :priority::bigint[], :parent_run_id::text[],
    :started_at::bigint[], :ended_at::bigint[], :deadline_at::bigint[], :scheduled_at::bigint[],
    :max_recoveries::bigint[], :compensations::bigint[], :compensating_for::text[], :resume_state::text[],
    :reason::text[], :status_text::text[], :warnings::bigint[], :input_hash::text[], :idempotency_key::text[],
    :concurrency_key::text[], :labels::text[], :limits::text[], :python::text[]
)
on conflict do nothing returning run_id

-- Every column that may change, from the row as it was computed under the lock. An index whose columns keep their
-- values is not touched by this, so the long list costs no more than a short one.
-- fragment: update_runs
update runs r set
    version = v.version, state = v.state, route = v.route, execution_seq = v.execution_seq,
    lease_token_hash = v.lease_token_hash, facts = v.facts, epoch = v.epoch, attempt = v.attempt,
    retry_count = v.retry_count, lease_recoveries = v.lease_recoveries,
    consecutive_recoveries = v.consecutive_recoveries, charged_recoveries = v.charged_recoveries,
    priority = v.priority, parent_run_id = v.parent_run_id, started_at = v.started_at, ended_at = v.ended_at,
    deadline_at = v.deadline_at, scheduled_at = v.scheduled_at, max_recoveries = v.max_recoveries,
    compensations = v.compensations, compensating_for = v.compensating_for, resume_state = v.resume_state,
    reason = v.reason, status_text = v.status_text, warnings = v.warnings, input_hash = v.input_hash,
    idempotency_key = v.idempotency_key, concurrency_key = v.concurrency_key, labels = v.labels, limits = v.limits,
    python = v.python
from unnest(
    :runs_run_id::text[], :runs_version::text[], :runs_state::text[], :runs_route::text[],
    :runs_execution_seq::bigint[], :runs_lease_token_hash::text[], :runs_facts::bigint[], :runs_epoch::bigint[],
    :runs_attempt::bigint[], :runs_retry_count::bigint[], :runs_lease_recoveries::bigint[],
    :runs_consecutive_recoveries::bigint[], :runs_charged_recoveries::bigint[], :runs_priority::bigint[],
    :runs_parent_run_id::text[], :runs_started_at::bigint[], :runs_ended_at::bigint[],
    :runs_deadline_at::bigint[], :runs_scheduled_at::bigint[], :runs_max_recoveries::bigint[],
    :runs_compensations::bigint[], :runs_compensating_for::text[], :runs_resume_state::text[],
    :runs_reason::text[], :runs_status_text::text[], :runs_warnings::bigint[], :runs_input_hash::text[],
    :runs_idempotency_key::text[], :runs_concurrency_key::text[], :runs_labels::text[], :runs_limits::text[],
    :runs_python::text[]
) as v (
    run_id, version, state, route, execution_seq, lease_token_hash, facts, epoch, attempt, retry_count,
    lease_recoveries, consecutive_recoveries, charged_recoveries, priority, parent_run_id, started_at, ended_at,
    deadline_at, scheduled_at, max_recoveries, compensations, compensating_for, resume_state, reason, status_text,
    warnings, input_hash, idempotency_key, concurrency_key, labels, limits, python
)
where r.run_id = v.run_id

-- fragment: insert_events
insert into journal_events (run_id, seq, kind, step_id, payload, execution_seq, at)
select * from unnest(
    :events_run_id::text[], :events_seq::bigint[], :events_kind::text[], :events_step_id::text[],
    :events_payload::text[], :events_execution_seq::bigint[], :events_at::bigint[]
)

-- name: insert_payloads
insert into journal_payloads (run_id, seq, payload)
select * from unnest(:run_id::text[], :seq::bigint[], :payload::text[])

-- Two wake-ups make one segment: the second finds the row there.
-- fragment: insert_queue
insert into dispatch_queue ({queue_columns})
select * from unnest(
    :queue_run_id::text[], :queue_route::text[], :queue_priority::bigint[], :queue_enqueued_at::bigint[],
    :queue_eligible_at::bigint[], :queue_execution_seq::bigint[], :queue_status::text[],
    :queue_blocked_lane::text[], :queue_reserved_by::text[], :queue_reservation_token::text[],
    :queue_reserved_until::bigint[]
)
on conflict do nothing

-- name: insert_leases
insert into concurrency_leases ({lease_columns})
select * from unnest(:run_id::text[], :execution_seq::bigint[], :token_hash::text[], :session_id::text[],
                     :acquired_at::bigint[], :expires_at::bigint[], :executing::bigint[])

-- name: insert_waits
insert into waits ({wait_columns})
select * from unnest(:run_id::text[], :step_id::text[], :kind::text[], :status::text[], :due_at::bigint[],
                     :pre_claim_status::text[], :claimed_by::text[], :claimed_at::bigint[])
on conflict (run_id, step_id) do update set kind = excluded.kind, status = excluded.status, due_at = excluded.due_at,
    pre_claim_status = excluded.pre_claim_status, claimed_by = excluded.claimed_by, claimed_at = excluded.claimed_at

-- fragment: insert_audits
insert into audit_log (audit_id, org, environment, at, action, actor, run_id, fields)
select * from unnest(
    :audits_audit_id::text[], :audits_org::text[], :audits_environment::text[], :audits_at::bigint[],
    :audits_action::text[], :audits_actor::text[], :audits_run_id::text[], :audits_fields::text[]
)

-- Each of these alone, and the ones that hand a run back to the queue as one statement: between a death and the next
-- owner every round trip counts. Its parts touch different tables, so it does not matter which runs first.
-- name: update_runs
{update_runs}

-- name: delete_leases
{delete_leases}

-- name: insert_events
{insert_events}

-- name: insert_queue
{insert_queue}

-- name: insert_audits
{insert_audits}

-- name: requeue
with moved as (
    {update_runs}
), released as (
    {delete_leases}
), told as (
    {insert_events}
), queued as (
    {insert_queue}
), noted as (
    {insert_audits}
)
select 1

-- What a writer that lost an answer looks for: its own rows.
-- name: written
select seq, kind, step_id, coalesce(payload, (
           select p.payload from journal_payloads p where p.run_id = e.run_id and p.seq = e.seq)), execution_seq
from journal_events e
where run_id = :run_id and seq between :first and :last order by seq

-- name: fence
select execution_seq, lease_token_hash from runs where run_id = :run_id

-- ---- lanes

-- name: make_lanes
insert into lanes (lane) select distinct name from unnest(:lanes::text[]) as n (name) order by name
on conflict do nothing

-- name: lock_lanes
select lane from lanes where lane = any(:lanes::text[]) order by lane for update

-- name: insert_run_lanes
insert into run_lanes (run_id, lane, lane_limit)
select * from unnest(:run_id::text[], :lane::text[], :lane_limit::bigint[])
on conflict (run_id, lane) do update set lane_limit = excluded.lane_limit

-- name: block
update dispatch_queue q set status = 'blocked', blocked_lane = b.lane, reserved_by = null, reservation_token = null,
    reserved_until = null
from unnest(:ids::text[], :lanes::text[]) as b (run_id, lane) where q.run_id = b.run_id

-- name: existing
select run_id from runs where run_id = any(:ids::text[])
