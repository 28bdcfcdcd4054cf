-- What the loops, the heart and the queue do on SQLite: one writer at a time, so nothing is locked or skipped, and a
-- transaction is a few statements where PostgreSQL uses one. Loaded together with `columns`.

-- ---- the queue

-- Asked on every tick, so that a tick with nothing to do takes no lock.
-- name: promotable
select exists (select 1 from dispatch_queue where status = 'delayed' and eligible_at <= :now)
    or exists (select 1 from dispatch_queue where blocked_lane is not null)

-- One route at a time, along the index in the order of handing out: rows that are blocked, delayed, reserved or of
-- another route are never touched. A paused workflow is one look-up, not one per row of its backlog. The last two
-- columns are the order, by which the answers for several routes are merged.
-- name: peek
select {head_columns}, q.priority, q.enqueued_at from dispatch_queue q cross join runs r
where q.route = :route and q.status = 'ready' and r.run_id = q.run_id
  and not exists (
      select 1 from workflow_pauses p where p.org = :org and p.environment = :environment and p.workflow = :workflow)
order by q.priority desc, q.enqueued_at, q.run_id
limit :limit

-- `pairs`: run_id and token of each.
-- name: reserve_rows
update dispatch_queue
set status = 'reserved', reserved_by = :session_id, reserved_until = :until, reservation_token = p.value ->> 1
from json_each(:pairs) p where dispatch_queue.run_id = p.value ->> 0

-- name: unreserve_row
update dispatch_queue
set status = 'ready', reserved_by = null, reservation_token = null, reserved_until = null
where run_id = :run_id and status = 'reserved' and reservation_token = :token
returning run_id

-- name: promote
update dispatch_queue set status = 'ready'
where run_id in (
    select run_id from dispatch_queue where status = 'delayed' and eligible_at <= :now order by eligible_at limit :limit
)
returning run_id

-- name: block
update dispatch_queue set status = 'blocked', blocked_lane = :lane, reserved_by = null, reservation_token = null,
    reserved_until = null
where run_id = :run_id

-- ---- waits

-- One status at a time, so that the index gives the order and a herd of due timers is read by the page. Runs with
-- lanes and runs of paused workflows are left to the claim, which puts them into the queue.
-- name: due
select {head_columns}, w.due_at from waits w cross join runs r
where w.status = :status and w.due_at <= :now and r.run_id = w.run_id
  and r.state in ('sleeping', 'waiting', 'awaiting_approval') and r.limits is null
  and r.route in (select value from json_each(:routes))
  and not exists (
      select 1 from workflow_pauses p
      where p.org = r.org and p.environment = r.environment and p.workflow = r.workflow)
order by w.due_at
limit :limit

-- name: due_waits
select w.run_id, w.step_id, w.due_at from waits w cross join runs r
where w.status = :status and w.due_at <= :now and r.run_id = w.run_id
  and r.state in ('sleeping', 'waiting', 'awaiting_approval')
  and not exists (select 1 from concurrency_leases c where c.run_id = w.run_id)
  and not exists (select 1 from dispatch_queue q where q.run_id = w.run_id)
order by w.due_at
limit :limit

-- name: claimers
select distinct claimed_by from waits where status = 'waking' and claimed_by is not null

-- `pairs`: run_id and step_id of each.
-- name: claim_rows
update waits set pre_claim_status = status, status = 'waking', claimed_by = :node, claimed_at = :now
from json_each(:pairs) p where waits.run_id = p.value ->> 0 and waits.step_id = p.value ->> 1
returning {wait_columns}

-- ---- sessions

-- name: session_lost
with clock (at) as (select :now), mass as materialized ({mass})
select 1 from worker_sessions
where session_id = :session_id
  and (expires_at <= :now or (suspect_since <= :until and session_id not in (select session_id from mass)))

-- name: delete_session
delete from worker_sessions where session_id = :session_id

-- The lease rule of the scanner requeues what a session held: there is one way back into the queue, not two.
-- name: expire_leases_of_session
update concurrency_leases set expires_at = :now where session_id = :session_id and expires_at > :now

-- What was promised to a session is found by the scanner's rule for reservations, as its leases are by theirs.
-- name: expire_reservations_of_session
update dispatch_queue set reserved_until = :now
where status = 'reserved' and reserved_by = :session_id and reserved_until > :now

-- name: runs_of_session
select run_id from concurrency_leases where session_id = :session_id order by run_id

-- ---- the heart

-- name: beat_session
update worker_sessions
set heartbeat_at = :now, expires_at = :expires_at, credits = :credits, suspect_since = null
where session_id = :session_id
returning draining

-- A lease is renewed by session, execution_seq and token together. One that has expired but was not swept yet may be
-- renewed: its owner is alive, and the sweep looks at the expiry again before it takes anything away.
-- name: renew_leases
update concurrency_leases set expires_at = :expires_at, executing = h.value ->> 3
from json_each(:held) h
where run_id = h.value ->> 0 and execution_seq = h.value ->> 1 and token_hash = h.value ->> 2
  and session_id = :session_id
returning run_id, execution_seq

-- ---- what a node asks

-- name: events_at
select e.run_id, {event_columns} from json_each(:pairs) a cross join journal_events e
where e.run_id = a.value ->> 0 and e.seq = a.value ->> 1

-- The beginning of a journal, as far as it is small.
-- name: slim_journal
select {slim_event_columns} from journal_events e
where e.run_id = :run_id and e.seq > :after
order by e.seq limit :limit

-- For whoever follows runs: what came after the event each was last seen with (`pairs`), so many of each at most. The
-- events of a run are numbered without a gap, so a bound on the number is one on the count.
-- name: tail
select e.run_id, {slim_event_columns} from json_each(:pairs) a cross join journal_events e
where e.run_id = a.value ->> 0 and e.seq > a.value ->> 1 and e.seq <= (a.value ->> 1) + :limit
order by e.run_id, e.seq

-- `pairs`: key_id and time of each. The latest time stays.
-- name: used_keys
update api_keys set last_used_at = u.value ->> 1
from json_each(:pairs) u
where api_keys.key_id = u.value ->> 0 and (last_used_at is null or last_used_at < u.value ->> 1)

-- ---- time

-- name: last_heartbeat
select max(heartbeat_at) from worker_sessions

-- Of each scope the whole index prefix, so that this reads one entry of each however many runs there are.
-- name: last_created
select max(created_at) from runs where org = :org and environment = :environment
