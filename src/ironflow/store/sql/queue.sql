-- The dispatch queue: in which order segments are handed out, and to whom they are promised.

-- One route at a time, along the index in the order of handing out: rows that are blocked, delayed, reserved or of
-- another route are never touched. A paused workflow is one look-up, not one per row of its backlog. The last two
-- columns are the order, by which the answers for several routes are merged.
-- name: peek
select {head_columns}, q.priority, q.enqueued_at from dispatch_queue q cross join runs r
where q.route = :route and q.status = 'ready' and r.run_id = q.run_id
  and not exists (select 1 from workflow_pauses p where p.org = :org and p.workflow = :workflow)
order by q.priority desc, q.enqueued_at, q.run_id
limit :limit

-- One step along the index per route, so that a backlog of any length costs nothing.
-- name: queue_routes
with recursive seen (route) as (
    select min(route) from dispatch_queue
    union all
    select (select min(q.route) from dispatch_queue q where q.route > s.route) from seen s where s.route is not null
)
select route from seen where route is not null

-- name: unreserve_row
update dispatch_queue
set status = 'ready', reserved_by = null, reservation_token = null, reserved_until = null
where run_id = :run_id and status = 'reserved' and reservation_token = :token
returning run_id

-- Asked on every tick, so that a tick with nothing to do takes no lock.
-- name: promotable
select exists (select 1 from dispatch_queue where status = 'delayed' and eligible_at <= :now)
    or exists (select 1 from dispatch_queue where blocked_lane is not null)

-- name: promote
update dispatch_queue set status = 'ready' where status = 'delayed' and eligible_at <= :now returning run_id

-- A wait of a run that is paused, queued or executing wants nothing of a waker: its due time must not wake one.
-- name: next_due
select min(at) from (
    select min(eligible_at) as at from dispatch_queue where status = 'delayed'
    union all
    select * from (select w.due_at as at from waits w cross join runs r
        where w.status = 'sleeping' and w.due_at is not null and r.run_id = w.run_id
          and r.state in ('sleeping', 'waiting', 'awaiting_approval') order by w.due_at limit 1) s
    union all
    select * from (select w.due_at as at from waits w cross join runs r
        where w.status = 'waiting' and w.due_at is not null and r.run_id = w.run_id
          and r.state in ('sleeping', 'waiting', 'awaiting_approval') order by w.due_at limit 1) s
    union all
    select * from (select w.due_at as at from waits w cross join runs r
        where w.status = 'retry_backoff' and w.due_at is not null and r.run_id = w.run_id
          and r.state in ('sleeping', 'waiting', 'awaiting_approval') order by w.due_at limit 1) s
) earliest

-- One status at a time, so that the index gives the order and a herd of due timers is read by the page. Runs with
-- lanes and runs of paused workflows are left to the claim, which puts them into the queue.
-- name: due
select {head_columns}, w.due_at from waits w cross join runs r
where w.status = :status and w.due_at <= :now and r.run_id = w.run_id
  and r.state in ('sleeping', 'waiting', 'awaiting_approval') and r.limits is null
  and r.route /*postgres: = any(cast(:routes as text[])) */ /*sqlite: in (select value from json_each(:routes)) */
  and not exists (select 1 from workflow_pauses p where p.org = r.org and p.workflow = r.workflow)
order by w.due_at
limit :limit

-- name: due_waits
select w.run_id, w.step_id, w.due_at from waits w cross join runs r
where w.status = :status and w.due_at <= :now and r.run_id = w.run_id
  and r.state in ('sleeping', 'waiting', 'awaiting_approval')
  and not exists (select 1 from concurrency_leases c where c.run_id = w.run_id)
  and not exists (select 1 from dispatch_queue q where q.run_id = w.run_id)
order by w.due_at
limit :limit /*postgres: for update of w skip locked */
