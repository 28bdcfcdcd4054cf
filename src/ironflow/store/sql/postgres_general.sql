-- The transaction that looks first: lock, read, decide in Python, write. Loaded together with `columns`.
--
-- Locks are taken in one order by everybody: run rows by id, then queue rows, leases and waits by id, then lanes by
-- name. A row that is only in the way of a sweep is skipped, never waited for.

-- name: lock_runs
select {run_columns} from runs where run_id = any(:ids::text[]) order by run_id for no key update

-- name: lock_free_runs
select {run_columns} from runs where run_id = any(:ids::text[]) order by run_id for no key update skip locked

-- A statement of its own after the one that locked the run rows: what this one sees is what nobody else can change.
-- (In one statement the number of the last event would be from before the wait.)
-- name: last_seqs
select i.run_id, coalesce((select max(e.seq) from journal_events e where e.run_id = i.run_id), 0) as last_seq
from unnest(:ids::text[]) as i (run_id)

-- name: lock_queue
select {queue_columns} from dispatch_queue where run_id = any(:ids::text[]) order by run_id for update

-- Everything about a run beside its waits, run by run in the order of `ids` (which are sorted).
-- name: lock_surroundings
select i.run_id, coalesce((select max(e.seq) from journal_events e where e.run_id = i.run_id), 0) as last_seq, q.*, l.*
from unnest(:ids::text[]) as i (run_id)
left join lateral (select {queue_columns} from dispatch_queue d where d.run_id = i.run_id for update) q on true
left join lateral (select {lease_columns} from concurrency_leases c where c.run_id = i.run_id for update) l on true

-- The last locks, and the time with them.
-- name: lock_waits
select ironflow_clock_v(:floor::bigint), w.*
from (values (1)) as one (n) left join (
    select {wait_columns} from waits where run_id = any(:ids::text[]) order by run_id, step_id for update
) w on true

-- name: clock
select ironflow_clock_v(:floor::bigint)

-- name: paused_among
select org, workflow from workflow_pauses where workflow = any(:workflows::text[])

-- name: delete_leases
delete from concurrency_leases where run_id = any(:ids::text[])

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
-- name: update_runs
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
    :run_id::text[], :version::text[], :state::text[], :route::text[], :execution_seq::bigint[],
    :lease_token_hash::text[], :facts::bigint[], :epoch::bigint[], :attempt::bigint[], :retry_count::bigint[],
    :lease_recoveries::bigint[], :consecutive_recoveries::bigint[], :charged_recoveries::bigint[],
    :priority::bigint[], :parent_run_id::text[], :started_at::bigint[], :ended_at::bigint[], :deadline_at::bigint[],
    :scheduled_at::bigint[], :max_recoveries::bigint[], :compensations::bigint[], :compensating_for::text[],
    :resume_state::text[], :reason::text[], :status_text::text[], :warnings::bigint[], :input_hash::text[],
    :idempotency_key::text[], :concurrency_key::text[], :labels::text[], :limits::text[], :python::text[]
) as v (
    run_id, version, state, route, execution_seq, lease_token_hash, facts, epoch, attempt, retry_count,
    lease_recoveries, consecutive_recoveries, charged_recoveries, priority, parent_run_id, started_at, ended_at,
    deadline_at, scheduled_at, max_recoveries, compensations, compensating_for, resume_state, reason, status_text,
    warnings, input_hash, idempotency_key, concurrency_key, labels, limits, python
)
where r.run_id = v.run_id

-- name: insert_events
insert into journal_events (run_id, seq, kind, step_id, payload, execution_seq, at)
select * from unnest(:run_id::text[], :seq::bigint[], :kind::text[], :step_id::text[], :payload::text[],
                     :execution_seq::bigint[], :at::bigint[])

-- name: insert_payloads
insert into journal_payloads (run_id, seq, payload)
select * from unnest(:run_id::text[], :seq::bigint[], :payload::text[])

-- Two wake-ups make one segment: the second finds the row there.
-- name: insert_queue
insert into dispatch_queue ({queue_columns})
select * from unnest(:run_id::text[], :route::text[], :priority::bigint[], :enqueued_at::bigint[],
                     :eligible_at::bigint[], :execution_seq::bigint[], :status::text[], :blocked_lane::text[],
                     :reserved_by::text[], :reservation_token::text[], :reserved_until::bigint[])
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

-- name: insert_audits
insert into audit_log (audit_id, org, at, action, actor, run_id, fields)
select * from unnest(:audit_id::text[], :org::text[], :at::bigint[], :action::text[], :actor::text[],
                     :run_id::text[], :fields::text[])

-- What a writer that lost an answer looks for: its own rows.
-- name: written
select seq, kind, step_id, coalesce(payload, (
           select p.payload from journal_payloads p where p.run_id = e.run_id and p.seq = e.seq)), execution_seq
from journal_events e
where run_id = :run_id and seq between :first and :last order by seq

-- name: fence
select execution_seq, lease_token_hash from runs where run_id = :run_id

-- ---- lanes

-- name: lanes_of
select run_id, lane, lane_limit from run_lanes where run_id = any(:ids::text[]) order by lane, run_id

-- name: make_lanes
insert into lanes (lane) select distinct name from unnest(:lanes::text[]) as n (name) order by name
on conflict do nothing

-- name: lock_lanes
select lane from lanes where lane = any(:lanes::text[]) order by lane for update

-- Who counts in these lanes: what executes and what is promised. Driven from the rows that hold something, so the
-- history of a lane costs nothing.
-- name: lane_holders
select l.lane, l.run_id from concurrency_leases c join run_lanes l on l.run_id = c.run_id
where l.lane = any(:lanes::text[])
union
select l.lane, l.run_id from dispatch_queue q join run_lanes l on l.run_id = q.run_id
where q.status = 'reserved' and q.reserved_until > :now and l.lane = any(:lanes::text[])

-- name: insert_run_lanes
insert into run_lanes (run_id, lane, lane_limit)
select * from unnest(:run_id::text[], :lane::text[], :lane_limit::bigint[])
on conflict (run_id, lane) do update set lane_limit = excluded.lane_limit

-- name: block
update dispatch_queue q set status = 'blocked', blocked_lane = b.lane, reserved_by = null, reservation_token = null,
    reserved_until = null
from unnest(:ids::text[], :lanes::text[]) as b (run_id, lane) where q.run_id = b.run_id

-- name: blocked_next
select q.run_id, l.lane_limit from dispatch_queue q
join run_lanes l on l.run_id = q.run_id and l.lane = q.blocked_lane
where q.blocked_lane = :lane
order by q.priority desc, q.enqueued_at limit :limit for update of q skip locked

-- name: unblock
update dispatch_queue set status = 'ready', blocked_lane = null where run_id = any(:ids::text[])

-- name: blocked_lanes
select distinct blocked_lane from dispatch_queue where blocked_lane is not null order by blocked_lane

-- name: existing
select run_id from runs where run_id = any(:ids::text[])
